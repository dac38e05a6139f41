"""Members that denoise together over real gloo groups: the images of one process, whatever happens
to the group in the middle of a batch.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from group_kit import (
    STEPS,
    Crewman,
    GroupCrew,
    Steps,
    Tensors,
    alone,
    assert_same,
    open_crew,
    quiet_process,
    tiny_models,
    trainable,
    until,
    wanted,
)
from runtime_kit import Cluster

from spotlight.actors.protocol import (
    CommitSteps,
    Completed,
    Follow,
    LeaseFailed,
    Recall,
    ReturnLease,
    Revoke,
)
from spotlight.actors.worker.torch_collective import TorchCollective
from spotlight.diffusion.model import DiffusionModel
from spotlight.diffusion.samplers import Denoising
from spotlight.errors import CannotShard
from spotlight.timings import Timings, WorkerTimings
from spotlight.types import Commit

BATCH = wanted(1, 2, 3)
OTHER = wanted(4, 5)


def returned(worker: Crewman, lease: int) -> ReturnLease:
    """What a worker says that gives a batch back."""
    return ReturnLease(worker.name, 1, lease)


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    with quiet_process():
        yield


@pytest.fixture(scope="module")
def models() -> list[DiffusionModel]:
    return tiny_models(4)


@pytest.fixture(scope="module")
def weights(models: list[DiffusionModel]) -> Tensors:
    return trainable(models[0])


@pytest.fixture(scope="module")
def expected(models: list[DiffusionModel], weights: Tensors) -> Tensors:
    return alone(models[0], weights, BATCH)


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> Iterator[Steps]:
    steps = Steps(monkeypatch)
    yield steps
    steps.go_on()


@pytest.fixture
def timings() -> Timings:
    """Of the crew; a test that needs others names them."""
    return Timings()


@pytest.fixture
async def crew(
    tmp_path: Path,
    steps: Steps,
    models: list[DiffusionModel],
    weights: Tensors,
    monkeypatch: pytest.MonkeyPatch,
    timings: Timings,
) -> AsyncIterator[GroupCrew]:
    async with Cluster() as cluster:
        crew = await open_crew(cluster, tmp_path / "store", models, weights, monkeypatch, timings)
        yield crew
        steps.go_on()
        assert all(worker.is_there() for worker in crew.workers), "a member crashed"
        await crew.part()
        await crew.close()


# --- together ---


@pytest.mark.parametrize("degree", [2, 4])
async def test_a_group_makes_the_images_of_one_process_and_all_ranks_agree(
    crew: GroupCrew, steps: Steps, expected: Tensors, degree: int
) -> None:
    workers = crew.workers[:degree]
    await crew.form(*workers)
    lease = crew.denoise(workers[0], BATCH)
    assert_same(await crew.samples(workers[0], lease), expected)
    done = workers[0].leader.last(Completed)
    assert (done.steps, done.members) == (STEPS, degree)
    assert len(steps.taken) == STEPS * degree
    assert steps.disagreements() == []


async def test_a_ring_makes_the_same_images(crew: GroupCrew, expected: Tensors) -> None:
    await crew.form(*crew.workers, ring=2)
    lease = crew.denoise(crew.workers[0], BATCH)
    assert_same(await crew.samples(crew.workers[0], lease), expected)


async def test_commits_of_a_group_are_good_for_one_who_is_alone(
    crew: GroupCrew, expected: Tensors
) -> None:
    first, _, _, last = crew.workers
    await crew.form(*crew.workers[:2])
    await crew.samples(first, crew.denoise(first, BATCH, every=2))
    committed = first.leader.all(CommitSteps)[0]
    commits = tuple(Commit(committed.step, committed.bundle, row) for row in range(3))
    lease = crew.denoise(last, BATCH, commits)
    assert_same(await crew.samples(last, lease), expected)


async def test_the_next_batch_is_queued_behind_the_one_that_ends(
    crew: GroupCrew, steps: Steps, expected: Tensors, models: list[DiffusionModel], weights: Tensors
) -> None:
    first = crew.workers[0]
    await crew.form(*crew.workers[:2])
    leases = crew.denoise(first, BATCH), crew.denoise(first, OTHER)
    assert_same(await crew.samples(first, leases[0]), expected)
    other = await crew.samples(first, leases[1])
    assert steps.repeated() == []
    assert_same(other, alone(models[3], weights, OTHER))


# --- the group changes in the middle ---


@pytest.mark.parametrize(
    ("before", "after", "at_once"),
    [(1, 2, False), (2, 1, False), (2, 4, False), (4, 2, False), (2, 4, True), (4, 2, True)],
)
async def test_a_batch_goes_on_in_another_group_from_its_last_step(
    crew: GroupCrew, steps: Steps, expected: Tensors, before: int, after: int, at_once: bool
) -> None:
    first = crew.workers[0]
    await crew.form(*crew.workers[:before])
    steps.hold_after(2)
    lease = crew.denoise(first, BATCH)
    await steps.reached(2)
    epoch = crew.tell(*crew.workers[:after], at_once=at_once)
    for worker in crew.workers[after:before]:
        crew.tell(worker, at_once=at_once)
    if at_once:
        await until(lambda: first.formed(epoch))  # it does not wait for the step
    else:
        await asyncio.sleep(0.05)
        assert not first.formed(epoch), "a step is under way"
    steps.go_on()
    assert_same(await crew.samples(first, lease), expected)
    assert steps.repeated() == []
    assert steps.disagreements() == []
    assert [members for _, _, members in steps.led()][-1] == after
    done = first.leader.last(Completed)
    assert (done.steps, done.members) == (STEPS, 0)


@pytest.mark.parametrize("timings", [Timings(worker=WorkerTimings(repeat_s=0.02))])
@pytest.mark.parametrize("after", [1, 2, 4])
async def test_a_step_is_ended_in_the_group_that_began_it_however_long_it_takes(
    crew: GroupCrew,
    steps: Steps,
    expected: Tensors,
    after: int,
) -> None:
    first, second = crew.workers[:2]
    await crew.form(first, second)
    steps.hold_after(2)
    lease = crew.denoise(first, BATCH)
    await steps.reached(2)
    epoch = crew.tell(*crew.workers[:after])
    if after == 1:
        crew.tell(second)
    said = crew.messages["Follow"] + crew.messages["Introduce"]
    await asyncio.sleep(0.2)
    if after > 1:
        await until(lambda: crew.messages["Follow"] + crew.messages["Introduce"] > said + 5)
    assert not first.formed(epoch), "a step is under way"
    steps.go_on()
    assert_same(await crew.samples(first, lease), expected)
    assert crew.messages["CannotFollow"] == 0
    assert [(step, members) for _, step, members in steps.led()][2] == (3, 2)
    assert steps.repeated() == []


async def test_a_batch_and_the_one_behind_it_go_on_when_the_group_breaks(
    crew: GroupCrew, steps: Steps, expected: Tensors
) -> None:
    first, second = crew.workers[:2]
    await crew.form(first, second)
    steps.hold_after(2)
    leases = crew.denoise(first, BATCH), crew.denoise(first, OTHER)
    await steps.reached(2)
    await crew.form(first, at_once=True)
    await crew.form(second, at_once=True)
    steps.go_on()
    assert_same(await crew.samples(first, leases[0]), expected)
    await crew.samples(first, leases[1])
    assert steps.repeated() == []


async def test_a_follower_that_hangs_in_a_step_is_left_behind(
    crew: GroupCrew, steps: Steps, expected: Tensors
) -> None:
    first, second, third = crew.workers[:3]
    hangs, free = threading.Event(), threading.Event()

    def fails(rank: int, denoising: Denoising) -> None:
        if rank == 1 and denoising.steps_taken == 3 and not hangs.is_set():
            hangs.set()
            free.wait(30.0)

    steps.fails = fails
    await crew.form(first, second)
    lease = crew.denoise(first, BATCH)
    await until(hangs.is_set)
    await asyncio.sleep(0.1)  # rank 0 waits for it in the step
    epoch = crew.tell(first, third, at_once=True)
    try:
        await until(lambda: first.formed(epoch) and third.formed(epoch))
        assert_same(await crew.samples(first, lease), expected)
    finally:
        free.set()
    await crew.form(second, at_once=True)
    assert steps.repeated() == []
    assert steps.disagreements() == []


async def test_a_member_that_loses_rank_0_commits_and_gives_its_batches_back(
    crew: GroupCrew, steps: Steps, expected: Tensors
) -> None:
    first, second = crew.workers[:2]
    await crew.form(first, second)
    steps.hold_after(3)
    running, queued = crew.denoise(first, BATCH), crew.denoise(first, OTHER)
    await steps.reached(3)
    epoch = crew.tell(second, first, at_once=True)
    await until(lambda: first.formed(epoch) and second.formed(epoch))
    assert await crew.answer(first, running) == returned(first, running)
    assert await crew.answer(first, queued) == returned(first, queued)
    committed = first.leader.last(CommitSteps)
    assert committed.step == 3
    steps.go_on()
    commits = tuple(Commit(3, committed.bundle, row) for row in range(3))
    lease = crew.denoise(second, BATCH, commits)
    assert_same(await crew.samples(second, lease), expected)
    assert steps.repeated() == []


async def test_a_batch_for_a_member_that_follows_is_given_back(crew: GroupCrew) -> None:
    await crew.form(*crew.workers[:2])
    lease = crew.denoise(crew.workers[1], BATCH)
    assert await crew.answer(crew.workers[1], lease) == returned(crew.workers[1], lease)


async def test_the_group_that_breaks_while_images_are_decoded_costs_nothing(
    crew: GroupCrew,
    steps: Steps,
    expected: Tensors,
    models: list[DiffusionModel],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first, second = crew.workers[:2]
    decoding, free = threading.Event(), threading.Event()
    decode = models[0].decode

    def slow(*arguments: object) -> object:
        decoding.set()
        free.wait(30.0)
        return decode(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(models[0], "decode", slow)
    await crew.form(first, second)
    lease = crew.denoise(first, BATCH)
    await until(decoding.is_set)
    epoch = crew.tell(first, at_once=True)
    await until(lambda: first.formed(epoch))
    free.set()
    assert_same(await crew.samples(first, lease), expected)
    assert len(steps.led()) == STEPS


async def test_a_thread_that_was_left_behind_loads_no_weights(
    crew: GroupCrew, models: list[DiffusionModel], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another one may denoise with others by then."""
    first, second = crew.workers[:2]
    loads, free, follows = threading.Event(), threading.Event(), threading.Event()
    load = models[0].load_trainable_state
    loaded: list[object] = []
    receive = TorchCollective.receive

    def received(collective: TorchCollective) -> Any:
        follows.set()
        return receive(collective)

    def slow(state: Tensors) -> None:
        loads.set()
        free.wait(30.0)
        load(state)

    monkeypatch.setattr(models[0], "load_trainable_state", slow)
    monkeypatch.setattr(models[1], "load_trainable_state", loaded.append)
    monkeypatch.setattr(TorchCollective, "receive", received)
    await crew.form(first, second)
    lease = crew.denoise(first, BATCH)
    await until(lambda: loads.is_set() and follows.is_set())
    stuck = [thread for thread in threading.enumerate() if thread.name == "accelerator"]
    await crew.form(second, at_once=True)
    free.set()  # rank 0 calls the thread that second has left behind
    await until(lambda: not all(thread.is_alive() for thread in stuck))
    await crew.form(first, at_once=True)
    await crew.samples(first, lease)
    assert loaded == []


