"""Members whose group changes in the middle of a batch make the images of one process."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from group_kit import STEPS, GroupCrew, Steps, Tensors, assert_same, until
from sp_steps_kit import *  # noqa: F403  (its fixtures)
from sp_steps_kit import BATCH, OTHER, returned

from spotlight.actors.protocol.up import CommitSteps, Completed
from spotlight.actors.worker.torch_collective import TorchCollective
from spotlight.diffusion.model import DiffusionModel
from spotlight.diffusion.samplers import Denoising
from spotlight.timings import Timings, WorkerTimings
from spotlight.types import Commit


@pytest.mark.parametrize(
    ("before", "after", "at_once"),
    [(1, 2, False), (4, 2, False), (2, 4, True), (2, 1, True)],
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
@pytest.mark.parametrize("after", [1, 4])
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
