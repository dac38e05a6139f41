"""A coordinator that is killed and comes back, on virtual time: the run goes on as if nothing had
happened."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from job_kit import job
from town_kit import Town, calm, events, iterations, trained_samples, validated

from spotlight import failpoints
from spotlight.actors.protocol.trainer import Train
from spotlight.actors.protocol.users import CancelJob, JobAccepted, JobStatus
from spotlight.errors import JournalError
from spotlight.jobs import JobSpec

pytestmark = pytest.mark.virtual_time


def by_iteration(trained: list[Train]) -> dict[int, list[tuple[str, float]]]:
    """What was trained last of each iteration."""
    samples = trained_samples(trained)
    return {train.iteration: each for train, each in zip(trained, samples, strict=True)}


def all_recorded(end: JobStatus, spec: JobSpec) -> None:
    """Every iteration and validation is on record, once."""
    assert (end.outcome, end.reason) == ("finished", "")
    recorded = iterations(end.run_folder)
    assert [record["iteration"] for record in recorded] == list(range(spec.iterations))
    assert {record["samples"] for record in recorded} == {spec.samples_per_iteration}
    every = spec.validation.every
    wanted = [v for v in range(spec.iterations + 1) if v % every == 0 or v == spec.iterations]
    assert sorted(validated(end.run_folder)) == wanted


async def as_if_nothing_had_happened(town: Town, reference: list[Train], spec: JobSpec) -> None:
    """The same iterations, seeds and samples; no iteration is trained twice."""
    all_recorded(await town.ended(), spec)
    assert [train.iteration for train in town.world.trained] == list(range(spec.iterations))
    assert trained_samples(town.world.trained) == trained_samples(reference)
    assert len(town.world.started) == 1, "the trainers were not built again"


def rollout(now: JobStatus) -> bool:
    return now.phase == "rollout" and now.iteration == 1


def train(now: JobStatus) -> bool:
    return now.phase == "train" and now.iteration == 1


def publish(now: JobStatus) -> bool:
    return now.phase == "publish" and now.iteration == 1


async def in_the_rollout(town: Town) -> None:
    await town.wait(rollout)
    await asyncio.sleep(0.3)


async def in_training_while_exploring(town: Town) -> None:
    await town.wait(train)
    await asyncio.sleep(0.5)


async def in_training_after_exploring(town: Town) -> None:
    await town.wait(train)
    await asyncio.sleep(15.0)


async def exploring_after_training(town: Town) -> None:
    town.world.train_s = 0.2
    await town.wait(publish)
    assert 1 not in [record["iteration"] for record in iterations(await folder(town))]


async def while_publishing(town: Town) -> None:
    town.world.publish_s = 3.0
    await town.wait(publish)


async def before_the_first_weights(town: Town) -> None:
    town.world.publish_s = 3.0
    await asyncio.sleep(1.0)


async def while_saving(town: Town) -> None:
    town.world.save_s = 5.0
    await in_the_rollout(town)


async def at_the_last_validation(town: Town) -> None:
    await town.wait(lambda now: now.phase == "publish" and now.iteration == 3)
    await asyncio.sleep(1.5)


async def folder(town: Town) -> str:
    return (await town.status()).run_folder


MOMENTS = [
    before_the_first_weights,
    in_the_rollout,
    in_training_while_exploring,
    in_training_after_exploring,
    exploring_after_training,
    while_publishing,
    while_saving,
    at_the_last_validation,
]


@pytest.mark.sweep
@pytest.mark.parametrize("away_s", [0.0, 5.0, 60.0])
@pytest.mark.parametrize("moment", MOMENTS, ids=lambda moment: moment.__name__)
async def test_a_killed_coordinator_goes_on_with_the_same_iteration(
    town: Town, moment: Callable[..., object], away_s: float
) -> None:
    spec = job(validation={"every": 1})
    reference = await calm(town, spec)
    await town.submit(spec)
    await moment(town)
    await town.kill()
    await asyncio.sleep(away_s)
    await town.open()
    await as_if_nothing_had_happened(town, reference, spec)


@pytest.mark.sweep
@pytest.mark.parametrize("after_s", range(1, 67, 5))
async def test_a_coordinator_may_be_killed_at_any_time(town: Town, after_s: int) -> None:
    spec = job(validation={"every": 1})
    reference = await calm(town, spec)
    await town.submit(spec)
    await asyncio.sleep(after_s + 0.37)
    await town.kill()
    await asyncio.sleep(2.0)
    await town.open()
    await as_if_nothing_had_happened(town, reference, spec)


@pytest.mark.parametrize("moment", [in_the_rollout, in_training_while_exploring])
@pytest.mark.slow
async def test_what_exploration_has_learned_survives_a_kill(
    town: Town, moment: Callable[..., object]
) -> None:
    spec = job(exploration={"budget": "fixed", "mode": "bandit"})
    reference = await calm(town, spec)
    await town.submit(spec)
    await moment(town)
    await town.kill()
    await town.open()
    await as_if_nothing_had_happened(town, reference, spec)


@pytest.mark.slow
async def test_three_kills_in_a_row_change_nothing(town: Town) -> None:
    spec = job()
    reference = await calm(town, spec)
    await town.submit(spec)
    await in_the_rollout(town)
    for _ in range(3):
        await town.kill()
        await asyncio.sleep(0.7)
        await town.open()
        await asyncio.sleep(1.3)
    await as_if_nothing_had_happened(town, reference, spec)


@pytest.mark.slow
async def test_a_window_budget_goes_on_too(town: Town) -> None:
    spec = job(exploration={"budget": "window", "candidates": 8})
    await town.submit(spec)
    await in_training_while_exploring(town)
    await town.kill()
    await asyncio.sleep(2.0)
    await town.open()
    all_recorded(await town.ended(), spec)
    assert [train.iteration for train in town.world.trained] == [0, 1, 2]


async def test_a_coordinator_that_is_stopped_ends_no_job(town: Town) -> None:
    """As it is for an update: the next one goes on, and nothing says meanwhile that it is over."""
    spec = job(validation={"every": 1})
    reference = await calm(town, spec)
    await town.submit(spec)
    await in_the_rollout(town)
    run = await folder(town)
    await town.system.aclose()
    assert not events(run, "run_finished")
    await asyncio.sleep(5.0)
    await town.open()
    await as_if_nothing_had_happened(town, reference, spec)
    assert [event["outcome"] for event in events(run, "run_finished")] == ["finished"]


async def test_a_run_that_ended_is_not_begun_again(town: Town) -> None:
    await town.submit(job())
    await town.wait(rollout)
    await town.ask(CancelJob())
    await town.ended()
    await town.kill()
    await town.open()
    await asyncio.sleep(30.0)
    assert (await town.status()).outcome == "cancelled"


@pytest.mark.parametrize("checkpoint_every", [1, 2, 9])
@pytest.mark.parametrize("moment", [in_the_rollout, in_training_after_exploring])
@pytest.mark.slow
async def test_with_the_trainers_lost_too_it_goes_on_from_the_state_that_they_left(
    town: Town, moment: Callable[..., object], checkpoint_every: int
) -> None:
    spec = job(checkpoint_every=checkpoint_every)
    reference = await calm(town, spec)
    await town.submit(spec)
    await moment(town)
    await town.kill()
    await town.nodes["reserved"].abort()
    await town.join_later("reserved", "reserved", "reserved again")
    await town.open()
    all_recorded(await town.ended(), spec)
    assert [train.iteration for train in town.world.trained][-2:] == [1, 2]
    assert by_iteration(town.world.trained) == by_iteration(reference)
    begun = town.world.started[-1]
    assert begun.completed == 1
    assert begun.term > town.world.started[0].term


@pytest.mark.parametrize("checkpoint_every", [1, 2, 9])
@pytest.mark.parametrize("moment", [in_the_rollout, in_training_after_exploring])
@pytest.mark.slow
async def test_with_the_state_lost_too_it_goes_on_from_the_checkpoint(
    town: Town, moment: Callable[..., object], checkpoint_every: int
) -> None:
    spec = job(checkpoint_every=checkpoint_every, training={"ranks": 2})
    await town.join("second", "reserved")
    reference = await calm(town, spec)
    await town.submit(spec)
    await moment(town)
    artifacts = Path(await folder(town)) / "artifacts.d"
    await town.kill()
    shutil.rmtree(artifacts / "state", ignore_errors=True)
    for name in ("reserved", "second"):
        await town.nodes[name].abort()
        await town.join_later(name, "reserved", f"{name} again")
    await town.open()
    end = await town.ended()
    all_recorded(end, spec)
    saved = 1 if checkpoint_every == 1 else 0
    assert {start.completed for start in town.world.started[-2:]} == {saved}
    built = events(end.run_folder, "trainers_built")[-1]
    assert built["source"] == ("checkpoint" if saved else "model")
    assert by_iteration(town.world.trained) == by_iteration(reference)


@pytest.mark.slow
async def test_samples_of_weights_that_are_trained_again_are_denoised_again(town: Town) -> None:
    await town.join("second", "reserved")
    await town.submit(job(checkpoint_every=9, training={"ranks": 2}))
    await in_training_after_exploring(town)
    await town.kill()
    for name in ("reserved", "second"):
        await town.nodes[name].abort()
        await town.join_later(name, "reserved", f"{name} again")
    await town.open()
    assert (await town.ended()).outcome == "finished"
    counted = Counter((r.iteration, r.id) for _, r in town.world.granted if r.kind == "rollout")
    times = {i: {n for (of, _), n in counted.items() if of == i} for i in range(3)}
    assert times == {0: {2}, 1: {2}, 2: {1}}


@pytest.mark.slow
async def test_samples_that_lost_trainers_had_are_not_denoised_again(town: Town) -> None:
    await town.submit(job(checkpoint_every=9))
    await in_training_after_exploring(town)
    await town.kill()
    await town.nodes["reserved"].abort()
    await town.join_later("reserved", "reserved", "reserved again")
    await town.open()
    assert (await town.ended()).outcome == "finished"
    counted = Counter((r.iteration, r.id) for _, r in town.world.granted if r.kind == "rollout")
    assert set(counted.values()) == {1}


@pytest.mark.slow
async def test_every_node_may_be_lost_with_the_coordinator(town: Town) -> None:
    spec = job()
    reference = await calm(town, spec)
    await town.submit(spec)
    await in_the_rollout(town)
    await town.kill()
    for name in ("reserved", "spot"):
        await town.nodes[name].abort()
        await town.join_later(name, name, f"{name} again")
    await town.open()
    all_recorded(await town.ended(), spec)
    assert by_iteration(town.world.trained) == by_iteration(reference)


@pytest.mark.slow
async def test_a_trainer_that_joins_late_is_waited_for(town: Town) -> None:
    """Its node was cut off; another reserved one is there at once."""
    spec = job()
    reference = await calm(town, spec)
    await town.submit(spec)
    await in_the_rollout(town)
    await town.kill()
    await town.join_later("another", "reserved")
    await town.open()
    await as_if_nothing_had_happened(town, reference, spec)


async def test_a_disk_error_on_the_journal_ends_the_job_with_the_reason_and_it_resumes(
    town: Town,
) -> None:
    spec = job()
    reference = await calm(town, spec)
    await town.submit(spec)
    await in_the_rollout(town)

    with refusing(errno.EIO):
        end = await town.ended()
    assert end.outcome == "failed"
    assert "Input/output error" in end.reason
    assert "--resume" in end.reason
    await asyncio.sleep(5.0)
    assert (await town.status()).reason == end.reason
    assert sorted(town.world.freed) == ["reserved/0", "spot/0"]
    assert isinstance(await town.submit(None, end.run_folder, resume=True), JobAccepted)
    all_recorded(await town.ended(), spec)
    assert by_iteration(town.world.trained) == by_iteration(reference)


@contextmanager
def refusing(error: int) -> Iterator[None]:
    """No journal can be written."""

    def refuse(place: str) -> None:
        if place == "journal.commit":
            raise OSError(error, os.strerror(error))

    failpoints.install(refuse)
    try:
        yield
    finally:
        failpoints.install(None)


@pytest.mark.parametrize("full_s", [2.0, 300.0])
@pytest.mark.parametrize("moment", [in_the_rollout, in_training_while_exploring, while_saving])
async def test_a_job_waits_while_the_disk_is_full_and_goes_on_as_if_nothing_had_happened(
    town: Town, moment: Callable[..., object], full_s: float
) -> None:
    spec = job(validation={"every": 1})
    reference = await calm(town, spec)
    await town.submit(spec)
    await moment(town)
    with refusing(errno.ENOSPC):
        waiting = await town.wait(lambda now: bool(now.note))
        await asyncio.sleep(full_s)
    assert waiting.note.endswith("journal.records: No space left on device")
    assert (waiting.outcome, waiting.iteration) == ("", 1)
    await as_if_nothing_had_happened(town, reference, spec)
    assert len(events(waiting.run_folder, "run_finished")) == 1


async def test_a_coordinator_that_comes_back_to_a_full_disk_goes_on_when_it_has_room(
    town: Town,
) -> None:
    spec = job(validation={"every": 1})
    reference = await calm(town, spec)
    await town.submit(spec)
    await in_the_rollout(town)
    await town.kill()
    with refusing(errno.ENOSPC):
        await town.open()
        waiting = await town.wait(lambda now: bool(now.note))
        await asyncio.sleep(20.0)
    assert waiting.outcome == "" and "No space left on device" in waiting.note
    await as_if_nothing_had_happened(town, reference, spec)


async def test_a_disk_that_is_full_for_too_long_fails_the_job_which_can_be_resumed(
    town: Town,
) -> None:
    spec = job()
    reference = await calm(town, spec)
    await town.submit(spec)
    await in_the_rollout(town)
    with refusing(errno.ENOSPC):
        end = await town.wait(lambda now: bool(now.outcome), limit_s=4000.0)
    await asyncio.sleep(5.0)
    assert end.outcome == "failed" and "No space left on device" in end.reason
    assert sorted(town.world.freed) == ["reserved/0", "spot/0"]
    assert isinstance(await town.submit(None, end.run_folder, resume=True), JobAccepted)
    all_recorded(await town.ended(), spec)
    assert by_iteration(town.world.trained) == by_iteration(reference)


async def test_a_second_coordinator_on_the_same_runs_does_not_begin(town: Town) -> None:
    await town.submit(job())
    await in_the_rollout(town)
    system = await town.cluster.system("second")
    with pytest.raises(JournalError, match=r"queue\.records is in use by another coordinator"):
        await town.begin(system)
    assert (await town.ended()).outcome == "finished"


async def test_all_workers_are_told_the_term_of_trainers_that_are_found_again(town: Town) -> None:
    await town.submit(job())
    await in_the_rollout(town)
    before = town.world.started[0].term
    await town.kill()
    town.world.told_terms.clear()
    await town.open()
    assert (await town.ended()).outcome == "finished"
    assert set(town.world.told_terms.values()) == {before}


async def test_a_restart_is_recorded(town: Town) -> None:
    await town.submit(job())
    await in_the_rollout(town)
    await town.kill()
    await town.open()
    end = await town.ended()
    started = events(end.run_folder, "run_started")
    assert [event["resumed_from_iteration"] for event in started] == [None, 1]
    assert [event["iteration"] for event in events(end.run_folder, "trainers_found")] == [1]
    times = [event["time_s"] for event in events(end.run_folder, "phase")]
    assert times == sorted(times), "the clock goes on"
