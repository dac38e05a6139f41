"""A member that must stop commits and gives back what it has not done."""

from __future__ import annotations

import asyncio

from member_commits_kit import *  # noqa: F403  (its fixtures)
from member_kit import STEPS, Gate, SlowSink, Worker, steps_of, until, wanted

from spotlight.actors.protocol.down import Recall, Revoke
from spotlight.actors.protocol.up import CommitSteps, Completed, ReturnLease
from spotlight.types import Commit


async def test_told_to_drain_it_commits_at_the_next_step_and_goes_on(
    workers: tuple[Worker, Worker], gate: Gate
) -> None:
    worker = workers[0]
    worker.denoise(wanted(1))
    await gate.reached(1)
    await worker.drain(1000.0)
    for step in range(1, STEPS):
        gate.open(1)
        await gate.reached(step + 1)
        await until(lambda so_far=list(range(1, step + 1)): steps_of(worker) == so_far)
    gate.open()
    await worker.done()
    assert worker.leader.all(ReturnLease) == []


async def test_at_the_time_to_stop_it_commits_and_yields(
    workers: tuple[Worker, Worker], gate: Gate
) -> None:
    worker = workers[0]
    worker.denoise(wanted(1))
    gate.open(2)
    await gate.reached(3)
    await worker.drain(0.0)
    gate.open(1)
    committed, returned = await worker.hears(2)
    assert isinstance(committed, CommitSteps)
    assert (committed.step, returned) == (3, worker.returned(1))


async def test_the_last_commit_waits_for_the_one_under_way(
    workers: tuple[Worker, Worker], gate: Gate, sink: SlowSink
) -> None:
    worker = workers[0]
    sink.free.clear()
    worker.denoise(wanted(1), every=1)
    gate.open(2)
    await gate.reached(3)
    await worker.drain(0.0)
    gate.open(1)
    await asyncio.sleep(0.05)
    assert worker.leader.inbox == []
    sink.free.set()
    await worker.hears(3)
    assert steps_of(worker) == [1, 3]
    assert worker.leader.inbox[-1] == worker.returned(1)


async def test_what_has_not_begun_is_given_back_at_once(
    workers: tuple[Worker, Worker], gate: Gate
) -> None:
    worker = workers[0]
    worker.denoise(wanted(1))
    await gate.reached(1)
    worker.denoise(wanted(2))
    await worker.prepare(worker.store)
    await worker.drain(1000.0)
    assert worker.leader.inbox == [worker.returned(2)]
    worker.denoise(wanted(3))
    assert (await worker.hears(2))[1] == worker.returned(3)
    gate.open()
    await worker.done()
    assert worker.leader.last(Completed).lease == 1


async def test_a_withdrawn_notice_lets_it_go_on(workers: tuple[Worker, Worker], gate: Gate) -> None:
    worker = workers[0]
    worker.denoise(wanted(1))
    await gate.reached(1)
    await worker.drain(0.0)
    await worker.drain(None)
    gate.open()
    await worker.done()
    assert steps_of(worker) == [STEPS]
    worker.denoise(wanted(2))
    await until(lambda: len(worker.leader.all(Completed)) == 2)


async def test_a_batch_that_is_stopped_before_its_first_step_leaves_no_commit(
    workers: tuple[Worker, Worker], gate: Gate
) -> None:
    first, worker = workers
    await gate.run(first, wanted(1), 1)
    held = Commit(1, first.committed(1), 0)
    async with worker.context.accelerator_turn():
        worker.denoise(wanted(1), (held,))
        await worker.prepare(worker.store)
        await worker.drain(0.0)
    assert await worker.hears(1) == [worker.returned(1)]


async def test_a_revoked_batch_stops_and_says_nothing(
    workers: tuple[Worker, Worker], gate: Gate
) -> None:
    worker = workers[0]
    worker.denoise(wanted(1), every=1)
    gate.open(1)
    await gate.reached(2)
    await until(lambda: steps_of(worker) == [1])
    await worker.ask(Revoke((1,)))
    gate.open()
    worker.denoise(wanted(2))
    await until(lambda: worker.leader.all(Completed) != [])
    assert worker.leader.last(Completed).lease == 2
    assert gate.begun == 2 + STEPS


async def test_a_recalled_batch_commits_at_the_next_step_and_yields_and_others_go_on(
    workers: tuple[Worker, Worker], gate: Gate
) -> None:
    worker = workers[0]
    worker.denoise(wanted(1))
    gate.open(1)
    await gate.reached(2)
    worker.denoise(wanted(2))
    await worker.ask(Recall((1, 7)))
    gate.open()
    await until(lambda: worker.leader.all(Completed) != [])
    committed, returned, _, done = worker.leader.inbox
    assert isinstance(committed, CommitSteps)
    assert (committed.step, returned) == (2, worker.returned(1))
    assert isinstance(done, Completed)
    assert done.lease == 2


async def test_a_batch_that_is_recalled_before_it_begins_is_given_back_at_once(
    workers: tuple[Worker, Worker], gate: Gate
) -> None:
    worker = workers[0]
    worker.denoise(wanted(1))
    await gate.reached(1)
    worker.denoise(wanted(2))
    await worker.ask(Recall((2,)))
    assert worker.leader.inbox == [worker.returned(2)]
    gate.open()
    await worker.done()
    assert steps_of(worker) == [STEPS]


async def test_a_batch_that_its_revocation_overtook_is_not_begun(
    workers: tuple[Worker, Worker], gate: Gate
) -> None:
    worker = workers[0]
    await worker.ask(Revoke((1,)))
    worker.denoise(wanted(1))
    worker.denoise(wanted(2))
    gate.open()
    await worker.done()
    assert worker.leader.last(Completed).lease == 2
    assert gate.begun == STEPS
