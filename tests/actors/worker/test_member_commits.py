"""A member commits now and then, another one goes on to the same bits, and results wait."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
import torch
from member_commits_kit import *  # noqa: F403  (its fixtures)
from member_kit import (
    NOISY,
    PLAIN,
    STEPS,
    Gate,
    SlowSink,
    Tensors,
    Worker,
    assert_same_bits,
    rows,
    steps_of,
    until,
    wanted,
)

from spotlight.actors.protocol.up import CommitSteps, Completed, LeaseFailed
from spotlight.timings import DeliveryTimings, NodeTimings, Timings
from spotlight.transport.tensors import BundleStore
from spotlight.types import Commit

# --- going on ---


@pytest.mark.parametrize(
    ("step", "settings"), [(2, NOISY), (STEPS - 1, NOISY), (1, PLAIN)], ids=["in", "after", "ode"]
)
async def test_another_member_goes_on_from_any_step_to_the_same_bits(
    workers: tuple[Worker, Worker], gate: Gate, step: int, settings: Any
) -> None:
    first, second = workers
    whole = await gate.run(first, wanted(1, 2, 3, settings=settings), step)
    gate.open()
    commits = tuple(Commit(step, first.committed(step), row) for row in range(3))
    second.denoise(wanted(1, 2, 3, settings=settings), commits)
    assert_same_bits(await second.done(), whole)
    last = second.leader.last(Completed)
    assert last.steps == STEPS - step
    assert last.seconds > 0.0


async def test_it_goes_on_in_another_company_and_order(
    workers: tuple[Worker, Worker], gate: Gate
) -> None:
    step = 2
    first, second = workers
    of_first = await gate.run(first, wanted(1, 2, 3), step)
    of_second = await gate.run(second, wanted(4, 5), step)
    gate.open()
    numbers = (5, 3, 1)
    origin = {n: (first, n - 1) for n in (1, 2, 3)} | {n: (second, n - 4) for n in (4, 5)}
    commits = tuple(Commit(step, origin[n][0].committed(step), origin[n][1]) for n in numbers)
    second.leader.inbox.clear()
    second.denoise(wanted(*numbers), commits)
    mixed = await second.done()
    assert_same_bits(rows(mixed, 0), rows(of_second, 1))
    assert_same_bits(rows(mixed, 1, 2), rows(of_first, 2, 0))


async def test_a_batch_that_is_stopped_at_every_step_comes_to_the_same_bits(
    workers: tuple[Worker, Worker], gate: Gate
) -> None:
    gate.open(STEPS)
    workers[0].denoise(wanted(1, 2))
    whole = await workers[0].done()
    commits: tuple[Commit | None, ...] = ()
    for turn in range(STEPS - 1):
        worker = workers[turn % 2]
        worker.leader.inbox.clear()
        worker.denoise(wanted(1, 2), commits)
        await gate.reached(STEPS + turn + 1)
        await worker.drain(0.0)
        gate.open(1)
        committed, _ = await worker.hears(2)
        assert isinstance(committed, CommitSteps)
        assert committed.step == turn + 1
        commits = tuple(Commit(committed.step, committed.bundle, row) for row in range(2))
        await worker.drain(None)
    gate.open()
    workers[0].leader.inbox.clear()
    workers[0].denoise(wanted(1, 2), commits)
    assert_same_bits(await workers[0].done(), whole)


# --- when it commits ---


async def test_it_commits_every_so_many_steps_and_after_the_last(
    workers: tuple[Worker, Worker], gate: Gate
) -> None:
    worker = workers[0]
    worker.denoise(wanted(1), every=2)
    for step in range(1, STEPS + 1):
        await gate.reached(step)
        await until(lambda done=(step - 1) // 2: len(steps_of(worker)) == done)
        gate.open(1)
    await worker.done()
    assert steps_of(worker) == [2, 4, STEPS]
    assert all(message.cost_s > 0.0 for message in worker.leader.all(CommitSteps))


async def test_without_an_interval_it_commits_only_after_the_last_step(
    workers: tuple[Worker, Worker],
) -> None:
    workers[0].denoise(wanted(1), every=0)
    await workers[0].done()
    assert steps_of(workers[0]) == [STEPS]


async def test_it_denoises_while_a_commit_is_delivered_and_then_delivers_the_latest(
    workers: tuple[Worker, Worker], gate: Gate, sink: SlowSink
) -> None:
    worker = workers[0]
    sink.free.clear()
    worker.denoise(wanted(1), every=1)
    gate.open(3)
    await gate.reached(4)  # three steps are taken, and the commit of the first is on its way
    await until(lambda: len(sink.keys) == 1)
    sink.free.set()
    await until(lambda: steps_of(worker) == [1])
    gate.open(1)
    await gate.reached(5)
    await until(lambda: steps_of(worker) == [1, 4])
    gate.open()
    await worker.done()


async def test_a_commit_that_is_not_delivered_by_the_end_is_dropped(
    workers: tuple[Worker, Worker], gate: Gate, sink: SlowSink
) -> None:
    worker = workers[0]
    sink.free.clear()
    worker.denoise(wanted(1), every=1)
    gate.open()
    await until(lambda: any("samples/" in key for key in sink.keys))
    sink.free.set()
    await worker.done()
    assert steps_of(worker) == [STEPS]


async def test_latents_that_are_not_finite_are_not_committed(
    workers: tuple[Worker, Worker], weights: Tensors
) -> None:
    worker = workers[0]
    await worker.hold({name: tensor * torch.nan for name, tensor in weights.items()})
    worker.denoise(wanted(1, 2), every=1)
    (answer,) = await worker.hears(1)
    assert isinstance(answer, LeaseFailed)
    assert len(answer.failed) == 2


# --- a coordinator that is away ---


async def test_results_go_to_the_sink_of_the_coordinator_that_comes_back(
    workers: tuple[Worker, Worker], sink: SlowSink, tmp_path: Path
) -> None:
    worker = workers[0]
    sink.fails = True
    worker.denoise(wanted(1))
    await until(lambda: len(sink.keys) > 2)
    successor = BundleStore(tmp_path / "successor", token="another")
    await successor.start()
    try:
        sink.fails = False
        await worker.store.aclose()
        await worker.prepare(successor)
        await worker.done()
        left = worker.leader.last(Completed).bundle
        assert left.store == successor.readable(left.key)
    finally:
        await successor.aclose()


@pytest.mark.parametrize(
    "timings",
    [
        Timings(
            delivery=DeliveryTimings(retry_pause_s=0.005, answer_limit_s=0.05, away_limit_s=0.1),
            node=NodeTimings(join_limit_s=0.03, report_s=0.06),
        )
    ],
)
async def test_a_sink_that_stays_away_is_an_error_in_the_end(
    workers: tuple[Worker, Worker], sink: SlowSink
) -> None:
    worker = workers[0]
    sink.fails = True
    worker.denoise(wanted(1), every=1)
    (answer,) = await worker.hears(1)
    assert isinstance(answer, LeaseFailed)
    assert answer.what == "denoising"


async def test_the_end_of_the_job_ends_the_waiting(
    workers: tuple[Worker, Worker], sink: SlowSink
) -> None:
    worker = workers[0]
    sink.fails = True
    worker.denoise(wanted(1))
    await until(lambda: len(sink.keys) > 1)
    await worker.end_job()
    await asyncio.sleep(0.02)
    tried = len(sink.keys)
    await asyncio.sleep(0.05)
    assert len(sink.keys) == tried
    assert worker.leader.inbox == []


async def test_a_version_that_was_trained_again_replaces_the_one_that_is_held(
    workers: tuple[Worker, Worker], weights: Tensors
) -> None:
    worker = workers[0]
    worker.denoise(wanted(1))
    before = await worker.done()
    await worker.hold({name: tensor * 1.05 for name, tensor in weights.items()})
    worker.leader.inbox.clear()
    worker.denoise(wanted(1))
    assert not torch.equal((await worker.done())["latents"], before["latents"])
