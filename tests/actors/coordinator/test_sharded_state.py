"""The state of sharded trainers: every rank leaves a part of it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from depot_kit import Depot, node_store, open_depot, part_of_state
from job_kit import job, settle

from spotlight.actors.protocol.trainer import state_key

pytestmark = pytest.mark.virtual_time


@pytest.fixture
async def depot(tmp_path: Path) -> AsyncIterator[Depot]:
    async with open_depot(tmp_path / "run", job(training={"sharded": True})) as depot:
        yield depot


async def test_while_only_one_node_trains_the_run_folders_store_has_every_part(
    depot: Depot,
) -> None:
    await depot.train_on("a", "a")
    depot.team.save(1)
    told = await depot.told()
    here = depot.store.writable_by("a", "state")
    assert [order.stores for order in told.values()] == [(node_store("a"), here)] * 2


async def test_a_checkpoint_is_made_of_the_parts_of_all_ranks(depot: Depot) -> None:
    await depot.train_on("a", "b")
    depot.team.save(3)
    told = await depot.told()
    await depot.hear(1, depot.saved(told[1]))
    await settle()
    assert not depot.checkpoint(3).exists()
    await depot.hear(0, depot.saved(told[0]))
    await settle()
    data = depot.checkpoint(3).read_bytes()
    assert data.endswith(bytes([0, 1, 2, 3])) and b"DCP_SHARDING_INFO" not in data
    assert depot.checkpointed == [3]
    assert not (depot.folder.path / "artifacts.d" / "state" / "joined").exists()


async def test_parts_that_do_not_fit_each_other_end_the_job(depot: Depot) -> None:
    await depot.train_on("a", "b")
    depot.team.save(3)
    told = await depot.told()
    answers = {number: depot.saved(order) for number, order in told.items()}
    depot.store.put(state_key(3, 1), part_of_state(1, 1))
    for number, answer in answers.items():
        await depot.hear(number, answer)
    await settle()
    assert "different states" in depot.failures[0]
    assert depot.checkpointed == []


async def test_a_sharded_state_can_be_had_while_somebody_has_every_part(depot: Depot) -> None:
    await depot.train_on("a", "b", "c")
    await depot.save(1)
    depot.nodes.lose("a")
    completed, parts = depot.states.kept
    assert (completed, [[it.store.machine for it in part] for part in parts]) == (
        1,
        [["b"], ["b", "c"], ["c"]],
    )
    depot.nodes.lose("b")
    assert depot.states.kept == (1, ())
