"""A trainer rank: it trains once per iteration, and every error becomes a message."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import torch
from job_kit import recorder
from msgspec import structs
from plan_kit import Planner
from rank_kit import (
    Gym,
    built,
    errors,
    open_gym,
    reports,
    settle,
    start,
    trained,
)

from spotlight.actors.protocol.down import Membership
from spotlight.actors.protocol.trainer import (
    ExportModel,
    Publish,
    SaveState,
    Train,
    TrainedIteration,
    TrainerReport,
)
from spotlight.errors import TrainingDiverged, TransportError

pytestmark = pytest.mark.virtual_time


@pytest.fixture
async def gym(tmp_path: Path) -> AsyncIterator[Gym]:
    async with open_gym(tmp_path) as gym:
        yield gym


async def test_it_says_when_it_is_built(gym: Gym) -> None:
    await gym.start()
    assert gym.runner.inbox == [TrainerReport(1, 0, 0)]


async def test_the_same_term_builds_once_and_another_one_again(gym: Gym) -> None:
    async with gym.context.accelerator_turn():
        await gym.start()
        await gym.start()
    await settle()
    await gym.tell(gym.batch(0))
    await gym.start()
    assert built(gym.runner) == [TrainerReport(1, 0, 0)] * 2
    assert (gym.engine.built, await gym.completed()) == (1, 1)
    await gym.start(term=2)
    assert (gym.engine.built, await gym.completed()) == (2, 0)


async def test_what_was_ordered_of_ranks_that_were_given_up_is_not_done(gym: Gym) -> None:
    await gym.start()
    async with gym.context.accelerator_turn():
        await gym.tell(gym.batch(0))
        await gym.start(term=2)
    await settle()
    assert trained(gym.runner) == []
    assert gym.engine.trainer.batches == [], "it would take the time of those that came after"
    assert await gym.completed() == 0


async def test_another_job_in_the_plan_frees_the_trainer(gym: Gym) -> None:
    await gym.start()
    await gym.prepare(gym.runner)
    assert await gym.completed() == 0, "it is of the job in the plan"
    await gym.prepare(gym.runner, "another")
    assert await gym.completed() == -1


async def test_samples_are_fetched_from_where_the_coordinator_that_came_back_has_them(
    gym: Gym,
) -> None:
    order = gym.batch(0)
    away = [
        structs.replace(
            sample,
            bundle=structs.replace(
                sample.bundle, store=structs.replace(sample.bundle.store, token="gone")
            ),
        )
        for sample in order.samples
    ]
    await gym.start()
    await gym.tell(structs.replace(order, samples=tuple(away)))
    assert await gym.completed() == 0
    await gym.tell(order)
    await asyncio.sleep(2.0)
    assert await gym.completed() == 1
    assert len(trained(gym.runner)) == 1


async def test_it_trains_on_the_bundles_that_its_trainer_wants(gym: Gym) -> None:
    await gym.start()
    await gym.tell(gym.batch(0))
    ((iteration, bundles),) = gym.engine.trainer.batches
    assert iteration == 0
    assert bundles == {"samples/1.0": b"samples", "samples/2.0": b"samples"}
    assert trained(gym.runner)[-1].metrics == {"loss": 1.0}


async def test_a_repeated_train_is_answered_from_memory(gym: Gym) -> None:
    await gym.start()
    await gym.tell(gym.batch(0))
    await gym.tell(gym.batch(0))
    first, second = (each for each in reports(gym.runner) if each.trained is not None)
    assert first == second
    assert len(gym.engine.trainer.batches) == 1
    await gym.tell(gym.batch(1))
    assert len(gym.engine.trainer.batches) == 2


def part(message: Train, which: Any) -> Train:
    return structs.replace(message, part=which)


async def test_an_iteration_in_two_parts_is_trained_once_both_are(gym: Gym) -> None:
    await gym.start()
    await gym.tell(part(gym.batch(0), "first"))
    assert await gym.completed() == 0
    await gym.tell(part(gym.batch(0), "rest"))
    assert await gym.completed() == 1
    assert [(each.iteration, each.part) for each in trained(gym.runner)] == [
        (0, "first"),
        (0, "rest"),
    ]
    assert errors(gym.runner) == []


async def test_both_parts_are_answered_from_memory_when_both_are_trained(gym: Gym) -> None:
    """A coordinator that comes back begins with the first one."""
    await gym.start()
    orders = [part(gym.batch(0), "first"), part(gym.batch(0), "rest")]
    for order in (*orders, *orders):
        await gym.tell(order)
    assert len(gym.engine.trainer.batches) == 2
    assert [each.part for each in trained(gym.runner)] == ["first", "rest", "first", "rest"]


@pytest.mark.parametrize(
    ("before", "then", "problem"),
    [
        ([], "rest", "no part of the next one is trained"),
        (["first"], "whole", "the first part of the next one is trained"),
    ],
)
async def test_a_part_out_of_turn_is_refused(
    gym: Gym, before: list[str], then: str, problem: str
) -> None:
    await gym.start()
    for which in before:
        await gym.tell(part(gym.batch(0), which))
    trainings = len(gym.engine.trainer.batches)
    await gym.tell(part(gym.batch(0), then))
    assert problem in errors(gym.runner)[-1]
    assert len(gym.engine.trainer.batches) == trainings


async def test_nothing_is_published_between_the_two_parts_of_an_iteration(gym: Gym) -> None:
    """The weights would be those of no iteration."""
    await gym.start(completed=3)
    await gym.tell(part(gym.batch(3), "first"))
    await gym.tell(Publish(3, False, gym.store.endpoint))
    assert "the first part of the next one is trained" in errors(gym.runner)[-1]


async def test_a_state_that_was_asked_for_before_the_first_part_is_not_left_after_it(
    gym: Gym,
) -> None:
    await gym.start(completed=3)
    await gym.tell(part(gym.batch(3), "first"))
    await gym.tell(SaveState(3, (gym.store.endpoint,)))
    assert gym.engine.saved == []
    assert errors(gym.runner) == []


async def test_a_train_that_is_repeated_while_it_runs_is_answered_once_to_the_latest_asker(
    gym: Gym,
) -> None:
    await gym.start()
    successor = await recorder(gym.system, "successor")
    async with gym.context.accelerator_turn():
        await gym.tell(gym.batch(0))
        await gym.prepare(successor)
        successor.tell(gym.rank, gym.batch(0))
        await settle()
        assert await gym.completed() == 0
    await settle()
    assert len(gym.engine.trainer.batches) == 1
    (report,) = successor.inbox
    assert (report.term, report.rank, report.completed) == (1, 0, 1)
    assert report.trained == TrainedIteration(0, {"loss": 1.0}, report.trained.seconds)
    assert trained(gym.runner) == []


async def test_an_error_goes_to_the_latest_asker_too_and_the_iteration_may_be_tried_again(
    gym: Gym,
) -> None:
    await gym.start()
    successor = await recorder(gym.system, "successor")
    gym.engine.trainer.error = TrainingDiverged("the loss is nan")
    async with gym.context.accelerator_turn():
        await gym.tell(gym.batch(0))
        await gym.prepare(successor)
        successor.tell(gym.rank, gym.batch(0))
        await settle()
    await settle()
    assert len(errors(successor)) == 1
    gym.engine.trainer.error = None
    successor.tell(gym.rank, gym.batch(0))
    await settle()
    assert trained(successor)[-1].iteration == 0


@pytest.mark.parametrize(
    ("error", "where"),
    [(RuntimeError("no kernel"), "in begin"), (TrainingDiverged("the loss is nan"), "")],
    ids=["of a library", "ours"],
)
async def test_an_error_of_a_library_says_where_it_was_raised(
    gym: Gym, error: Exception, where: str
) -> None:
    await gym.start()
    gym.engine.trainer.error = error
    await gym.tell(gym.batch(0))
    (report,) = (each for each in gym.runner.all(TrainerReport) if each.error)
    assert where in report.traceback and bool(where) == bool(report.traceback)


async def test_it_says_how_many_iterations_are_trained(gym: Gym) -> None:
    assert await gym.completed() == -1
    await gym.start(completed=3)
    assert await gym.completed() == 3
    await gym.tell(gym.batch(3))
    await gym.tell(gym.batch(3))
    assert await gym.completed() == 4
    assert await gym.completed("another") == -1


@pytest.mark.parametrize("iteration", [2, 4])
async def test_an_iteration_out_of_turn_is_refused(gym: Gym, iteration: int) -> None:
    await gym.start(completed=3)
    await gym.tell(gym.batch(iteration))
    assert gym.engine.trainer.batches == []
    assert "3 are trained" in errors(gym.runner)[-1]
    assert await gym.completed() == 3


async def test_it_begins_from_a_state_that_a_store_has(gym: Gym) -> None:
    await gym.start(3, state=((gym.state(),),))
    assert gym.engine.begun_from == [b"a state"]
    assert await gym.completed() == 3


async def test_it_begins_with_the_jobs_model_where_there_is_no_state(gym: Gym) -> None:
    await gym.start()
    assert gym.engine.begun_from == [None]


async def test_the_state_is_had_from_the_next_one_when_the_first_has_none(gym: Gym) -> None:
    holders = gym.state("first", token="gone"), gym.state("second"), gym.state("third")
    await gym.start(3, state=(holders,))
    assert gym.engine.begun_from == [b"a state"]
    assert gym.engine.states_asked_of == ["first", "second"]
    assert errors(gym.runner) == []


async def test_the_state_is_asked_for_again_for_a_while(gym: Gym) -> None:
    away = gym.state(token="gone")
    await gym.start(3, state=((away,),))
    await asyncio.sleep(5.0)
    assert len(gym.engine.states_asked_of) > 1
    assert (gym.engine.built, errors(gym.runner)) == (0, [])


async def test_a_state_that_nobody_has_is_reported_as_lost(gym: Gym) -> None:
    await gym.start(3, state=((gym.state("a", token="gone"), gym.state("b", token="gone")),))
    await asyncio.sleep(2 * gym.context.timings.delivery.away_limit_s)
    report = gym.runner.last(TrainerReport)
    assert "TransferFailed" in report.error
    assert (report.lost_state, report.lost_others, report.completed) == (True, True, -1)
    assert gym.engine.built == 0


async def test_samples_that_nobody_has_are_no_lost_state(gym: Gym) -> None:
    await gym.start()
    order = gym.batch(0)
    gone = gym.state(token="gone")
    samples = tuple(structs.replace(sample, bundle=gone) for sample in order.samples)
    await gym.tell(structs.replace(order, samples=samples))
    await asyncio.sleep(2 * gym.context.timings.delivery.away_limit_s)
    report = gym.runner.last(TrainerReport)
    assert (report.lost_others, report.lost_state) == (True, False)


async def test_one_that_is_given_up_while_it_fetches_asks_for_nothing_more(gym: Gym) -> None:
    await gym.start(3, state=((gym.state("old", token="gone"),),))
    await gym.start(3, term=2, state=((gym.state("new"),),))
    asked = gym.engine.states_asked_of.copy()
    await asyncio.sleep(2 * gym.context.timings.delivery.away_limit_s)
    assert gym.engine.states_asked_of == asked, "only the new one's"
    assert (gym.engine.built, errors(gym.runner)) == (1, [])
    assert built(gym.runner) == [TrainerReport(2, 0, 3)]


async def test_an_error_of_the_trainer_becomes_a_message(gym: Gym) -> None:
    await gym.start()
    gym.engine.trainer.error = TrainingDiverged("the loss is nan")
    await gym.tell(gym.batch(0))
    error = "TrainingDiverged: the loss is nan"
    assert gym.runner.last(TrainerReport) == TrainerReport(1, 0, 0, error=error)
    assert trained(gym.runner) == []


async def test_work_for_a_job_that_has_ended_is_ignored(gym: Gym) -> None:
    await gym.start()
    await gym.end()
    await gym.tell(gym.batch(0))
    assert gym.engine.trainer.batches == []
    await gym.prepare(gym.runner)
    await gym.start(term=2)
    assert len(built(gym.runner)) == 2


async def test_an_order_of_nobody_ends_no_trainer(gym: Gym) -> None:
    """Whoever can reach the port may leave out who it is."""
    elsewhere = await gym.elsewhere("stranger")
    elsewhere.tell(gym.rank, start(term=99))
    await settle()
    await gym.start()
    assert (gym.engine.built, await gym.completed()) == (1, 0)
    assert gym.system.dead_letters.counts["not_allowed"] == 1


async def test_a_strangers_orders_are_refused(gym: Gym) -> None:
    """Whoever can reach the port: nothing is trained, written or deleted for them."""
    await gym.start()
    stranger = await recorder(gym.system, "stranger")
    orders = [
        gym.batch(0),
        Publish(0, False, gym.store.writable_by("node")),
        SaveState(0, (gym.store.writable_by("node"),)),
        ExportModel(0, 0, gym.state(), gym.store.writable_by("node")),
        start(term=99),
    ]
    for order in orders:
        stranger.tell(gym.rank, order)
    await settle()
    assert stranger.inbox == []
    assert gym.engine.trainer.batches == []
    assert (gym.engine.saved, gym.engine.exported) == ([], [])
    assert (gym.engine.built, await gym.completed()) == (1, 0)
    assert gym.system.dead_letters.counts["not_allowed"] == len(orders) - 1


async def test_only_the_node_says_whose_orders_count(gym: Gym) -> None:
    stranger = await recorder(await gym.elsewhere("stranger"), "stranger")
    membership = Membership(*[stranger.ref] * 2, gym.store.writable_by("node"))
    stranger.tell(gym.rank, Planner().prepare(membership))
    stranger.tell(gym.rank, start(term=9))
    await settle()
    assert gym.engine.built == 0


async def test_an_order_that_comes_before_its_runner_is_named_waits_for_that(gym: Gym) -> None:
    successor = await recorder(await gym.elsewhere("another"), "runner")
    successor.tell(gym.rank, start(term=2))
    await settle()
    assert gym.engine.built == 0
    await gym.prepare(successor)
    assert gym.engine.built == 1
    assert successor.inbox == [TrainerReport(2, 0, 0)]


async def test_rank_0_of_several_says_where_it_listens_as_often_as_it_is_told(gym: Gym) -> None:
    order = start(world=2)
    async with gym.context.accelerator_turn():
        await gym.tell(order)
        await gym.tell(order)
        first, second = reports(gym.runner)
        assert first == second
        assert first.completed == -1, "it is still being built"
        host, _, port = first.listens_at.rpartition(":")
        with socket.create_connection((host, int(port)), timeout=5.0):
            pass
    await settle()
    assert gym.engine.rendezvous == first.listens_at, "it meets the others where it says"


async def test_the_ranks_behind_the_first_meet_it_where_they_are_told(gym: Gym) -> None:
    await gym.tell(start(rank=1, world=2, rendezvous="somewhere:1"))
    await settle()
    assert gym.engine.rendezvous == "somewhere:1"


async def test_a_rank_that_others_have_replaced_frees_its_trainer(gym: Gym) -> None:
    await gym.start(term=2)
    await gym.replace_trainers(2)
    assert await gym.completed() == 0, "it is of that term itself"
    await gym.replace_trainers(3)
    assert await gym.completed() == -1


async def test_ranks_that_lost_each_other_say_so(gym: Gym) -> None:
    await gym.start()
    gym.engine.trainer.error = TransportError("all-reduce: rank 0 of 2 lost its peers")
    await gym.tell(gym.batch(0))
    assert gym.runner.last(TrainerReport).lost_others


async def test_what_a_lost_accelerator_leaves_undone_is_not_answered(gym: Gym) -> None:
    """Its process ends, and others train; the job has not failed."""
    await gym.start()
    gym.engine.trainer.error = torch.AcceleratorError("CUDA error: device-side assert triggered")
    await gym.tell(gym.batch(0))
    assert gym.context.ends_because.startswith("the accelerator is lost: AcceleratorError")
    assert trained(gym.runner) == []
    assert not any(answer.error for answer in gym.runner.all(TrainerReport))