# --- what breaks a group ---


async def test_a_step_that_fails_on_a_follower_names_it(crew: GroupCrew, steps: Steps) -> None:
    first, second = crew.workers[:2]

    def fails(rank: int, denoising: Denoising) -> None:
        if rank == 1:
            raise RuntimeError("out of memory")

    steps.fails = fails
    epoch = await crew.form(first, second)
    lease = crew.denoise(first, BATCH)
    await until(lambda: bool(second.failures(epoch)))
    assert second.failures(epoch) == [("RuntimeError: out of memory", ("w1",))]
    await crew.form(first, at_once=True)
    await crew.samples(first, lease)


async def test_a_step_that_fails_on_rank_0_breaks_the_group_and_alone_it_is_an_error(
    crew: GroupCrew, steps: Steps
) -> None:
    first, second = crew.workers[:2]

    def fails(rank: int, denoising: Denoising) -> None:
        if rank == 0:
            raise RuntimeError("out of memory")

    steps.fails = fails
    epoch = await crew.form(first, second)
    lease = crew.denoise(first, BATCH)
    await until(lambda: bool(first.failures(epoch)))
    assert "out of memory" in first.failures(epoch)[0][0]
    crew.tell(first, at_once=True)
    crew.tell(second, at_once=True)
    error = await crew.answer(first, lease)
    assert isinstance(error, LeaseFailed)
    assert "out of memory" in error.error
    steps.fails = lambda rank, denoising: None
    await crew.samples(first, crew.denoise(first, BATCH))


