"""What is said to trainer ranks, and who may answer in their names."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from depot_kit import Depot, node_store, open_depot
from job_kit import job, settle

from spotlight.actors.protocol.trainer import Publish, SaveState, Train
from spotlight.policies import trainer_orders as orders

pytestmark = pytest.mark.virtual_time


@pytest.fixture
async def depot(tmp_path: Path) -> AsyncIterator[Depot]:
    async with open_depot(tmp_path / "run", job()) as depot:
        await depot.train_on("a", "b")
        yield depot


async def test_only_the_very_actor_that_was_appointed_is_a_rank(depot: Depot) -> None:
    first, second = (rank.ref for rank in depot.ranks)
    assert depot.team.is_rank(first, 0)
    assert depot.team.is_rank(second, 1)
    assert not depot.team.is_rank(second, 0)
    assert not depot.team.is_rank(first, -2)
    assert not depot.team.is_rank(first, 2)
    assert not depot.team.is_rank(None, 0)


async def test_every_rank_publishes_into_the_store_of_its_node(depot: Depot) -> None:
    depot.team.order(orders.Publish(3, evaluation=True))
    await settle()
    told = [rank.all(Publish) for rank in depot.ranks]
    assert told == [[Publish(3, True, node_store(name))] for name in ("a", "b")]


async def test_an_order_that_is_repeated_is_the_same_though_a_node_has_come_back(
    depot: Depot,
) -> None:
    """A rank that has carried it out answers from memory what it was told before."""
    depot.team.save(3)
    await settle()
    depot.store.revoke("a")
    depot.team.remind()
    depot.team.order(orders.Train(3, 0, ()))
    await settle()
    first, again = depot.ranks[0].all(SaveState)
    assert first == again
    assert first.stores[1] != depot.store.writable_by("a", "state")
    assert depot.ranks[0].all(Train) == [], "it waits for the checkpoint"


async def test_who_is_to_train_is_told_what_to_do_before(depot: Depot) -> None:
    depot.team.order(orders.Publish(1, evaluation=False))
    depot.team.save(1)
    depot.team.order(orders.Train(1, 5, ()))
    await settle()
    publish, save = (depot.ranks[0].last(kind) for kind in (Publish, SaveState))
    assert depot.ranks[0].all(Train) == [Train(1, 5, (), publish=publish, save=save)]
