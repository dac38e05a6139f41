"""Processes of a running job that are killed, stopped and given notice: it ends as if nothing had
happened, bit for bit.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from benchmarks.live.run_comparison import differences
from spotlight.actors.protocol.users import JobStatus
from spotlight.errors import ActorError, UserError
from spotlight.running.client import connect
from spotlight.running.join_option import resolve
from tests.integration.conftest import (
    SPOTLIGHT,
    Workplace,
    descendants,
    events,
    metrics,
    wait_for_phase,
    wait_until,
)

pytestmark = pytest.mark.slow

ITERATIONS = 3


def _job(workplace: Workplace, spot: int = 1) -> Path:
    """Batches of a second, so that something is always in the middle."""
    return workplace.job(
        iterations=ITERATIONS,
        group_size=8,
        sampler={"steps": 64},
        exploration={"preview_steps": 16},
        pools={"spot": {"nodes": spot}},
    )


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run folder of the job when nothing happens to it."""
    workplace = Workplace(tmp_path_factory.mktemp("undisturbed"))
    run = workplace.folder / "run"
    assert workplace.spotlight("run", _job(workplace), "--run-folder", run).code == 0
    return run


@dataclass
class _Run:
    """`spotlight run` in the middle of the job."""

    folder: Path
    pid: int
    workplace: Workplace

    @property
    def token(self) -> Path:
        return self.folder.with_name("token")

    def daemon(self, word: str) -> psutil.Process:
        """The one that has this in its command line."""
        return next(
            process
            for process in psutil.Process(self.pid).children()
            if any(word in argument for argument in process.cmdline())
        )

    def late(self) -> int:
        """How many answers were refused so far."""
        try:
            return asyncio.run(self._status()).results_ignored
        except (ActorError, UserError):  # it has ended
            return 0

    async def _status(self) -> JobStatus:
        async with connect(resolve("--join", f"@{self.token}")) as client:
            return await client.status()

    def has(self, event: str, count: int = 1, **fields: object) -> bool:
        """Whether this was recorded so often."""
        found = [e for e in events(self.folder, event) if fields.items() <= e.items()]
        return len(found) >= count

    def until(self, true: Callable[[], bool], what: str) -> None:
        """Wait for something that must happen before the job ends."""
        wait_until(lambda: true() or self.has("run_finished"), what)
        assert true(), f"the job ended without {what}"


@contextmanager
def _running(workplace: Workplace, undisturbed: Path, spot: int = 1) -> Iterator[_Run]:
    """What is done inside happens to the job; in the end it is as if nothing had."""
    folder = workplace.folder / "run"
    words = ("run", _job(workplace, spot), "--run-folder", folder, "--operator-token", "token")
    process = workplace.start(*SPOTLIGHT, *words)
    wait_for_phase(folder, "rollout", 0)
    yield _Run(folder, process.pid, workplace)
    output = process.communicate(timeout=120)[0]
    assert process.returncode == 0, output
    assert "Traceback" not in output
    assert not differences(undisturbed, folder, ITERATIONS)


def test_a_coordinator_killed_three_times_in_a_row_costs_nothing(
    workplace: Workplace, undisturbed: Path
) -> None:
    with _running(workplace, undisturbed) as run:
        for kills in range(1, 4):
            run.daemon("daemons import coordinator").kill()
            run.until(lambda n=kills + 1: run.has("run_started", n), "another coordinator")

    assert run.has("trainers_found")
    assert not events(run.folder, "node_lost")


def test_a_worker_that_stood_still_comes_too_late_and_changes_nothing(
    workplace: Workplace, undisturbed: Path
) -> None:
    with _running(workplace, undisturbed) as run:
        node = run.daemon("spot-0")
        run.until(lambda: run.has("worker_state", worker="spot-0/0", state="rollout"), "its work")
        (worker,) = (p for p in descendants(os.getpid()) if "spot-0/0" in p.cmdline())
        for process in (node, worker):  # a node that runs would end it
            process.suspend()
        run.until(lambda: run.has("node_lost", node="spot-0"), "its loss")
        run.until(lambda: run.has("phase", phase="train", iteration=0), "its batch done by others")
        worker.resume()
        run.until(lambda: run.has("results_ignored", worker="spot-0/0"), "its late answer")
        run.until(lambda: run.late() > 0, "its being counted")
        node.resume()
        run.until(lambda: run.has("node_joined", 2, node="spot-0"), "its coming back")

    assert [line["samples"] for line in metrics(run.folder, "iteration")] == [16] * ITERATIONS


def test_a_node_with_notice_gives_back_leaves_and_may_come_back(
    workplace: Workplace, undisturbed: Path
) -> None:
    with _running(workplace, undisturbed) as run:
        preempt = ["preempt", "spot-0", "--join", f"@{run.token}"]
        given = workplace.spotlight(*preempt, "--notice", "10")
        run.until(lambda: run.has("notice", node="spot-0", lead_s=10.0), "the notice")
        run.until(lambda: run.has("node_lost", node="spot-0"), "its leaving")
        withdrawn = workplace.spotlight(*preempt, "--cancel")
        run.until(lambda: run.has("node_joined", 2, node="spot-0"), "its coming back")

    assert (given.code, withdrawn.code) == (0, 0), given.errors + withdrawn.errors
    (lost,) = events(run.folder, "worker_lost")
    assert lost["reason"] == "left after a notice"
    assert not lost["requests_handed_on"]
    assert not events(run.folder, "work_taken_back")


def test_all_spot_nodes_are_lost_and_training_goes_on(
    workplace: Workplace, undisturbed: Path
) -> None:
    with _running(workplace, undisturbed, spot=2) as run:
        for name in ("spot-0", "spot-1"):
            run.until(lambda name=name: run.has("node_joined", node=name), name)
        lost = [run.daemon(name) for name in ("spot-0", "spot-1")]
        for process in lost:
            process.kill()
        run.until(lambda: run.has("node_lost", 2), "their loss")
        run.until(lambda: run.has("node_joined", 5), "their coming back")

    assert [line["samples"] for line in metrics(run.folder, "iteration")] == [16] * ITERATIONS


def test_two_coordinators_cannot_have_one_run_folder(workplace: Workplace) -> None:
    runs = workplace.folder / "runs"
    for name, folder in (("first", runs / "of-the-first"), ("second", runs)):
        file = workplace.folder / f"{name}.address"
        workplace.daemon(
            "coordinator", "--listen", "127.0.0.1:0", "--address-file", file, "--runs", folder
        )
        wait_until(file.exists, "the coordinator")
    run = runs / "of-the-first" / "run"
    first = f"@{runs / 'of-the-first' / 'operator.token'}"
    job = workplace.job()
    assert workplace.spotlight("submit", job, "--run-folder", run, "--join", first).code == 0

    refused = workplace.spotlight("resume", run)

    assert refused.code == 2
    assert refused.errors.strip().count("\n") == 0
    assert f"{run} is in use by another coordinator" in refused.errors
