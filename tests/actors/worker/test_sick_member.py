"""A member whose accelerator is lost, or has too little memory."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import torch
from job_kit import settle
from member_kit import Gate, Tensors, Worker, one_thread, tiny_weights, two_workers, until, wanted
from scorer_kit import FakeScorer, use_scorer

from spotlight.actors.protocol.up import LeaseFailed
from spotlight.diffusion.samplers import Denoising


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    with one_thread():
        yield


@pytest.fixture(scope="module")
def weights() -> Tensors:
    return tiny_weights()


@pytest.fixture
def scorer(monkeypatch: pytest.MonkeyPatch) -> FakeScorer:
    return use_scorer(monkeypatch)


@pytest.fixture
async def worker(weights: Tensors, tmp_path: Path, scorer: FakeScorer) -> AsyncIterator[Worker]:
    async with two_workers(weights, tmp_path / "store") as (worker, _):
        yield worker


def fail_steps(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def step(denoising: Denoising) -> None:
        raise error

    monkeypatch.setattr(Denoising, "step", step)


LOST = torch.AcceleratorError("CUDA error: device-side assert triggered")


async def test_a_lost_accelerator_blames_no_request_and_gives_everything_back(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail_steps(monkeypatch, LOST)
    async with worker.context.accelerator_turn():
        worker.denoise(wanted(1, 2))
        worker.denoise(wanted(3))
        await settle()
    inbox = await worker.hears(2)
    assert sorted(inbox, key=lambda it: it.lease) == [worker.returned(1), worker.returned(2)]
    await worker.context.ends.wait()


async def test_it_says_why_and_takes_nothing_more(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail_steps(monkeypatch, LOST)
    worker.denoise(wanted(1))
    await worker.hears(1)
    await until(lambda: worker.leader.report.ends)
    report = worker.leader.report
    assert "the accelerator is lost: AcceleratorError: CUDA error" in report.cannot_serve
    assert (report.rollout, report.ready_for) == ((), "")
    worker.denoise(wanted(2))
    assert (await worker.hears(2))[-1] == worker.returned(2)


async def test_the_loss_of_the_accelerator_in_a_scorer_counts_as_well(
    worker: Worker, scorer: FakeScorer
) -> None:
    scorer.answer = LOST
    worker.denoise(wanted(1))
    await worker.context.ends.wait()
    await until(lambda: worker.returned(1) in worker.leader.inbox)
    assert worker.leader.all(LeaseFailed) == []


async def test_what_others_may_go_on_with_is_returned_while_a_step_still_runs(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever notices: here it is the trainer rank of the same process."""
    gate = Gate(monkeypatch)
    worker.denoise(wanted(1))
    await gate.reached(1)
    worker.context.end_process("the accelerator is lost")
    assert await worker.hears(1) == [worker.returned(1)]
    gate.open()


async def test_too_little_memory_is_a_failure_of_the_batch_that_advises_a_smaller_one(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail_steps(monkeypatch, torch.OutOfMemoryError("CUDA out of memory"))
    worker.denoise(wanted(1, 2))
    (failed,) = await worker.hears(1)
    assert isinstance(failed, LeaseFailed)
    assert failed.error == (
        "out of memory with a batch of 2; set a smaller `sampler.micro_batch`"
        " (OutOfMemoryError: CUDA out of memory)"
    )
    assert not worker.context.ends.is_set()
    assert worker.leader.report.rollout == (0,)
