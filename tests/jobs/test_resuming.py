"""What must be the same in a job when its run is gone on with."""

from __future__ import annotations

from typing import Any

import pytest
from smallest_job import SMALLEST, with_field

from spotlight.errors import JobError
from spotlight.jobs import job_from_data
from spotlight.jobs.loading import job_paths
from spotlight.jobs.resuming import FIXED, KEPT_ZERO, changed_field, differences, job_with


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
        ("training.kl", 0.1),
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
        ("iterations", 41),
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
    assert {*FIXED, *KEPT_ZERO} <= set(job_paths())


def test_a_weight_that_is_not_0_may_become_another_one_but_not_0() -> None:
    job = job_from_data(with_field("training.kl", 0.1))
    assert job_with(job, ["training.kl=0.2"]).training.kl == 0.2
    with pytest.raises(JobError, match=r"training.kl: was 0.1 when the run began"):
        job_with(job, ["training.kl=0"])


def test_changes_are_made_in_order_and_told_apart_by_field() -> None:
    job = job_from_data(SMALLEST)
    now = job_with(job, ["iterations=80", "training.learning_rate=1e-4", "iterations=60"])
    told = [str(each) for each in differences(job, now)]
    assert told == ["iterations: 40 -> 60", "training.learning_rate: 0.0003 -> 0.0001"]
    assert job_with(job, []) is job


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ("sampler.steps=3", "--set sampler.steps: was 8 when the run began"),
        ("rewards[0].weight=2.0", "--set rewards: was"),
        ("iterashuns=3", "a job has no field `iterashuns`; did you mean `iterations`"),
        ("iterations=many", "iterations: must be a whole number"),
        ("iterations", "`iterations` has no value"),
    ],
)
def test_a_change_that_may_not_be_made_is_refused_in_one_line(change: str, line: str) -> None:
    with pytest.raises(JobError) as refused:
        job_with(job_from_data(SMALLEST), [change])
    assert line in str(refused.value)
    assert "\n" not in str(refused.value)
