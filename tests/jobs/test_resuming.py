"""What must be the same in a job when its run is gone on with."""

from __future__ import annotations

from typing import Any

import pytest
from smallest_job import SMALLEST, with_field

from spotlight.jobs import job_from_data
from spotlight.jobs.loading import job_paths
from spotlight.jobs.resuming import FIXED, changed_field


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("model.tuning", "lora"),
        ("model.lora.rank", 3),
        ("sampler.height", 48),
        ("group_size", 4),
        ("training.loss", "awm"),
        ("rewards", [{"kind": "compositional"}]),
        ("seed", 1),
        ("iterations", 41),
    ],
)
def test_what_a_run_depends_on_is_named_with_both_values(path: str, value: Any) -> None:
    changed = changed_field(job_from_data(SMALLEST), job_from_data(with_field(path, value)))
    assert changed is not None
    assert changed.path == path
    if path != "rewards":
        assert changed.now == value != changed.born


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("checkpoint_every", 1),
        ("training.learning_rate", 1e-5),
        ("training.cpu_offload", False),
        ("training.ranks", 2),
        ("pools.spot.workers", 3),
    ],
)
def test_what_nothing_depends_on_may_be_said_anew(path: str, value: Any) -> None:
    now = job_from_data(with_field(path, value))
    assert changed_field(job_from_data(SMALLEST), now) is None


def test_every_fixed_path_is_one_of_a_job() -> None:
    assert set(FIXED) <= set(job_paths())
