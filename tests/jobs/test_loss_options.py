"""`training.options` are those of the loss, and what it does not have is refused by name."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
import yaml
from smallest_job import SMALLEST, problem_of, with_field

from spotlight.jobs import TrainingSpec, job_from_data, job_to_yaml, parse_job
from spotlight.jobs.losses import LOSSES, noised_options


def with_training(loss: str, options: Any) -> dict[str, Any]:
    kind = LOSSES[loss].samplers[-1] if loss in LOSSES else "ode"
    data = with_field("sampler.kind", kind)
    return {**data, "training": {"loss": loss, "options": options}}


@pytest.mark.parametrize("loss", LOSSES)
def test_a_run_keeps_to_the_options_that_a_job_leaves_out(loss: str) -> None:
    job = job_from_data(with_training(loss, {}))
    assert job.training.options == msgspec.structs.asdict(LOSSES[loss].options())
    assert yaml.safe_load(job_to_yaml(job))["training"]["options"] == job.training.options
    assert parse_job(job_to_yaml(job)) == job


def test_an_option_takes_the_place_of_its_default() -> None:
    job = job_from_data(with_training("diffusion_nft", {"times": 8, "strength": 1}))
    assert job.training.options == {
        "times": 8,
        "noisiest": 1.0,
        "shared_noise": False,
        "strength": 1.0,
    }


def test_options_of_a_loss_of_the_users_own_wait_for_its_class() -> None:
    job = job_from_data(with_training("my_losses:Mine", {"anything": [1, {"a": None}]}))
    assert job.training.options == {"anything": [1, {"a": None}]}


@pytest.mark.parametrize(
    ("loss", "options", "path", "problem"),
    [
        (
            "diffusion_nft",
            {"tims": 8},
            "tims",
            "`diffusion_nft` has no option `tims`; did you mean `times`?",
        ),
        (
            "diffusion_nft",
            {"zzz": 8},
            "zzz",
            "`diffusion_nft` has no option `zzz`; known here: noisiest, shared_noise, strength,"
            " times",
        ),
        (
            "diffusion_nft",
            {"old_kl": 1.0},
            "old_kl",
            "belongs to `awm`, but this job's loss is `diffusion_nft`; remove it",
        ),
        (
            "flow_grpo",
            {"strength": 0.5},
            "strength",
            "belongs to `diffusion_nft`, but this job's loss is `flow_grpo`; remove it",
        ),
        ("awm", {"times": 0}, "times", "must be at least 1, not 0"),
        ("awm", {"times": 10**6}, "times", "must be at most 1,000, not 1,000,000"),
        ("awm", {"times": "8"}, "times", "must be a whole number, not of type `str`"),
        ("awm", {"noisiest": 1.01}, "noisiest", "must be at most 1, not 1.01"),
        ("awm", {"noisiest": 0}, "noisiest", "must be above 0, not 0"),
        ("awm", {"old_kl": -0.1}, "old_kl", "must be at least 0, not -0.1"),
        (
            "flow_grpo",
            {"clip_range": float("inf")},
            "clip_range",
            "must be a finite number, not inf",
        ),
        ("flow_grpo", {"clip_range": 10**30}, "clip_range", "must be a number of 64 bits at most"),
        (
            "grpo_guard",
            {"clip_range": None},
            "clip_range",
            "must be a number, but is empty; leave it out for its default",
        ),
    ],
)
def test_what_a_loss_cannot_be_set_to_is_named(
    loss: str, options: dict[str, Any], path: str, problem: str
) -> None:
    error = problem_of(with_training(loss, options))
    assert (error.path, error.problem) == (f"training.options.{path}", problem)


@pytest.mark.parametrize("options", [3, "times=8", [8], None])
def test_options_that_are_no_section_are_refused(options: Any) -> None:
    error = problem_of(with_training("awm", options))
    assert error.path == "training.options" and "a section with fields" in error.problem


@pytest.mark.parametrize("name", ["a b", "Überschuss", "", "x|y", 7, None])
def test_a_name_that_no_option_can_have_is_refused(name: Any) -> None:
    error = problem_of(with_training("awm", {name: 1}))
    assert error.path == "training.options"


def test_an_option_can_be_set_from_the_command_line() -> None:
    text = yaml.safe_dump(SMALLEST)
    job = parse_job(text, changes=["training.options.times=8", "training.options.strength=0.1"])
    assert (job.training.options["times"], job.training.options["strength"]) == (8, 0.1)
    own = parse_job(text, changes=["training.loss=a.b:C", "training.options.heat=3"])
    assert own.training.options == {"heat": 3}


@pytest.mark.parametrize(("loss", "times"), [("awm", 3), ("my_losses:Mine", 3), ("flow_grpo", 4)])
def test_rows_of_a_loss_that_nobody_has_loaded_are_told_from_its_options(
    loss: str, times: int
) -> None:
    options = {} if loss == "flow_grpo" else {"times": 3, "noisiest": 0.5}
    found = noised_options(TrainingSpec(loss=loss, options=options))
    assert found.times == times
    assert found.trained_times == (4 if loss == "flow_grpo" else 2)
