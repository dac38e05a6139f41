"""What workers of a simulated cluster have in common where only fingerprints stand for tensors."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

import pytest

from spotlight_simulation.chaos import silence, simulate
from spotlight_simulation.fake_hardware import HardwareTimes
from spotlight_simulation.freezing import FreezableLoop
from spotlight_simulation.job_life import Scenario, chaos_job
from spotlight_simulation.numerics import Batch, Fingerprints, Update
from spotlight_simulation.processes import NodeSpec

RANKS = 4


@pytest.fixture
def updates(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, str, str]]:
    """Filled with the iteration, the chance and the result of every update of a cluster."""
    seen: list[tuple[int, str, str]] = []
    trained = Fingerprints.trained

    def listening(self: Fingerprints, batch: Batch) -> Update:
        update = trained(self, batch)
        seen.append((batch.iteration, batch.chance, update.weights))
        return update

    monkeypatch.setattr(Fingerprints, "trained", listening)
    return seen


@pytest.mark.parametrize("exact", [True, False])
def test_all_ranks_of_a_job_come_to_the_same_weights(
    tmp_path: Path, updates: list[tuple[int, str, str]], exact: bool
) -> None:
    job = chaos_job(tmp_path, ranks=RANKS)
    nodes = (NodeSpec("reserved", "reserved", RANKS), NodeSpec("spot", "spot", 1))
    with silence(), asyncio.Runner(loop_factory=FreezableLoop) as runner:
        run = runner.run(simulate(0, Scenario(job, nodes, (), exact), tmp_path))
    assert run.outcomes == [("finished", "")]
    assert run.history.violations == []
    assert Counter(iteration for iteration, _, _ in updates) == {0: RANKS, 1: RANKS, 2: RANKS}
    assert len(set(updates)) == 3
    assert [train["iteration"] for train in run.history.all("train")] == [0, 1, 2]


def test_training_takes_as_long_as_it_has_samples() -> None:
    timings = HardwareTimes(train_s=1.0, train_sample_s=0.5)
    assert timings.training_s(0, 8) == 5.0


def test_training_varies_from_iteration_to_iteration_but_not_from_run_to_run() -> None:
    timings = [HardwareTimes(train_s=10.0, train_jitter=0.1) for _ in range(2)]
    times = [[each.training_s(iteration, 8) for iteration in range(20)] for each in timings]
    assert times[0] == times[1]
    assert len(set(times[0])) == 20
    assert all(9.0 <= seconds <= 11.0 for seconds in times[0])
