"""What breaks a group is named, lost words are said again, and the batch goes on without it."""

from __future__ import annotations

import pytest
from group_kit import GroupCrew, Steps, Tensors, assert_same, until
from sp_steps_kit import *  # noqa: F403  (its fixtures)
from sp_steps_kit import BATCH, OTHER, returned

from spotlight.actors.protocol.peers import Follow
from spotlight.actors.protocol.up import CommitSteps, LeaseFailed
from spotlight.diffusion.samplers import Denoising
from spotlight.errors import CannotShard
from spotlight.timings import Timings, WorkerTimings
from spotlight.types import Commit

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
