"""A member scores what is denoised, under the same lease, and keeps the pixels to itself."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from member_kit import (
    NOISY,
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
from scorer_kit import FakeScorer, brightness, use_scorer

from spotlight.actors.protocol.down import Recall, Revoke
from spotlight.actors.protocol.up import CommitSteps, Completed, LeaseFailed
from spotlight.actors.worker import torch_engine
from spotlight.actors.worker.batch_work import prompt_of
from spotlight.actors.worker.torch_model import TorchModel
from spotlight.condition_images import digest_of, with_image
from spotlight.errors import MissingDependency, ScoringError
from spotlight.types import Commit, Prompt


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    with one_thread():
        yield


@pytest.fixture(scope="module")
def weights() -> Tensors:
    return tiny_weights()


@pytest.fixture
def scorer(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeScorer]:
    scorer = use_scorer(monkeypatch)
    yield scorer
    scorer.go_on()


@pytest.fixture
async def workers(
    weights: Tensors, tmp_path: Path, scorer: FakeScorer
) -> AsyncIterator[tuple[Worker, Worker]]:
    async with two_workers(weights, tmp_path / "store") as pair:
        yield pair
        scorer.go_on()


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    gate = Gate(monkeypatch)
    yield gate
    gate.open()


@pytest.fixture
def sink(monkeypatch: pytest.MonkeyPatch) -> SlowSink:
    return SlowSink(monkeypatch)


@pytest.fixture
def worker(workers: tuple[Worker, Worker]) -> Worker:
    return workers[0]


async def being_scored(worker: Worker, scorer: FakeScorer, *numbers: int) -> None:
    """A batch whose last commit is told, and which the scorer holds."""
    scorer.hold()
    asked, told = len(scorer.asked), len(steps_of(worker))
    worker.denoise(wanted(*numbers))
    await until(lambda: len(scorer.asked) > asked and len(steps_of(worker)) > told)


def last_commits(worker: Worker, count: int) -> tuple[Commit, ...]:
    return tuple(Commit(STEPS, worker.committed(STEPS), row) for row in range(count))


async def test_a_batch_is_scored_under_the_lease_that_denoised_it(
    worker: Worker, scorer: FakeScorer
) -> None:
    requests = wanted(1, 2, 3)
    worker.denoise(requests)
    await worker.done()
    committed, done = worker.leader.inbox
    assert isinstance(committed, CommitSteps)
    assert isinstance(done, Completed)
    ((images, prompts),) = scorer.asked
    assert (images.shape, images.dtype) == ((3, 32, 64, 3), "uint8")
    assert prompts == tuple(Prompt(request.prompt) for request in requests)
    assert done.rewards == tuple((reward,) for reward in brightness(images))
    assert done.requests == tuple(request.id for request in requests)
    assert (done.lease, done.steps, done.bundle) == (1, STEPS, committed.bundle)
    assert done.seconds > 0.0
    assert done.scoring_s > 0.0


async def test_a_noisy_reward_of_a_preview_that_may_be_trained_on_is_drawn_twice(
    worker: Worker, scorer: FakeScorer
) -> None:
    changes = {"rewards": [{"noisy": True}], "exploration": {"reuse": True}}
    await worker.prepare(worker.store, "noisy", **changes)
    await worker.hold(tiny_weights())
    draws = iter([[0.1, 0.2], [0.8, 0.9], [0.5, 0.6]])
    scorer.score = lambda images, prompts: next(draws)  # type: ignore[method-assign]
    for kind, rewards in (("preview", ((0.1, 0.8), (0.2, 0.9))), ("rollout", ((0.5,), (0.6,)))):
        worker.denoise(wanted(1, 2, settings=PLAIN, kind=kind))
        await until(lambda: bool(worker.leader.all(Completed)))
        assert worker.leader.last(Completed).rewards == rewards
        worker.leader.inbox.clear()


async def test_scorers_are_told_what_is_known_of_a_prompt(
    worker: Worker, scorer: FakeScorer
) -> None:
    told, plain = wanted(1, 2)
    worker.denoise((msgspec.structs.replace(told, metadata='{"tag":"x","n":[1]}'), plain))
    await worker.done()
    ((_, prompts),) = scorer.asked
    assert prompts == (Prompt(told.prompt, {"tag": "x", "n": [1]}), Prompt(plain.prompt))


def test_words_that_look_like_the_name_of_an_image_are_words_where_there_is_none() -> None:
    (request,) = wanted(1)
    named = msgspec.structs.replace(request, prompt=with_image("a cat", digest_of(b"any")))
    assert prompt_of(named, b"") == Prompt(named.prompt)
    assert prompt_of(named, b"any") == Prompt("a cat", image=b"any")


async def test_pixels_are_not_in_the_bundle(worker: Worker) -> None:
    worker.denoise(wanted(1, 2))
    samples = await worker.done()
    assert samples.keys() == {"step", "latents", "window_states", "log_probs", "foreseen"}
    assert all(tensor.dtype != torch.uint8 for tensor in samples.values())


async def test_the_next_batch_is_denoised_while_the_last_one_is_scored(
    worker: Worker, scorer: FakeScorer
) -> None:
    await being_scored(worker, scorer, 1)
    worker.denoise(wanted(2))
    await until(lambda: steps_of(worker) == [STEPS, STEPS])
    assert worker.leader.all(Completed) == []
    scorer.go_on()
    await until(lambda: len(worker.leader.all(Completed)) == 2)


# --- going on after the last step ---


@pytest.mark.parametrize("settings", [NOISY, PLAIN], ids=["flow_sde", "ode"])
async def test_what_a_lost_worker_has_denoised_is_only_scored(
    workers: tuple[Worker, Worker], gate: Gate, scorer: FakeScorer, settings: Any
) -> None:
    lost, next_one = workers
    gate.open()
    lost.denoise(wanted(1, 2, 3, settings=settings))
    undisturbed = await lost.done()
    taken = gate.begun
    next_one.denoise(wanted(1, 2, 3, settings=settings), last_commits(lost, 3))
    assert_same_bits(await next_one.done(), undisturbed)
    (done,) = next_one.leader.inbox
    assert isinstance(done, Completed)
    assert done.rewards == lost.leader.last(Completed).rewards
    assert (done.steps, done.seconds) == (0, 0.0)
    assert done.bundle.key.startswith("samples/w1/")
    assert gate.begun == taken
    assert len(scorer.asked) == 2


async def test_rows_of_several_bundles_become_one(
    workers: tuple[Worker, Worker], scorer: FakeScorer
) -> None:
    lost, next_one = workers
    lost.denoise(wanted(1, 2))
    of_lost, first = await lost.done(), last_commits(lost, 2)
    next_one.denoise(wanted(3))
    of_next, (third,) = await next_one.done(), last_commits(next_one, 1)
    expected = [
        next_one.leader.last(Completed).rewards[0],
        *reversed(lost.leader.last(Completed).rewards),
    ]
    next_one.leader.inbox.clear()
    next_one.denoise(wanted(3, 2, 1), (third, first[1], first[0]))
    joined = await next_one.done()
    assert_same_bits(rows(joined, 0), rows(of_next, 0))
    assert_same_bits(rows(joined, 1, 2), rows(of_lost, 1, 0))
    assert list(next_one.leader.last(Completed).rewards) == expected


async def test_a_picture_is_left_by_the_one_who_scores(
    workers: tuple[Worker, Worker], tmp_path: Path
) -> None:
    lost, next_one = workers
    requests = wanted(1, image_key="validation/v0/p0.png")
    lost.denoise(requests)
    await lost.done()
    picture = tmp_path / "store" / "validation/v0/w0/p0.png"
    next_one.denoise(requests, last_commits(lost, 1))
    await next_one.done()
    others = tmp_path / "store" / "validation/v0/w1/p0.png"
    assert others.read_bytes() == picture.read_bytes()


# --- failures ---


@pytest.mark.parametrize("answer", [ScoringError("gone"), ValueError("bug"), [0.5], [0.5, 2.0]])
async def test_a_scorer_that_fails_fails_the_lease_after_its_last_commit(
    worker: Worker, scorer: FakeScorer, answer: object
) -> None:
    scorer.answer = answer
    worker.denoise(wanted(1, 2))
    committed, failed = await worker.hears(2)
    assert isinstance(committed, CommitSteps)
    assert committed.step == STEPS
    assert isinstance(failed, LeaseFailed)
    assert (failed.lease, failed.what, failed.failed) == (1, "scoring", ())
    assert ("in score" in failed.traceback) == isinstance(answer, ValueError)


async def test_a_scorer_that_fails_at_once_waits_for_the_last_commit(
    worker: Worker, scorer: FakeScorer, sink: SlowSink
) -> None:
    sink.free.clear()
    scorer.answer = ScoringError("gone")
    worker.denoise(wanted(1))
    await until(lambda: len(scorer.asked) == 1 and len(sink.keys) == 1)
    await asyncio.sleep(0.05)
    assert worker.leader.inbox == []
    sink.free.set()
    committed, _ = await worker.hears(2)
    assert isinstance(committed, CommitSteps)


async def test_a_scorer_that_cannot_be_built_costs_its_batches_and_not_the_worker(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    def build(spec: object, permissions: object) -> None:
        raise MissingDependency("rapidocr is not installed here")

    monkeypatch.setattr(torch_engine, "build_scorer", build)
    await worker.prepare(worker.store, "next", rewards=[{"name": "other"}])
    await worker.hold(tiny_weights())
    worker.denoise(wanted(1))
    _, failed = await worker.hears(2)
    assert isinstance(failed, LeaseFailed)
    assert failed.what == "scoring"
    assert "rapidocr is not installed here" in failed.error


async def test_a_job_is_prepared_before_its_scorer_is_built(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    built, begun = threading.Event(), threading.Event()

    def build(spec: object, permissions: object) -> FakeScorer:
        begun.set()
        assert built.wait(60.0)
        return FakeScorer()

    monkeypatch.setattr(torch_engine, "build_scorer", build)
    await worker.prepare(worker.store, "next", rewards=[{"name": "other"}])
    await worker.hold(tiny_weights())
    await until(begun.is_set)
    worker.denoise(wanted(1))
    await until(lambda: steps_of(worker) == [STEPS])
    assert worker.leader.all(Completed) == []
    built.set()
    await worker.done()


# --- stopping while it is scored ---


async def test_what_is_revoked_while_it_is_scored_is_dropped(
    worker: Worker, scorer: FakeScorer
) -> None:
    await being_scored(worker, scorer, 1)
    worker.denoise(wanted(2))
    await until(lambda: steps_of(worker) == [STEPS, STEPS])
    await worker.ask(Revoke((1,)))
    scorer.go_on()
    await worker.done()
    assert [done.lease for done in worker.leader.all(Completed)] == [2]


async def test_after_the_end_of_the_job_nothing_is_said_of_what_is_scored(
    worker: Worker, scorer: FakeScorer
) -> None:
    await being_scored(worker, scorer, 1)
    await worker.end_job()
    scorer.go_on()
    await worker.context.on_scorer(lambda: None)
    await asyncio.sleep(0.02)
    assert [type(message) for message in worker.leader.inbox] == [CommitSteps]


async def test_a_recall_of_what_is_scored_is_ignored(worker: Worker, scorer: FakeScorer) -> None:
    await being_scored(worker, scorer, 1)
    await worker.ask(Recall((1,)))
    scorer.go_on()
    await worker.done()


async def test_scoring_goes_on_until_the_time_to_stop(worker: Worker, scorer: FakeScorer) -> None:
    await being_scored(worker, scorer, 1)
    await worker.drain(1000.0)
    await asyncio.sleep(0.02)
    assert [type(message) for message in worker.leader.inbox] == [CommitSteps]
    scorer.go_on()
    await worker.done()


async def test_what_is_not_scored_at_the_time_to_stop_is_given_back(
    workers: tuple[Worker, Worker], scorer: FakeScorer
) -> None:
    leaving, next_one = workers
    await being_scored(leaving, scorer, 1)
    await leaving.drain(0.05)
    committed, back = await leaving.hears(2)
    assert isinstance(committed, CommitSteps)
    assert (committed.step, back) == (STEPS, leaving.returned(1))
    scorer.go_on()
    next_one.denoise(wanted(1), last_commits(leaving, 1))
    await next_one.done()


async def test_a_withdrawn_notice_lets_scoring_go_on(worker: Worker, scorer: FakeScorer) -> None:
    await being_scored(worker, scorer, 1)
    await worker.drain(0.05)
    await worker.drain(None)
    await asyncio.sleep(0.1)
    assert [type(message) for message in worker.leader.inbox] == [CommitSteps]
    scorer.go_on()
    await worker.done()


async def test_what_is_given_back_is_given_back_after_its_last_commit(
    worker: Worker, scorer: FakeScorer, sink: SlowSink
) -> None:
    sink.free.clear()
    scorer.hold()
    worker.denoise(wanted(1))
    await until(lambda: len(scorer.asked) == 1 and len(sink.keys) == 1)
    await worker.drain(0.0)
    await asyncio.sleep(0.05)
    assert worker.leader.inbox == []
    sink.free.set()
    committed, back = await worker.hears(2)
    assert isinstance(committed, CommitSteps)
    assert (committed.step, back) == (STEPS, worker.returned(1))


# --- images that are compared ---


async def test_images_that_are_compared_with_others_are_neither_decoded_nor_scored(
    worker: Worker, scorer: FakeScorer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TorchModel, "decode", lambda *given: pytest.fail("it is decoded"))
    worker.denoise(wanted(1, 2, scored_with=(1, 2, 3)))
    samples = await worker.done()
    done = worker.leader.last(Completed)
    assert (done.rewards, done.steps, done.scoring_s) == ((), STEPS, 0.0)
    assert len(samples["latents"]) == 2
    assert scorer.asked == []


async def test_a_whole_group_is_scored_in_one_call_by_whoever_is_granted_it(
    workers: tuple[Worker, Worker], scorer: FakeScorer
) -> None:
    first, _ = workers
    seeds = (1, 2, 3)
    parts = [wanted(1, 2, scored_with=seeds), wanted(3, scored_with=seeds)]
    commits: list[Commit] = []
    for worker, part in zip(workers, parts, strict=True):
        worker.denoise(part)
        await worker.done()
        bundle = worker.leader.last(Completed).bundle
        commits += [Commit(STEPS, bundle, row) for row in range(len(part))]
    first.leader.inbox.clear()
    first.denoise((*parts[0], *parts[1]), tuple(commits))
    await first.done()
    ((images, _),) = scorer.asked
    done = first.leader.last(Completed)
    assert len(images) == 3
    assert done.rewards == tuple((reward,) for reward in brightness(images))


async def test_a_group_that_one_batch_holds_is_scored_where_it_is_denoised(
    worker: Worker, scorer: FakeScorer
) -> None:
    batch = tuple(
        msgspec.structs.replace(request, group=0, scored_with=(1, 2)) for request in wanted(1, 2)
    )
    worker.denoise(batch)
    await worker.done()
    assert len(worker.leader.last(Completed).rewards) == 2
