"""A member that stops anywhere, and another that goes on: the same bits, or a refusal."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from member_kit import (
    NOISY,
    PERSISTENT,
    PLAIN,
    STEPS,
    Gate,
    SlowSink,
    Tensors,
    Worker,
    assert_same_bits,
    one_thread,
    rows,
    steps_of,
    tiny_weights,
    two_workers,
    until,
    wanted,
)
from msgspec.structs import replace
from scorer_kit import use_scorer

from spotlight.actors.protocol import (
    CommitSteps,
    Completed,
    LeaseFailed,
    Recall,
    ReturnLease,
    Revoke,
)
from spotlight.timings import DeliveryTimings, NodeTimings, Timings
from spotlight.transport.tensors import BundleStore, fetch
from spotlight.transport.tensors.bundles import metadata_of, pack, unpack
from spotlight.types import Commit, Request


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    with one_thread():
        yield


@pytest.fixture(scope="module")
def weights() -> Tensors:
    return tiny_weights()


@pytest.fixture
def timings() -> Timings:
    """Of the workers; a test that needs others names them."""
    return PERSISTENT


@pytest.fixture
async def workers(
    weights: Tensors, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, timings: Timings
) -> AsyncIterator[tuple[Worker, Worker]]:
    use_scorer(monkeypatch)
    async with two_workers(weights, tmp_path / "store", timings) as pair:
        yield pair


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    gate = Gate(monkeypatch)
    yield gate
    gate.open()


@pytest.fixture
def sink(monkeypatch: pytest.MonkeyPatch) -> SlowSink:
    return SlowSink(monkeypatch)


# --- going on ---


@pytest.mark.parametrize("settings", [NOISY, PLAIN], ids=["flow_sde", "ode"])
@pytest.mark.parametrize("step", range(1, STEPS))
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


@pytest.mark.parametrize("step", [1, 2, 3])
async def test_it_goes_on_in_another_company_and_order(
    workers: tuple[Worker, Worker], gate: Gate, step: int
) -> None:
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


# --- refusing ---


Change = Callable[[Request, Commit], tuple[Request, Commit]]
CHANGES: dict[str, Change] = {
    "another prompt": lambda r, c: (replace(r, prompt="else"), c),
    "another seed": lambda r, c: (replace(r, seed=99), c),
    "another id": lambda r, c: (replace(r, id="else"), c),
    "other settings": lambda r, c: (replace(r, settings=replace(NOISY, noise_level=0.1)), c),
    "another size": lambda r, c: (replace(r, settings=replace(NOISY, height=16)), c),
    "another kind": lambda r, c: (replace(r, kind="preview"), c),
    "another row": lambda r, c: (r, replace(c, row=1)),
    "a row that is not there": lambda r, c: (r, replace(c, row=2)),
    "a negative row": lambda r, c: (r, replace(c, row=-2)),
    "another step": lambda r, c: (r, replace(c, step=c.step + 1)),
    "a bundle that is gone": lambda r, c: (r, replace(c, bundle=replace(c.bundle, key="gone"))),
}


@pytest.fixture
async def interrupted(
    workers: tuple[Worker, Worker], gate: Gate
) -> tuple[Worker, tuple[Request, ...], tuple[Commit, ...]]:
    """A member, and two requests with the commits of another one."""
    first, second = workers
    await gate.run(first, wanted(1, 2), 2)
    gate.open()
    commits = tuple(Commit(2, first.committed(2), row) for row in range(2))
    return second, wanted(1, 2), commits


async def refusal(
    worker: Worker, requests: tuple[Request, ...], commits: tuple[Commit | None, ...]
) -> str:
    worker.denoise(requests, commits)
    (answer,) = await worker.hears(1)
    assert isinstance(answer, LeaseFailed), answer
    assert answer.what == "commits"
    return answer.error


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
async def test_a_commit_of_anything_else_is_refused(interrupted: Any, change: Change) -> None:
    worker, requests, commits = interrupted
    changed = change(requests[0], commits[0])
    assert "CommitRefused" in await refusal(worker, changed[:1], changed[1:])


async def test_a_refusal_says_why(interrupted: Any) -> None:
    worker, (first, _), (commit, _) = interrupted
    reason = await refusal(worker, (replace(first, seed=99),), (commit,))
    assert f"is of seed {first.seed}, not of 99" in reason


async def test_a_commit_for_only_some_is_refused(interrupted: Any) -> None:
    worker, requests, commits = interrupted
    assert "with and without" in await refusal(worker, requests, (commits[0], None))


async def test_a_commit_of_another_job_is_refused(interrupted: Any, weights: Tensors) -> None:
    worker, requests, commits = interrupted
    await worker.prepare(worker.store, "next")
    await worker.hold(weights)
    assert "is of job job, not of next" in await refusal(worker, requests, commits)


async def test_a_commit_made_with_other_weights_of_the_same_version_is_refused(
    interrupted: Any, weights: Tensors
) -> None:
    worker, requests, commits = interrupted
    await worker.hold({name: tensor * 1.01 for name, tensor in weights.items()})
    assert "other weights" in await refusal(worker, requests, commits)


TENSORS: dict[str, Callable[[Tensors], Tensors]] = {
    "without latents": lambda t: {k: v for k, v in t.items() if k != "latents"},
    "with another step": lambda t: {**t, "step": torch.tensor(3)},
    "with no number as its step": lambda t: {**t, "step": torch.tensor([1, 2])},
    "with other latents": lambda t: {**t, "latents": t["latents"][:, :1]},
    "of doubles": lambda t: {**t, "latents": t["latents"].double()},
    "without its window": lambda t: {**t, "window_states": t["window_states"][:, :0]},
    "without log probabilities": lambda t: {**t, "log_probs": t["log_probs"][:, :0]},
}


@pytest.mark.parametrize("change", TENSORS.values(), ids=TENSORS.keys())
async def test_a_commit_that_does_not_hold_what_it_says_is_refused(
    interrupted: Any, change: Callable[[Tensors], Tensors]
) -> None:
    worker, requests, commits = interrupted
    data = await fetch(commits[0].bundle)
    forged = worker.store.put("forged", pack(change(unpack(data)), metadata_of(data)))
    await refusal(worker, requests, tuple(replace(c, bundle=forged) for c in commits))


METADATA = {
    "without a record": {},
    "with half a record": {"commit": '{"format": 1'},
    "of another format": {"commit": '{"format": 2}'},
}


@pytest.mark.parametrize("metadata", METADATA.values(), ids=METADATA.keys())
async def test_a_bundle_that_does_not_say_what_it_is_is_refused(
    interrupted: Any, metadata: dict[str, str]
) -> None:
    worker, requests, commits = interrupted
    tensors = unpack(await fetch(commits[0].bundle))
    forged = worker.store.put("forged", pack(tensors, metadata))
    await refusal(worker, requests, tuple(replace(c, bundle=forged) for c in commits))


async def test_damaged_bytes_are_refused(interrupted: Any) -> None:
    worker, requests, commits = interrupted
    data = await fetch(commits[0].bundle)
    forged = worker.store.put("forged", data[: len(data) // 2])
    await refusal(worker, requests, tuple(replace(c, bundle=forged) for c in commits))


async def test_after_a_refusal_the_same_request_is_done_from_its_first_step(
    interrupted: Any,
) -> None:
    worker, requests, commits = interrupted
    await refusal(worker, requests, (commits[0], None))
    worker.leader.inbox.clear()
    worker.denoise(requests)
    await worker.done()
    assert worker.leader.last(Completed).steps == STEPS


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


# --- draining ---


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


@pytest.mark.parametrize("name", ["latents", "log_probs"])
async def test_nobody_goes_on_from_a_commit_that_is_not_finite(interrupted: Any, name: str) -> None:
    worker, requests, commits = interrupted
    data = await fetch(commits[0].bundle)
    tensors = unpack(data)
    tensors[name].select(0, 1).fill_(torch.nan)
    bundle = worker.store.put("commits/of-nan", pack(tensors, metadata_of(data)))
    changed = tuple(replace(commit, bundle=bundle) for commit in commits)
    assert "commits/of-nan: its latents are NaN or infinite" in await refusal(
        worker, requests, changed
    )


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
        assert worker.leader.last(Completed).bundle.store == successor.endpoint
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
