"""A whole job that trains on its previews, with real numerics on a simulated cluster."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.exploration.rival_jobs import virtual_job
from benchmarks.virtual_testbed import SOL_RL_SPLIT, run_on_testbed
from spotlight.jobs import JobSpec
from spotlight_simulation.chaos import scratch_folder
from spotlight_simulation.fingerprints import Row
from spotlight_simulation.numerics import Batch, Update
from spotlight_simulation.profile import load_profile
from spotlight_simulation.real_numerics import RealNumerics
from tests.small_run import Brightness

ITERATIONS = 3


class Watched(RealNumerics):
    """Remembers what it was asked to train on, and what came of it."""

    def __init__(self, job: JobSpec) -> None:
        super().__init__(job)
        self.trained_on: list[tuple[str, list[Row], Update]] = []
        """For each iteration the weights before it, its samples, and what it came to."""

    def trained(self, batch: Batch) -> Update:
        update = super().trained(batch)
        if batch.iteration == len(self.trained_on):  # each rank asks
            self.trained_on.append((batch.weights, [row for row, _ in batch.samples], update))
        return update


@pytest.fixture(autouse=True)
def brightness(monkeypatch: pytest.MonkeyPatch) -> None:
    """Needs no recogniser."""
    monkeypatch.setattr("spotlight_simulation.one_process.build_scorer", lambda *_: Brightness())


@pytest.mark.slow
def test_a_job_with_flow_grpo_trains_on_its_previews() -> None:
    changes: dict[str, Any] = {
        "iterations": ITERATIONS,
        "prompts.per_iteration": 2,
        "group_size": 4,
        "sampler.kind": "cps",
        "sampler.steps": 3,
        "sampler.micro_batch": 4,
        "sampler.window": {"length": 1, "earliest": 0, "latest": 2},
        "training.loss": "flow_grpo",
        "training.micro_batch": 4,
        "training.options": {},
        "training.warmup_updates": 0,
        "exploration.candidates": 2,
        "exploration.budget": "fixed",
        "validation.prompts": 1,
        "validation.seeds": 1,
    }
    job = virtual_job("ocr", "spotlight", 0, changes)
    numerics = Watched(job)
    with scratch_folder() as folder:
        run_on_testbed(job, profile=load_profile(SOL_RL_SPLIT), numerics=numerics, folder=folder)

    assert len(numerics.trained_on) == ITERATIONS
    before = ""
    for iteration, (newest, rows, update) in enumerate(numerics.trained_on):
        kinds = {row.request.kind for row in rows}
        versions = {row.request.weights_version for row in rows}
        if iteration == 0:
            assert (kinds, versions) == ({"rollout"}, {0})
            assert update.metrics["reuse_weight"] == 1, "its own samples are not corrected"
        else:
            assert (kinds, versions) == ({"preview"}, {iteration - 1})
            assert {row.weights for row in rows} == {before}
            assert update.metrics["reuse_weight"] != 1
            assert update.metrics["reuse_weight"] == pytest.approx(1, abs=0.1)
        assert update.metrics["first_ratio_deviation"] == 0, "of the newest weights to themselves"
        assert update.metrics["drift"] > 0
        before = newest