async def test_a_follower_without_the_weights_is_named_and_the_rest_can_go_on(
    crew: GroupCrew, expected: Tensors
) -> None:
    first, second = crew.workers[:2]
    await crew.hold(second, version=7)  # and drops version 0
    epoch = await crew.form(first, second)
    lease = crew.denoise(first, BATCH)
    await until(lambda: bool(first.failures(epoch)))
    assert first.failures(epoch) == [("w1: version 0 is not held here; held: [7]", ("w1",))]
    await crew.form(first, at_once=True)
    assert_same(await crew.samples(first, lease), expected)


async def test_a_follower_with_other_weights_of_the_same_version_is_named(
    crew: GroupCrew,
) -> None:
    first, second = crew.workers[:2]
    await crew.hold(second, factor=1.01)
    epoch = await crew.form(first, second)
    lease = crew.denoise(first, BATCH)
    await until(lambda: bool(first.failures(epoch)))
    assert first.failures(epoch)[0][1] == ("w1",)
    await crew.form(first, at_once=True)
    await crew.samples(first, lease)


@pytest.mark.parametrize(
    "timings",
    [
        Timings(
            worker=WorkerTimings(
                repeat_s=0.1,
                introduction_limit_s=0.3,
                leave_limit_s=0.5,
                meet_limit_s=0.6,
                connect_limit_s=0.7,
                order_limit_s=1.3,
            )
        )
    ],
)
async def test_without_any_order_after_a_failure_the_batch_is_committed_and_given_back(
    crew: GroupCrew, steps: Steps, expected: Tensors
) -> None:
    first, second = crew.workers[:2]

    def fails(rank: int, denoising: Denoising) -> None:
        if rank == 1 and denoising.steps_taken == 3:
            raise RuntimeError("out of memory")

    steps.fails = fails
    await crew.form(first, second)
    lease = crew.denoise(first, BATCH)
    assert await crew.answer(first, lease) == returned(first, lease)
    committed = first.leader.last(CommitSteps)
    assert committed.step == 3
    steps.fails = lambda rank, denoising: None
    await crew.form(first, at_once=True)
    commits = tuple(Commit(3, committed.bundle, row) for row in range(3))
    assert_same(await crew.samples(first, crew.denoise(first, BATCH, commits)), expected)


