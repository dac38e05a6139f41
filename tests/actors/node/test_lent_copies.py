"""What a node does for its workers that compute gradients: it fetches what ranks have lent, once
for all of them, and has a folder for what they compute."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from job_kit import STORE, Recorder, offer, recorder
from msgspec.structs import replace
from runtime_kit import Cluster
from site_kit import Site

from spotlight.actors.node.lent_copies import LentCopies
from spotlight.actors.protocol.down import WorkerPlan
from spotlight.actors.protocol.gradients import Bring, Brought
from spotlight.errors import ActorError, TransferFailed, TransferRefused
from spotlight.timings import WeightsTimings
from spotlight.transport.tensors import BundleStore, upload
from spotlight.types import BundleOffer

pytestmark = pytest.mark.virtual_time

SECONDS = 5.0


class SlowStore(BundleStore):
    """Copies from wherever in a while, or fails."""

    def __init__(self, root: Path) -> None:
        super().__init__(root, token="token")
        self.begun: list[str] = []
        """What was to be copied."""
        self.fails = False

    async def copy(self, offer: BundleOffer, key: str, **options: Any) -> BundleOffer:
        self.begun.append(offer.key)
        await asyncio.sleep(SECONDS)
        if self.fails:
            raise TransferFailed("its rank is gone")
        return self.put(key, b"weights")


class Lender:
    def __init__(self, actor: Recorder, store: SlowStore) -> None:
        self.store = store
        self.copies = LentCopies(
            SimpleNamespace(run_task=actor.run_task),  # type: ignore[arg-type]
            store,
            WeightsTimings(),
        )

    def files(self) -> int:
        folder = Path(self.store.endpoint.root) / "weights"
        return len([*folder.iterdir()]) if folder.exists() else 0


@pytest.fixture
async def lender(tmp_path: Path) -> AsyncIterator[Lender]:
    store = SlowStore(tmp_path)
    await store.start()
    async with Cluster() as cluster:
        yield Lender(await recorder(await cluster.system("n"), "node"), store)
    await store.aclose()


def lent(number: int = 0, checksum: int = 7) -> BundleOffer:
    return replace(offer(f"weights/lent-{number % 2}-0"), checksum=checksum)


async def test_weights_are_fetched_once_for_all_workers_of_a_node(lender: Lender) -> None:
    found = await asyncio.gather(*(lender.copies.bring(lent()) for _ in range(4)))
    again = await lender.copies.bring(lent())
    assert lender.store.begun == ["weights/lent-0-0"]
    assert {each.copy for each in (*found, again)} == {again.copy}
    assert again.copy is not None and again.copy.store.place == lender.store.endpoint.place


async def test_the_weights_of_the_next_update_are_others_though_they_have_the_same_name(
    lender: Lender,
) -> None:
    first = await lender.copies.bring(lent(checksum=7))
    second = await lender.copies.bring(lent(checksum=8))
    assert first.copy is not None and second.copy is not None
    assert first.copy.key != second.copy.key
    assert len(lender.store.begun) == 2


async def test_what_cannot_be_had_is_said_and_tried_again_when_it_is_asked_for_again(
    lender: Lender,
) -> None:
    lender.store.fails = True
    assert await lender.copies.bring(lent()) == Brought(None, "its rank is gone")
    lender.store.fails = False
    assert (await lender.copies.bring(lent())).copy is not None


async def test_only_the_latest_copies_are_kept(lender: Lender) -> None:
    for number in range(9):
        await lender.copies.bring(lent(number, checksum=number))
    assert lender.files() == 4


async def test_nothing_is_kept_when_the_job_is_over(lender: Lender) -> None:
    await lender.copies.bring(lent(checksum=1))
    under_way = lender.copies.bring(lent(checksum=2))
    lender.copies.forget_all()
    await asyncio.sleep(2 * SECONDS)
    assert lender.files() == 0
    assert under_way.cancelled()


# --- at the node ---


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


async def test_only_its_own_members_have_a_node_fetch_weights(warm: Site) -> None:
    await warm.prepare()
    away = replace(lent(), store=replace(STORE, host="127.0.0.1", port=1))
    stranger = await recorder(warm.system, "stranger")
    with pytest.raises(ActorError):
        await stranger.ask(warm.node, Bring(away), timeout_s=1.0)
    answer = await warm.worker.ask(warm.node, Bring(away), timeout_s=600.0)
    assert isinstance(answer, Brought) and answer.copy is None and answer.problem
