"""Durations from a file."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.exploration_jobs import virtual_job
from benchmarks.virtual_testbed import PUBLISHED
from spotlight.errors import UserError
from spotlight.testing.profile import load_profile


def test_the_published_split_holds_on_the_gpus_that_it_is_for() -> None:
    profile = load_profile(PUBLISHED)
    job = virtual_job("ocr", "rollouts", 0)
    timings = profile.times(job)
    micro_batches = profile.samples / job.sampler.micro_batch
    assert timings.step_s * job.sampler.steps * micro_batches / 4 == pytest.approx(113)
    assert timings.training_s(0, profile.samples) == pytest.approx(240, rel=0.02)
    assert timings.training_s(0, profile.samples // 2) == pytest.approx(120, rel=0.02)


@pytest.mark.parametrize(
    ("before", "after", "complaint"),
    [("gpus: 4", "gpus: 0", "gpus"), ("gpus: 4", "gpus: 4\nspeed: 2", "speed"), (":", "", "")],
)
def test_a_profile_that_is_wrong_is_refused_with_its_name(
    tmp_path: Path, before: str, after: str, complaint: str
) -> None:
    path = tmp_path / "profile.yaml"
    path.write_text(PUBLISHED.read_text().replace(before, after))
    with pytest.raises(UserError, match=rf"profile\.yaml: .*{complaint}"):
        load_profile(path)


def test_a_profile_that_is_not_there_is_refused_with_its_name(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"absent\.yaml"):
        load_profile(tmp_path / "absent.yaml")
