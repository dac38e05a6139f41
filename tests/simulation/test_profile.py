"""Durations from a file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from benchmarks.exploration.rival_jobs import virtual_job
from benchmarks.virtual_testbed import SOL_RL_SPLIT
from spotlight.errors import UserError
from spotlight.jobs import JobSpec
from spotlight_simulation.profile import load_profile

REPLAYED = {
    "training.loss": "flow_grpo",
    "training.options": {},
    "sampler.kind": "cps",
    "sampler.micro_batch": 4,
}
EVEN = SOL_RL_SPLIT.with_name("even-split.yaml")
VERL = SOL_RL_SPLIT.with_name("verl-omni-split.yaml")


def plain(changes: Mapping[str, Any] | None = None) -> JobSpec:
    """The job that the profiles' figures are of: eight steps, and all flow times are trained on."""
    untuned = {"training.options.noisiest": 1.0, "sampler.steps": 8}
    return virtual_job("ocr", "rollouts", 0, {**untuned, **(changes or {})})


@pytest.mark.parametrize(("path", "share"), [(SOL_RL_SPLIT, 0.85), (EVEN, 0.47)])
def test_training_is_the_share_of_a_plain_iteration_that_the_split_says(
    path: Path, share: float
) -> None:
    job = plain()
    timings = load_profile(path).times(job)
    batches = job.samples_per_iteration / job.sampler.micro_batch
    rollout_s = timings.step_s * job.sampler.steps * batches / 12
    train_s = timings.train_sample_s * job.samples_per_iteration
    assert train_s / (rollout_s + train_s) == pytest.approx(share, abs=0.02)


@pytest.mark.parametrize(
    ("changes", "rows"),
    [
        ({}, 8),
        ({"training.options.noisiest": 0.5}, 4),
        ({"training.options.times": 6, "training.options.noisiest": 0.4}, 2),
        ({"training.loss": "awm", "training.options.times": 2}, 2),
        ({**REPLAYED, "sampler.window.length": 3}, 3),
    ],
)
def test_training_takes_time_by_the_rows_of_a_sample(changes: dict[str, Any], rows: int) -> None:
    timings = load_profile(SOL_RL_SPLIT).times(plain(changes))
    assert timings.train_sample_s == pytest.approx(240 / 384 * rows)


def test_twelve_ranks_train_in_a_third_of_the_time_of_four() -> None:
    profile = load_profile(SOL_RL_SPLIT)
    four, twelve = (virtual_job("ocr", rival, 1) for rival in ("rollouts", "data-parallel"))
    seconds = [profile.times(job).training_s(0, profile.samples) for job in (four, twelve)]
    assert seconds[0] == pytest.approx(3 * seconds[1])


def test_factors_multiply_the_figures_of_a_profile(tmp_path: Path) -> None:
    path = tmp_path / "profile.yaml"
    path.write_text(
        f"{SOL_RL_SPLIT.read_text()}factors:\n"
        "- {name: compilation, source: a page, rollout: 0.5, train: 0.8}\n"
        "- {name: fp8, source: a page, rollout: 0.9}\n"
    )
    plain_one, fast = (load_profile(each) for each in (SOL_RL_SPLIT, path))
    assert fast.rollout_s == pytest.approx(0.45 * plain_one.rollout_s)
    assert fast.train_s == pytest.approx(0.8 * plain_one.train_s)
    assert fast.times(plain()).step_s == pytest.approx(0.45 * plain_one.times(plain()).step_s)


def test_rollouts_take_time_by_their_steps() -> None:
    steps = [load_profile(SOL_RL_SPLIT).times(plain({"sampler.steps": n})).step_s for n in (4, 8)]
    assert steps[0] == steps[1] == pytest.approx(113 * 4 / (48 * 8) * plain().sampler.micro_batch)


