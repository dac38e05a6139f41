"""Making runs on the test-bed, and ending them."""

from __future__ import annotations

import time
from pathlib import Path

import msgspec
import pytest

from benchmarks.exploration.cases import PROFILES, SOL_RL_SPLIT, Case, units
from benchmarks.exploration.kept_runs import KeptRuns, Run
from benchmarks.exploration.other_order import OtherOrder
from benchmarks.exploration.processes import make_units
from benchmarks.exploration.rival_jobs import virtual_job
from benchmarks.exploration.testbed_runs import NoReference, VirtualRuns
from benchmarks.virtual_testbed import run_on_testbed
from spotlight_simulation.chaos import scratch_folder
from spotlight_simulation.numerics import Fingerprints
from spotlight_simulation.profile import load_profile
from spotlight_simulation.real_numerics import RealNumerics
from tests.small_run import Brightness

REFERENCE = Case(task="ocr", rival="rollouts", seed=1)
OTHER = Case(task="ocr", rival="regenerate", seed=1)
SMALL = {
    "iterations": 2,
    "prompts.per_iteration": 2,
    "validation.seeds": 1,
    "sampler.steps": 2,
    "training.options.times": 1,
    "training.warmup_updates": 0,
}


def keep_reference(folder: Path, final: float) -> None:
    """As if it had been made."""
    runs = VirtualRuns(folder, quick=False)
    points = [(100.0 * step, step, 0.2 + (final - 0.2) * step / 10) for step in range(11)]
    run: Run = {"validation": points, "totals": {"virtual_s": 1234.5}}
    KeptRuns(folder / "testbed").keep(REFERENCE.name, runs.made(REFERENCE), run)


def test_a_run_ends_at_the_target_or_with_the_references_time(tmp_path: Path) -> None:
    keep_reference(tmp_path, final=0.8)
    goal = VirtualRuns(tmp_path, quick=False).goal(OTHER)
    first, last = 0.2 + 0.06, 0.8 - 0.06  # smoothed
    assert goal.target == pytest.approx(first + 0.95 * (last - first))
    assert goal.limit_s == 1234.5


def test_a_run_that_was_made_for_another_target_is_made_again(tmp_path: Path) -> None:
    keep_reference(tmp_path, final=0.8)
    runs = VirtualRuns(tmp_path, quick=False)
    KeptRuns(tmp_path / "testbed").keep(OTHER.name, runs.made(OTHER), {"validation": []})
    assert runs.read(OTHER) == {"validation": []}
    keep_reference(tmp_path, final=0.7)
    assert runs.read(OTHER) is None


def test_no_run_begins_before_its_reference_is_there(tmp_path: Path) -> None:
    runs = VirtualRuns(tmp_path, quick=False)
    assert runs.can_begin((REFERENCE,))
    assert not runs.can_begin((OTHER,))
    keep_reference(tmp_path, final=0.8)
    assert runs.can_begin((OTHER,))
    assert runs.read(OTHER) is None


def test_a_reference_that_learned_nothing_sets_no_goal(tmp_path: Path) -> None:
    keep_reference(tmp_path, final=0.1)
    runs = VirtualRuns(tmp_path, quick=False)
    with pytest.raises(NoReference, match=r"ocr-regenerate-1: .*ocr-rollouts-1"):
        runs.goal(OTHER)


@pytest.mark.slow
def test_a_run_is_over_after_its_limit() -> None:
    job = virtual_job("ocr", "rollouts", 0, {"group_size": 4, "prompts.per_iteration": 2})
    with scratch_folder() as folder:
        run = run_on_testbed(
            job,
            profile=load_profile(PROFILES[SOL_RL_SPLIT]),
            numerics=Fingerprints(),
            folder=folder,
            limit_s=400.0,
        )
    assert 350 < run.totals.virtual_s < 500
    assert len(run.iterations) < job.iterations


@pytest.mark.slow
def test_another_order_of_the_same_samples_gives_other_weights(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("spotlight_simulation.one_process.build_scorer", lambda *_: Brightness())
    job = virtual_job("ocr", "rollouts", 0, SMALL)
    scores = []
    for numerics in (RealNumerics(job), OtherOrder(job), OtherOrder(job)):
        with scratch_folder() as folder:
            run = run_on_testbed(
                job, profile=load_profile(PROFILES[SOL_RL_SPLIT]), numerics=numerics, folder=folder
            )
        scores.append([point.score for point in run.validation])
    assert scores[0][0] == scores[1][0]
    assert scores[0][1:] != scores[1][1:]
    assert scores[1] == scores[2]


def test_a_run_that_cannot_be_made_is_named_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = Case(task="ocr", rival="rollouts", seed=-1)
    failed = make_units([(broken,)], tmp_path, quick=True)
    assert list(failed) == ["sol-rl-split/ocr-rollouts--1"]
    assert "seed" in failed["sol-rl-split/ocr-rollouts--1"]


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_runs_are_made_in_processes_kept_and_not_made_again(tmp_path: Path) -> None:
    on_fewer_gpus = msgspec.structs.replace(REFERENCE, spot_gpus=4)
    (unit,) = units([REFERENCE, on_fewer_gpus])
    assert make_units([unit], tmp_path, quick=True) == {}
    runs = VirtualRuns(tmp_path, quick=True)
    one, other = (runs.read(case) for case in unit)
    assert one is not None and other is not None
    assert [score for *_, score in one["validation"]] == [s for *_, s in other["validation"]]
    files = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.json")}
    assert all(path.stat().st_size < 8_000 for path in files)
    make_units([unit], tmp_path, quick=True)
    assert files == {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.json")}


def test_nothing_is_begun_when_the_time_is_over(tmp_path: Path) -> None:
    assert make_units([(REFERENCE,)], tmp_path, quick=True, ends_by=time.monotonic()) == {}
    assert list(tmp_path.rglob("*.json")) == []


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_what_is_not_ready_in_time_is_given_up(tmp_path: Path) -> None:
    assert make_units([(REFERENCE,)], tmp_path, quick=False, ends_by=time.monotonic() + 8) == {}
    assert list(tmp_path.rglob("*.json")) == []
