"""Every mistake in a field is one line that names the field and says what to do."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from smallest_job import SMALLEST, problem_of, with_field

from spotlight.errors import JobError, UserError
from spotlight.jobs import job_from_data
from spotlight.jobs.losses import LOSSES

LOSS_NAMES = ", ".join(f"`{name}`" for name in sorted(LOSSES))


def test_the_smallest_job_has_defaults_for_everything_else() -> None:
    job = job_from_data(SMALLEST)
    assert (job.iterations, job.group_size, job.samples_per_iteration) == (40, 8, 64)
    assert job.sampler.kind == "ode" and job.training.loss == "diffusion_nft"
    assert job.pools.reserved.nodes == job.pools.spot.nodes == 1


@pytest.mark.parametrize(
    "path",
    ["name", "model", "prompts", "sampler", "model.checkpoint", "prompts.train", "sampler.width"],
)
def test_a_field_that_is_missing_is_named(path: str) -> None:
    data = copy.deepcopy(SMALLEST)
    *sections, field = path.split(".")
    section: dict[str, Any] = data
    for name in sections:
        section = section[name]
    del section[field]
    error = problem_of(data)
    assert (error.path, error.problem) == (path, "is missing; add it")


@pytest.mark.parametrize(
    ("path", "meant"),
    [
        ("itertions", "iterations"),
        ("sampler.stesp", "steps"),
        ("sampler.window.lenght", "length"),
        ("model.lora.rnk", "rank"),
        ("pools.spot.node", "nodes"),
        ("training.learningrate", "learning_rate"),
        ("exploration.candidate", "candidates"),
        ("scoring.on_failures", "on_failure"),
        ("validation.seed", "seeds"),
        ("prompts.validaton", "validation"),
    ],
)
def test_a_misspelt_key_is_refused_with_the_key_that_was_meant(path: str, meant: str) -> None:
    error = problem_of(with_field(path, 1))
    assert error.path == path
    assert f"did you mean `{meant}`?" in error.problem


def test_a_key_like_no_other_is_refused_with_those_that_are_known() -> None:
    error = problem_of(with_field("scoring.zzz", 1))
    assert error.problem == "unknown key; known here: attempts, flat_iterations, on_failure"


@pytest.mark.parametrize("key", [1, None, True])
def test_a_key_that_is_not_text_is_refused(key: object) -> None:
    assert problem_of({**SMALLEST, key: 1}).problem.startswith("unknown key")  # type: ignore[dict-item]


@pytest.mark.parametrize(
    ("path", "value", "problem"),
    [
        ("iterations", "ten", "must be a whole number, not of type `str`"),
        ("iterations", 1.5, "must be a whole number, not of type `float`"),
        ("iterations", True, "must be a whole number, not of type `bool`"),
        ("iterations", None, "must be a whole number, but is empty; leave it out for its default"),
        ("sampler", 3, "must be a section with fields, not of type `int`"),
        ("sampler.window", [1], "must be a section with fields, not of type `array`"),
        ("sampler.evaluation_steps", "x", "must be a whole number, not of type `str`"),
        ("sampler.shift", "x", "must be a number, not of type `str`"),
        ("sampler.kind", "sde", "must be `ode`, `flow_sde`, `dance_sde` or `cps`, not `sde`"),
        ("sampler.degree", "many", "must be `auto` or a whole number, not `many`"),
        ("sampler.degree", 2.5, "must be `auto` or a whole number, not of type `float`"),
        ("model.tuning", 3, "must be `full` or `lora`, not of type `int`"),
        (
            "exploration.mode",
            False,  # what YAML makes of `no`
            "must be `none`, `random`, `uniform` or `bandit`, not of type `bool` (yes, no, on and"
            " off need quotes in YAML)",
        ),
        ("training.learning_rate", "fast", "must be a number, not of type `str`"),
        (
            "training.learning_rate",
            1e300,
            "must be at most 1, not 1e+300; usual ones are 1e-6 to 1e-3",
        ),
        ("exploration.reuse", "maybe", "must be `true` or `false`, not of type `str`"),
        (
            "name",
            False,
            "must be text, not of type `bool` (yes, no, on and off need quotes in YAML)",
        ),
        ("model.tuning", "x" * 5000, f"must be `full` or `lora`, not `{'x' * 100}...`"),
        ("training.adam_betas", [0.9], "expected `array` of length 2, got 1"),
        (
            "training.loss",
            "ppo",
            f"must be {LOSS_NAMES} or `module:Class`, not `ppo`",
        ),
        (
            "training.loss",
            "my losses:Mine",
            f"must be {LOSS_NAMES} or `module:Class`, not `my losses:Mine`",
        ),
        (
            "exploration.mode",
            "greedy",
            "must be `none`, `random`, `uniform` or `bandit`, not `greedy`",
        ),
        ("scoring.on_failure", "zero", "must be `drop_group` or `stop`, not `zero`"),
        ("model.tuning", "qlora", "must be `full` or `lora`, not `qlora`"),
        (
            "pools.spot",
            None,
            "must be a section with fields, but is empty; leave it out for its default",
        ),
    ],
)
def test_a_value_of_the_wrong_type_is_named_with_its_path(
    path: str, value: object, problem: str
) -> None:
    error = problem_of(with_field(path, value))
    assert (error.path, error.problem) == (path, problem)


def test_an_item_of_a_list_is_named_by_its_place() -> None:
    betas = problem_of(with_field("training.adam_betas", [0.9, 1.0]))
    assert str(betas) == "training.adam_betas[1]: must be below 1, not 1"
    assert problem_of(with_field("model.lora.targets", ["to_q", 3])).path == "model.lora.targets[1]"


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("name", ""),
        ("name", "a/b"),
        ("name", "-x"),
        ("name", "x" * 65),
        ("name", "x\n"),
        ("seed", -1),
        ("seed", 2**63),
        ("iterations", 0),
        ("group_size", 1),
        ("checkpoint_every", 0),
        ("model.lora.rank", 0),
        ("model.lora.alpha", 0),
        ("model.lora.targets", []),
        ("prompts.per_iteration", 0),
        ("sampler.height", 0),
        ("sampler.width", -4),
        ("sampler.steps", 0),
        ("sampler.evaluation_steps", 0),
        ("sampler.shift", 0.0),
        ("sampler.guidance", 0.5),
        ("sampler.noise_level", -0.1),
        ("sampler.micro_batch", 0),
        ("sampler.degree", 0),
        ("sampler.degree", -2),
        ("sampler.window.length", 0),
        ("sampler.window.earliest", -1),
        ("sampler.window.latest", 1),
        ("sampler.window.slide_every", 0),
        ("scoring.attempts", 0),
        ("scoring.flat_iterations", 0),
        ("training.ranks", 0),
        ("training.updates_per_iteration", 0),
        ("training.micro_batch", 0),
        ("training.options.times", 0),
        ("training.options.noisiest", 0.0),
        ("training.options.noisiest", 1.01),
        ("training.learning_rate", 0.0),
        ("training.gradient_clip", 0.0),
        ("training.advantage_clip", -1.0),
        ("model.negative_prompt", "a\0b"),
        ("model.negative_prompt", "a\u2028b"),
        ("training.options.strength", 0.0),
        ("training.ema_decay", 1.0),
        ("training.rollout_decay", -0.1),
        ("training.rollout_decay_after", -1),
        ("training.rollout_decay_growth", 0.0),
        ("training.options.old_kl", -0.1),
        ("training.weight_decay", -0.1),
        ("training.kl", -0.1),
        ("training.warmup_updates", -1),
        ("training.warmup_updates", 80),
        ("exploration.candidates", 0),
        ("exploration.preview_steps", 0),
        ("exploration.prompt_pool", 0),
        ("exploration.prompt_pool", 5),
        ("validation.seeds", 0),
        ("validation.every", 0),
        ("pools.reserved.nodes", -1),
        ("pools.spot.nodes", -1),
        ("pools.spot.workers", 0),
    ],
)
def test_a_value_out_of_bounds_is_named(path: str, value: object) -> None:
    assert problem_of(with_field(path, value)).path == path


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("name", "x" * 64),
        ("seed", 2**63 - 1),
        ("iterations", 1),
        ("group_size", 2),
        ("sampler.micro_batch", 1),
        ("sampler.guidance", 1),
        ("sampler.window.latest", 2),
        ("training.ema_decay", 0.0),
        ("training.options.noisiest", 1e-9),
        ("training.warmup_updates", 79),
        ("pools.spot.nodes", 0),
    ],
)
def test_a_value_at_its_bound_is_taken(path: str, value: object) -> None:
    job_from_data(with_field(path, value))


@pytest.mark.parametrize(
    ("path", "most"),
    [
        ("iterations", 1_000_000),
        ("group_size", 16_384 // 8),
        ("prompts.per_iteration", 16_384 // 8),
        ("checkpoint_every", 1_000_000),
        ("model.lora.rank", 8192),
        ("model.lora.alpha", 8192),
        ("sampler.height", 4096 * 4096 // 64),
        ("sampler.width", 4096 * 4096 // 32),
        ("sampler.steps", 1000),
        ("sampler.evaluation_steps", 1000),
        ("sampler.window.latest", 1000),
        ("sampler.window.slide_every", 1_000_000),
        ("sampler.micro_batch", 4096),
        ("sampler.degree", 1024),
        ("scoring.attempts", 1000),
        ("training.micro_batch", 4096),
        ("training.options.times", 1000),
        ("exploration.candidates", 1000),
        ("exploration.preview_steps", 8),
        ("exploration.probes", 262_144),
        ("validation.seeds", 1000),
        ("validation.every", 1_000_000),
        ("pools.reserved.nodes", 1023),
        ("pools.spot.nodes", 1023),
        ("pools.spot.workers", 256),
    ],
)
def test_a_number_with_a_few_zeros_too_many_is_refused(path: str, most: int) -> None:
    job_from_data(with_field(path, most))
    for too_many in (most + 1, 1000 * most, 2**62):
        error = problem_of(with_field(path, too_many))
        # Where a product is bounded, it is named by one of its factors.
        assert error.path in (path, path.split(".")[0], "group_size"), error
        assert len(str(error)) < 200


@pytest.mark.parametrize("digits", [19, 4000])
def test_a_number_of_more_than_64_bits_is_refused(digits: int) -> None:
    for path in ("seed", "iterations", "training.learning_rate", "sampler.shift"):
        error = problem_of(with_field(path, 10**digits))
        assert error.path == path and "64 bits" in error.problem


@pytest.mark.parametrize("path", ["model.checkpoint", "prompts.train", "prompts.validation"])
@pytest.mark.parametrize("name", ["", "a\0b", "a\nb", "x" * 5000, "a\ud800"])
def test_a_name_that_no_file_can_have_is_refused(path: str, name: str) -> None:
    assert problem_of(with_field(path, name)).path == path


@pytest.mark.parametrize("targets", [["to_q"] * 1001, ["to q"], ["x" * 201], [""]])
def test_names_that_no_module_can_have_are_refused(targets: list[str]) -> None:
    assert problem_of(with_field("model.lora.targets", targets)).path == "model.lora.targets"


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("path", ["sampler.guidance", "training.kl", "sampler.shift"])
def test_a_number_that_is_not_finite_is_refused(path: str, value: float) -> None:
    error = problem_of(with_field(path, value))
    assert error.path == path and "finite" in error.problem


def test_a_wrong_job_is_the_users_to_mend() -> None:
    assert issubclass(JobError, UserError) and JobError("a", "b").exit_code == 2


@pytest.mark.parametrize(
    ("training", "clip"),
    [
        ({}, 1.0),
        ({"loss": "awm"}, 5.0),
        ({"loss": "my_losses:Mine"}, 1.0),
        ({"advantage_clip": 2.0}, 2.0),
        ({"loss": "awm", "advantage_clip": 1.0}, 1.0),
    ],
)
def test_advantages_are_clipped_as_suits_the_loss_unless_the_job_says_otherwise(
    training: dict[str, object], clip: float
) -> None:
    job = job_from_data({**SMALLEST, "training": training})
    assert job.training.largest_advantage == clip
