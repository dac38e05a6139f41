"""What a trainer rank leaves in stores: weights, states, exported files."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from job_kit import recorder
from msgspec import structs
from rank_kit import (
    Gym,
    errors,
    open_gym,
    published,
    saved,
    settle,
    trained,
)

from spotlight.actors.protocol.trainer import (
    ExportedModel,
    ExportModel,
    Publish,
    SavedState,
    SaveState,
    TrainerReport,
)

pytestmark = pytest.mark.virtual_time


@pytest.fixture
async def gym(tmp_path: Path) -> AsyncIterator[Gym]:
    async with open_gym(tmp_path) as gym:
        yield gym


async def test_what_is_to_be_taken_of_the_weights_is_taken_before_they_are_trained(
    gym: Gym,
) -> None:
    """Though the orders for it were lost."""
    await gym.start()
    here = gym.store.writable_by("node")
    publish, save = Publish(0, True, here), SaveState(0, (here,))
    await gym.tell(structs.replace(gym.batch(0), publish=publish, save=save))
    assert errors(gym.runner) == []
    (offer,), (state,) = published(gym.runner), saved(gym.runner)
    assert await gym.engine.fetch(offer.rollout[0]) == b"rollout 0"
    assert await gym.engine.fetch(offer.evaluation[0]) == b"evaluation 0"
    assert await gym.engine.fetch(state.offers[0]) == b"state 0"
    assert len(trained(gym.runner)) == 1


async def test_training_does_not_wait_for_a_store(gym: Gym) -> None:
    await gym.start()
    gym.engine.uploads_to_fail = 3
    here = gym.store.writable_by("node")
    publish, save = Publish(0, False, here), SaveState(0, (here,))
    await gym.tell(structs.replace(gym.batch(0), publish=publish, save=save))
    assert len(trained(gym.runner)) == 1
    assert (published(gym.runner), saved(gym.runner)) == ([], [])
    await asyncio.sleep(20.0)
    ((offer,),) = (each.rollout for each in published(gym.runner))
    assert await gym.engine.fetch(offer) == b"rollout 0"
    assert len(saved(gym.runner)) == 1


async def test_a_state_that_is_gone_since_is_left_nowhere(gym: Gym) -> None:
    """A coordinator that came back does not know that the one before had it trained on."""
    await gym.start()
    await gym.tell(gym.batch(0))
    await gym.tell(SaveState(0, (gym.store.writable_by("node"),)))
    assert saved(gym.runner) == [SavedState(0, ())]
    assert errors(gym.runner) == []


async def test_weights_are_published_to_whoever_asks_as_often_as_they_ask(gym: Gym) -> None:
    await gym.start()
    await gym.tell(gym.batch(0))
    successor = await recorder(gym.system, "successor")
    publish = Publish(1, False, gym.store.writable_by("node"))
    await gym.tell(publish)
    await gym.tell(publish)
    await gym.prepare(successor)
    for order in (publish, gym.batch(1), publish):  # the last is a reminder that was on its way
        successor.tell(gym.rank, order)
        await settle()
    assert len(published(gym.runner)) == len(published(successor)) == 2
    assert len({*published(gym.runner), *published(successor)}) == 1
    assert errors(successor) == []


async def test_weights_of_another_version_than_asked_for_are_never_published(gym: Gym) -> None:
    await gym.start()
    async with gym.context.accelerator_turn():
        await gym.tell(gym.batch(0))
        await gym.tell(
            Publish(0, False, gym.store.writable_by("node"))
        )  # queued behind the training
    await settle()
    assert published(gym.runner) == []
    assert "asked to publish iteration 0, but" in errors(gym.runner)[-1]
    await gym.tell(Publish(2, False, gym.store.writable_by("node")))
    assert "asked to publish iteration 2, but 1 are trained" in errors(gym.runner)[-1]


@pytest.mark.parametrize("late", ["publish", "save"])
async def test_nothing_is_taken_of_weights_between_two_updates(gym: Gym, late: str) -> None:
    """They are those of no iteration."""
    gym.engine.trainer.updates_of_a_batch = 3
    here = gym.store.writable_by("node")
    asked: list[int] = []

    def ask(place: int) -> None:
        order = Publish(0, False, here) if late == "publish" else SaveState(0, (here,))
        if not asked and gym.engine.trainer.updates == 1:
            asked.append(place)
            gym.runner.tell(gym.rank, order)

    gym.engine.trainer.while_it_computes = ask
    await gym.start()
    await gym.tell(gym.batch(0))
    await settle()
    assert asked and len(trained(gym.runner)) == 1
    assert published(gym.runner) == []
    assert saved(gym.runner) == ([] if late == "publish" else [SavedState(0, ())])


async def test_the_state_is_left_in_every_store_of_the_order(gym: Gym) -> None:
    await gym.start()
    await gym.tell(gym.batch(0))
    stores = tuple(structs.replace(gym.store.endpoint, machine=name) for name in ("here", "there"))
    await gym.tell(SaveState(1, stores))
    metadata = {"job": "job", "completed": "1"}
    assert gym.engine.saved == [(each, "state/1-0", metadata) for each in stores]
    (answer,) = saved(gym.runner)
    assert answer.iteration == 1
    assert [offer.store.machine for offer in answer.offers] == ["here", "there"]
    assert await gym.engine.fetch(answer.offers[0]) == b"state 1"


async def test_the_state_is_left_once_however_often_it_is_asked_for(gym: Gym) -> None:
    await gym.start()
    order = SaveState(0, (gym.store.writable_by("node"),))
    await gym.tell(order)
    await gym.tell(order)
    assert len(gym.engine.saved) == 1
    first, second = saved(gym.runner)
    assert first == second


async def test_a_coordinator_that_came_back_is_left_the_state_where_its_store_is_now(
    gym: Gym,
) -> None:
    await gym.start()
    await gym.tell(SaveState(0, (gym.store.writable_by("node"),)))
    await gym.tell(SaveState(0, (gym.store.writable_by("node again"),)))
    assert len(gym.engine.saved) == len(saved(gym.runner)) == 2


async def test_only_the_state_of_what_is_trained_is_saved(gym: Gym) -> None:
    await gym.start()
    await gym.tell(gym.batch(0))
    await gym.tell(SaveState(2, (gym.store.writable_by("node"),)))
    assert (gym.engine.saved, saved(gym.runner)) == ([], [])
    assert "asked to save iteration 2, but 1 are trained" in errors(gym.runner)[-1]


async def test_the_state_is_left_when_the_store_is_back(gym: Gym) -> None:
    """As it was when it was asked for, though training may have gone on since."""
    await gym.start()
    gym.engine.uploads_to_fail = 2
    await gym.tell(SaveState(0, (gym.store.writable_by("node"),)))
    await gym.tell(gym.batch(0))
    await asyncio.sleep(10.0)
    (answer,) = saved(gym.runner)
    assert await gym.engine.fetch(answer.offers[0]) == b"state 0"
    assert errors(gym.runner) == []


async def test_the_weights_of_a_checkpoint_are_exported_when_asked_for(gym: Gym) -> None:
    await gym.start()
    await gym.tell(gym.batch(0))
    checkpoint = gym.state()
    await gym.tell(ExportModel(1, 0, checkpoint, gym.store.writable_by("node")))
    assert gym.engine.exported == [checkpoint]
    exported = gym.runner.last(TrainerReport).exported
    assert exported == ExportedModel(0, (gym.store.put("export/weights", b"weights"),))


async def test_weights_are_published_when_the_nodes_store_is_back(gym: Gym) -> None:
    """Its node stood still for a while."""
    gym.engine.uploads_to_fail = 3
    await gym.start()
    await gym.tell(Publish(0, False, gym.store.writable_by("node")))
    await asyncio.sleep(10.0)
    assert [each.version for each in published(gym.runner)] == [0]
    assert errors(gym.runner) == []
