"""The folder of a node's store in which its workers leave gradients."""

from __future__ import annotations

import pytest
from site_kit import Site

from spotlight.actors.protocol.down import WorkerPlan
from spotlight.errors import TransferFailed, TransferRefused
from spotlight.transport.tensors import upload

pytestmark = pytest.mark.virtual_time


async def test_workers_are_told_where_they_leave_gradients_and_may_leave_nothing_else_there(
    warm: Site,
) -> None:
    await warm.prepare()
    store = warm.worker.last(WorkerPlan).store
    assert store is not None and store.place == warm.store.endpoint.place
    await upload(store, "gradients/n/0/1", b"gradient")
    for key in ("weights/000000-rollout-0", "state/1", "commits/n/0/1-1"):
        with pytest.raises(TransferRefused):
            await upload(store, key, b"anything")


async def test_the_gradients_of_a_job_are_dropped_with_it(warm: Site) -> None:
    await warm.prepare()
    warm.store.put("gradients/n/0/1", b"gradient")
    await warm.plan(job=None, over=True)
    await warm.prepare("another")
    with pytest.raises(TransferFailed):
        await warm.store.offer("gradients/n/0/1")
