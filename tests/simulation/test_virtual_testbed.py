"""Whole jobs on the virtual test-bed."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from benchmarks import testbed_figures
from benchmarks.exploration.rival_jobs import virtual_job
from benchmarks.virtual_testbed import SOL_RL_SPLIT, RunFailed, preemption, run_on_testbed
from spotlight.jobs import JobSpec
from spotlight_simulation.chaos import scratch_folder
from spotlight_simulation.numerics import Fingerprints
from spotlight_simulation.profile import load_profile
from spotlight_simulation.real_numerics import RealNumerics
from tests.small_run import Brightness

SIZE = {"prompts.per_iteration": 12, "group_size": 4, "sampler.degree": 1, "validation.every": 2}
"""A micro-batch for each GPU."""

UNTUNED = {
    "training.warmup_updates": 0,
    "training.options.noisiest": 1.0,
    "sampler.steps": 8,
}
"""Jobs are shorter than a warm-up, and have as many steps and rows as the profile's."""

FEW = {"prompts.per_iteration": 2, "group_size": 4}
"""Samples, where it does not matter how many."""

QUICK = {"validation.seeds": 1, "sampler.steps": 2, "training.options.times": 1}
"""To compute; on the test-bed its training is as short."""


def run(job: JobSpec, **options: Any) -> testbed_figures.TestbedRun:
    options = {"numerics": Fingerprints(), "profile": load_profile(SOL_RL_SPLIT), **options}
    with scratch_folder() as folder:
        return run_on_testbed(job, folder=folder, **options)


def small(method: str, iterations: int, **changes: Any) -> JobSpec:
    return virtual_job("ocr", method, 0, {"iterations": iterations, **SIZE, **UNTUNED, **changes})


def test_rollouts_spread_over_all_gpus() -> None:
    job = small("rollouts", 1)
    assert run(job).totals.rollout_s == pytest.approx(113 / 3 + 2, abs=1)
    assert run(small("reserved", 1)).totals.rollout_s == pytest.approx(113 + 2, abs=1)


def test_exploration_fills_the_time_of_training_and_delays_nothing() -> None:
    totals = run(small("regenerate", 2, **{"exploration.preview_steps": 4})).totals
    assert totals.previews > 300
    assert totals.spot_idle_share < 0.1
    assert totals.delayed == 0


@pytest.mark.slow
def test_weights_that_are_published_beside_training_delay_nothing() -> None:
    slowly = msgspec.structs.replace(load_profile(SOL_RL_SPLIT), publish_s=30.0)
    assert run(small("spotlight", 4), profile=slowly).totals.delay_s == 0.0


@pytest.mark.slow
def test_exploration_that_is_waited_for_shows_as_delay() -> None:
    changes = {"exploration.budget": "fixed", "exploration.candidates": 12}
    totals = run(small("uniform", 2, **changes)).totals
    assert totals.delayed == 1
    assert totals.delay_s > 20


@pytest.mark.slow
def test_with_one_spot_node_training_waits_until_there_is_a_choice() -> None:
    changes = {"iterations": 5, "training.warmup_updates": 0, "pools.spot.nodes": 1}
    job = virtual_job("ocr", "spotlight", 0, changes)
    *_, before_last, last = run(job).iterations
    assert min(before_last.previews, last.previews) >= 2 * job.samples_per_iteration


def test_jobs_are_validated_alike_however_they_denoise_their_samples() -> None:
    other = {"sampler.steps": 4, "sampler.solver": "dpmpp_2m"}
    first, *_ = run(small("rollouts", 1, **FEW)).validation
    assert run(small("rollouts", 1, **FEW, **other)).validation[0].score == first.score


def test_half_the_steps_take_half_the_time() -> None:
    totals = run(small("rollouts", 1, **{"sampler.steps": 4})).totals
    assert totals.rollout_s == pytest.approx(113 / 6 + 2, abs=1)


def test_a_run_ends_when_three_validations_are_at_the_target() -> None:
    job = small("uniform", 40, **FEW)
    assert [point.version for point in run(job, target=0.0).validation] == [0, 2, 4]


def test_weights_that_were_trained_but_not_published_do_not_count() -> None:
    at_once = {"train_s": 0.1, "rollout_s": 0.1, "score_s": 0.0, "publish_s": 20.0}
    quick = msgspec.structs.replace(load_profile(SOL_RL_SPLIT), **at_once)
    job = small("rollouts", 40, **FEW, **{"validation.every": 1})
    points = run(job, target=0.0, profile=quick).validation
    assert [point.version for point in points] == list(range(len(points)))
    assert len(points) < 40


def test_a_run_validates_every_second_version_and_the_last_though_none_is_at_the_target() -> None:
    points = run(small("rollouts", 3, **FEW), target=2.0).validation
    assert [point.version for point in points] == [0, 2, 3]
    assert [point.time_s for point in points] == sorted(point.time_s for point in points)


def test_a_run_that_loses_spot_nodes_trains_the_same() -> None:
    job = small("rollouts", 2, **QUICK, **{"prompts.per_iteration": 6})
    numerics = RealNumerics(job)
    undisturbed = run(job, numerics=numerics)
    images = numerics.images
    losses = [preemption(20.0, "spot-1", 60.0), preemption(70.0, "spot-2", 60.0)]
    disturbed = run(job, numerics=numerics, faults=losses)
    assert numerics.images == images
    assert disturbed.totals.virtual_s > undisturbed.totals.virtual_s
    scores = [[point.score for point in each.validation] for each in (undisturbed, disturbed)]
    assert scores[0] == scores[1]


def test_a_job_that_fails_is_an_error_with_its_reason() -> None:
    job = small("rollouts", 1, **QUICK, **FEW)
    numerics = RealNumerics(job)
    run(job, numerics=numerics)
    with pytest.raises(RunFailed, match="trained with other samples"):
        run(small("rollouts", 1, **QUICK, **{**FEW, "group_size": 8}), numerics=numerics)


@pytest.fixture(autouse=True)
def brightness(monkeypatch: pytest.MonkeyPatch) -> None:
    """Needs no recogniser."""
    monkeypatch.setattr("spotlight_simulation.one_process.build_scorer", lambda *_: Brightness())