async def test_a_step_that_cannot_be_shared_out_is_nobodys_fault(
    crew: GroupCrew, steps: Steps
) -> None:
    first, second = crew.workers[:2]

    def fails(rank: int, denoising: Denoising) -> None:
        raise CannotShard("2 heads")

    steps.fails = fails
    epoch = await crew.form(first, second)
    lease = crew.denoise(first, BATCH)
    await until(lambda: bool(first.failures(epoch) and second.failures(epoch)))
    culprits = [worker.failures(epoch)[0][1] for worker in (first, second)]
    assert culprits == [(), ()]
    steps.fails = lambda rank, denoising: None
    await crew.form(first, at_once=True)
    await crew.samples(first, lease)


async def test_a_call_to_follow_an_old_group_is_harmless(
    crew: GroupCrew, expected: Tensors, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = crew.workers[:2]
    old = await crew.form(first, second)
    await crew.form(first, second)
    capsys.readouterr()
    first.system.tell(second.member, Follow(old, 1, BATCH, 0), sender=first.member)
    lease = crew.denoise(first, BATCH)
    assert_same(await crew.samples(first, lease), expected)
    said = capsys.readouterr().out
    assert "old_epoch_refused" in said
    assert f"epoch={old}" in said


# --- words that are lost ---


impatient = pytest.mark.parametrize("timings", [Timings(worker=WorkerTimings(repeat_s=0.1))])


@impatient
async def test_a_call_to_follow_that_is_lost_is_said_again(
    crew: GroupCrew, expected: Tensors, steps: Steps
) -> None:
    await crew.form(*crew.workers[:2])
    crew.lose("Follow")
    lease = crew.denoise(crew.workers[0], BATCH)
    assert_same(await crew.samples(crew.workers[0], lease), expected)
    assert crew.messages["Follow"] >= 2
    assert steps.repeated() == []


@impatient
async def test_a_call_that_is_said_again_is_followed_once(
    crew: GroupCrew, expected: Tensors, steps: Steps
) -> None:
    first, second = crew.workers[:2]
    await crew.form(first, second)
    steps.hold_after(2)
    lease = crew.denoise(first, BATCH)
    await steps.reached(2)
    await until(lambda: crew.messages["Follow"] >= 4)
    steps.go_on()
    assert_same(await crew.samples(first, lease), expected)
    await crew.samples(first, crew.denoise(first, OTHER))
    assert second.failures() == []


@impatient
async def test_a_refusal_that_is_lost_is_said_again(crew: GroupCrew) -> None:
    first, second = crew.workers[:2]
    await crew.hold(second, version=7)
    epoch = await crew.form(first, second)
    crew.lose("CannotFollow")
    lease = crew.denoise(first, BATCH)
    await until(lambda: bool(first.failures(epoch)))
    assert crew.messages["CannotFollow"] == 2
    await crew.form(first, at_once=True)
    await crew.samples(first, lease)


# --- stopping in the middle ---


async def test_a_batch_that_is_revoked_lets_the_followers_go(
    crew: GroupCrew, steps: Steps, expected: Tensors
) -> None:
    first = crew.workers[0]
    await crew.form(*crew.workers[:2])
    steps.hold_after(2)
    lease = crew.denoise(first, OTHER)
    await steps.reached(2)
    await first.ask(Revoke((lease,)))
    steps.go_on()
    assert_same(await crew.samples(first, crew.denoise(first, BATCH)), expected)
    assert first.failures() == []


async def test_a_batch_that_is_recalled_is_committed_and_the_followers_are_let_go(
    crew: GroupCrew, steps: Steps, expected: Tensors
) -> None:
    first = crew.workers[0]
    await crew.form(*crew.workers[:2])
    steps.hold_after(2)
    lease = crew.denoise(first, BATCH)
    await steps.reached(2)
    await first.ask(Recall((lease,)))
    steps.go_on()
    assert await crew.answer(first, lease) == returned(first, lease)
    committed = first.leader.last(CommitSteps)
    commits = tuple(Commit(committed.step, committed.bundle, row) for row in range(3))
    lease = crew.denoise(first, BATCH, commits)
    assert_same(await crew.samples(first, lease), expected)
    assert steps.repeated() == []


async def test_a_group_whose_node_must_leave_goes_on_until_the_time_is_up(
    crew: GroupCrew, steps: Steps
) -> None:
    first, second = crew.workers[:2]
    await crew.form(first, second)
    steps.hold_after(1)
    lease = crew.denoise(first, BATCH)
    await steps.reached(1)
    for worker in (first, second):
        await worker.drain(1000.0)
    steps.hold_after(3)
    await until(lambda: bool(first.leader.all(CommitSteps)))
    for worker in (first, second):
        await worker.drain(0.0)
    steps.go_on()
    assert await crew.answer(first, lease) == returned(first, lease)
    taken = steps.led()[-1][1]
    assert first.leader.last(CommitSteps).step == taken
    assert {members for _, _, members in steps.led()} == {2}


async def test_a_new_job_goes_on_in_the_groups_of_the_last_one(
    crew: GroupCrew, steps: Steps, expected: Tensors
) -> None:
    first, second = crew.workers[:2]
    await crew.form(first, second)
    steps.hold_after(2)
    crew.denoise(first, BATCH)
    await steps.reached(2)
    for worker in (first, second):
        await worker.end_job()
    steps.go_on()
    for worker in (first, second):
        await crew.prepare(worker)
        await crew.hold(worker)
    lease = crew.denoise(first, BATCH)
    assert_same(await crew.samples(first, lease), expected)
