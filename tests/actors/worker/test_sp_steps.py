"""Members that denoise together make the images of one process, and stop together."""

from __future__ import annotations

import pytest
from group_kit import STEPS, GroupCrew, Steps, Tensors, alone, assert_same, until
from sp_steps_kit import *  # noqa: F403  (its fixtures)
from sp_steps_kit import BATCH, OTHER, returned

from spotlight.actors.protocol.down import Recall, Revoke
from spotlight.actors.protocol.up import CommitSteps, Completed
from spotlight.diffusion.model import DiffusionModel
from spotlight.types import Commit

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