def test_the_published_split_holds_on_the_gpus_that_it_is_for() -> None:
    profile = load_profile(SOL_RL_SPLIT)
    job = plain()
    timings = profile.times(job)
    micro_batches = profile.samples / job.sampler.micro_batch
    assert timings.step_s * job.sampler.steps * micro_batches / 4 == pytest.approx(113)
    assert timings.training_s(0, profile.samples) == pytest.approx(240, rel=0.02)
    assert timings.training_s(0, profile.samples // 2) == pytest.approx(120, rel=0.02)


def test_every_rank_lends_its_part_of_the_weights() -> None:
    profile, job = load_profile(SOL_RL_SPLIT), plain()
    timings = profile.times(job)
    assert timings.lent_bytes * job.training.ranks == profile.lending.adapter_bytes
    assert timings.gradient_bytes == profile.lending.adapter_bytes
    assert timings.network.copy_bytes_per_s == profile.lending.copy_bytes_per_s


def test_a_publication_takes_what_is_given_or_else_what_its_bytes_take() -> None:
    given, counted = (load_profile(path) for path in (SOL_RL_SPLIT, VERL))
    assert (given.publication_s, given.times(plain()).published_bytes) == (5.0, 0)
    part_s = counted.lending.copy_s / counted.gpus
    assert counted.publication_s == pytest.approx(2 * part_s), "it is left, and gets there"
    timings = counted.times(plain())
    assert timings.publish_s == 0.0
    assert timings.published_bytes == timings.lent_bytes == counted.lending.adapter_bytes // 4


@pytest.mark.parametrize(
    ("before", "after", "complaint"),
    [
        ("gpus: 4", "gpus: 0", "gpus must be above 0 and finite, not 0"),
        ("gpus: 4", "gpus: 4\nspeed: 2", "speed"),
        ("rows: 384\n", "", "missing required field `rows`"),
        ("rows: 384", "rows: 0", "rows must be above 0 and finite, not 0"),
        ("steps: 8\n", "", "missing required field `steps`"),
        ("steps: 8", "steps: 0", "steps must be above 0 and finite, not 0"),
        ("rows: 384", "rows: 0.5", r"\$\.rows"),
        ("rows: 384", f"rows: {'[' * 100_000}", "it is nested more than 20 deep"),
        ("train_s: 240", "train_s: 0", "train_s must be above 0"),
        ("rollout_s: 113", "rollout_s: .nan", "rollout_s must be above 0 and finite, not nan"),
        ("train_s: 240", "train_s: .inf", "train_s must be above 0 and finite, not inf"),
        ("publish_s: 5", "publish_s: .nan", "publish_s must be finite and 0 at least, not nan"),
        ("adapter_bytes: 1700000000", "adapter_bytes: 0", "adapter_bytes must be above 0"),
        ("train_jitter: 0.02", "train_jitter: 1", r"train_jitter must be in \[0, 1\), not 1"),
        ("gpus: 4", "gpus: 4\nfactors: [{name: fp8}]", "missing required field `source`"),
        ("gpus: 4", "gpus: 4\nfactors: [{name: fp8, source: ' '}]", "factor fp8: source must say"),
        (
            "gpus: 4",
            "gpus: 4\nfactors: [{name: fp8, source: a page, train: 0}]",
            "factor fp8: train must be above 0 and finite, not 0",
        ),
        (":", "", ""),
    ],
)
def test_a_profile_that_is_wrong_is_refused_with_its_name(
    tmp_path: Path, before: str, after: str, complaint: str
) -> None:
    path = tmp_path / "profile.yaml"
    path.write_text(SOL_RL_SPLIT.read_text().replace(before, after))
    with pytest.raises(UserError, match=rf"profile\.yaml: .*{complaint}") as refused:
        load_profile(path)
    assert "\n" not in str(refused.value)


def test_a_profile_that_is_not_there_is_refused_with_its_name(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"absent\.yaml"):
        load_profile(tmp_path / "absent.yaml")
