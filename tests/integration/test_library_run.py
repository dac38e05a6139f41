"""`spotlight.run`: a job on real processes, from a program that goes on with its own life."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import structlog
import yaml

import spotlight
from spotlight.errors import JobError, RunFolderError, UserError
from spotlight.record.run_events import RunEvent, RunFinished, RunStarted
from spotlight.record.run_metrics import IterationMetrics, ValidationMetrics
from spotlight.store.run_folder import validations_of
from tests.conftest import OURS
from tests.integration.conftest import Workplace, descendants, events, metrics

pytestmark = pytest.mark.timeout(180)


class Notes:
    """A callback that writes down what it is told."""

    def __init__(self) -> None:
        self.iterations: list[IterationMetrics] = []
        self.loss: list[Mapping[str, float]] = []
        self.scores: dict[int, float] = {}
        self.events: list[RunEvent] = []
        self.on_first_iteration: Callable[[], None] = lambda: None

    def on_iteration(self, metrics: IterationMetrics, loss: Mapping[str, float]) -> None:
        OURS.update(child.pid for child in descendants(os.getpid()))
        self.iterations.append(metrics)
        self.loss.append(loss)
        if len(self.iterations) == 1:
            self.on_first_iteration()

    def on_validation(self, metrics: ValidationMetrics) -> None:
        self.scores[metrics.weights_version] = metrics.score

    def on_event(self, event: RunEvent) -> None:
        self.events.append(event)


class Broken(Notes):
    """One that is of no use."""

    def on_iteration(self, metrics: IterationMetrics, loss: Mapping[str, float]) -> None:
        raise KeyError("no such chart")


@pytest.fixture(autouse=True)
def logs_as_before() -> Iterator[None]:
    structlog.reset_defaults()
    yield
    structlog.reset_defaults()


def data(workplace: Workplace, **changes: Any) -> dict[str, Any]:
    """The small job as a program has it."""
    job: dict[str, Any] = yaml.safe_load(workplace.job(**changes).read_text())
    return job


@pytest.mark.slow
async def test_a_program_runs_a_job_and_hears_of_everything(
    workplace: Workplace, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(workplace.folder)
    notes, broken = Notes(), Broken()
    handlers = [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)]

    summary = await spotlight.run(data(workplace), run_folder="run", callbacks=[broken, notes])

    run = workplace.folder / "run"
    assert (summary.outcome, summary.reason) == ("finished", "")
    assert (summary.run_folder, summary.iterations, summary.samples) == (run, 2, 16)
    assert [line.iteration for line in notes.iterations] == [0, 1]
    written = metrics(run, "iteration")
    assert [line.loss for line in notes.iterations] == [line["loss"] for line in written]
    assert all(loss.keys() and loss.keys() <= written[0].keys() for loss in notes.loss)
    assert notes.scores == {one.weights_version: one.score for one in validations_of(run)}
    assert summary.validation_best == max(notes.scores.values())
    assert isinstance(notes.events[0], RunStarted)
    assert isinstance(notes.events[-1], RunFinished)
    told = [event.name for event in notes.events if event.name != "worker_state"]
    assert told == [line["event"] for line in events(run)]  # those are in a file of their own
    (trouble,) = summary.callback_troubles
    assert (trouble.callback, trouble.failures) == (f"{__name__}.Broken", 2)
    assert trouble.error == "KeyError: 'no such chart'"
    assert capfd.readouterr() == ("", "")
    assert handlers == [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)]


@pytest.mark.slow
async def test_a_callback_that_says_so_ends_the_job_and_the_run_can_go_on(
    workplace: Workplace,
) -> None:
    def stop() -> None:
        raise spotlight.StopJob("good enough")

    notes, run = Notes(), workplace.folder / "run"
    notes.on_first_iteration = stop
    job = workplace.job(iterations=4)

    stopped = await spotlight.run(job, run_folder=run, callbacks=[notes])

    assert stopped.outcome == "cancelled"
    assert stopped.reason == f"stopped by the callback `{__name__}.Notes`: good enough"
    (finished,) = events(run, "run_finished")
    assert finished["reason"] == stopped.reason
    assert stopped.iterations < 4
    again = Notes()
    resumed = await spotlight.run(resume=run, callbacks=[again])
    assert (resumed.outcome, resumed.iterations) == ("finished", 4)
    assert [line.iteration for line in again.iterations][-1] == 3
    assert isinstance(again.events[0], RunStarted), "what was told before is not told again"


@pytest.mark.slow
async def test_a_run_that_is_cancelled_leaves_no_process_and_can_go_on(
    workplace: Workplace,
) -> None:
    loop, begun = asyncio.get_running_loop(), asyncio.Event()
    notes, run = Notes(), workplace.folder / "run"
    notes.on_first_iteration = lambda: loop.call_soon_threadsafe(begun.set)
    before = set(descendants(os.getpid()))
    running = asyncio.create_task(
        spotlight.run(workplace.job(iterations=50), run_folder=run, callbacks=[notes])
    )
    await begun.wait()
    children = set(descendants(os.getpid())) - before
    assert len(children) > 3

    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running

    assert not [child for child in children if child.is_running()]
    (finished,) = events(run, "run_finished")
    assert finished["reason"] == "cancelled by the program that ran it"
    assert isinstance(notes.events[-1], RunFinished)


def test_what_the_caller_can_mend_is_said_before_a_process_starts(workplace: Workplace) -> None:
    with pytest.raises(JobError, match=r"sampler\.stpes: unknown key"):
        spotlight.run_blocking({**data(workplace), "sampler": {"stpes": 3}})
    with pytest.raises(JobError, match=r"prompts\.train"):
        spotlight.run_blocking(workplace.job(prompts={"train": "absent.txt"}))
    with pytest.raises(UserError, match="either a job"):
        spotlight.run_blocking()
    with pytest.raises(RunFolderError, match="not a run folder"):
        spotlight.run_blocking(resume=workplace.folder / "nothing")
    (workplace.folder / "run").mkdir()
    (workplace.folder / "run" / "config.yaml").touch()
    with pytest.raises(RunFolderError, match="already holds a run"):
        spotlight.run_blocking(workplace.job(), run_folder=Path(workplace.folder / "run"))
    assert not (workplace.folder / "runs").exists()
