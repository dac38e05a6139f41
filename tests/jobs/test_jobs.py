"""Jobs: every mistake is one line that names the field and says what to do."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import yaml

from spotlight.errors import JobError, UserError
from spotlight.jobs import (
    LARGEST_JOB_FILE,
    JobSpec,
    job_from_data,
    job_to_yaml,
    load_job,
    parse_job,
)

SMALLEST = {
    "name": "first",
    "model": {"checkpoint": "builtin:ocr-tiny"},
    "prompts": {"train": "builtin:ocr-tiny/train", "validation": "builtin:ocr-tiny/validation"},
    "sampler": {"height": 32, "width": 64},
}


def _with(path: str, value: Any, base: dict[str, Any] = SMALLEST) -> dict[str, Any]:
    """The smallest job with one field set, given by its dotted path."""
    data = copy.deepcopy(base)
    *sections, field = path.split(".")
    section = data
    for name in sections:
        section = section.setdefault(name, {})
    section[field] = value
    return data


def _problem(data: dict[str, Any]) -> JobError:
    with pytest.raises(JobError) as caught:
        job_from_data(data)
    assert str(caught.value) == f"{caught.value.path}: {caught.value.problem}"
    assert "\n" not in str(caught.value)
    return caught.value


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
    error = _problem(data)
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
    error = _problem(_with(path, 1))
    assert error.path == path
    assert f"did you mean `{meant}`?" in error.problem


def test_a_key_like_no_other_is_refused_with_those_that_are_known() -> None:
    error = _problem(_with("scoring.zzz", 1))
    assert error.problem == "unknown key; known here: attempts, flat_iterations, on_failure"


@pytest.mark.parametrize("key", [1, None, True])
def test_a_key_that_is_not_text_is_refused(key: object) -> None:
    assert _problem({**SMALLEST, key: 1}).problem.startswith("unknown key")  # type: ignore[dict-item]


@pytest.mark.parametrize(
    ("path", "value", "problem"),
    [
        ("iterations", "ten", "expected `int`, got `str`"),
        ("iterations", 1.5, "expected `int`, got `float`"),
        ("iterations", True, "expected `int`, got `bool`"),
        ("iterations", None, "expected `int`, got `null`"),
        ("sampler", 3, "expected `object`, got `int`"),
        ("sampler.window", [1], "expected `object`, got `array`"),
        ("sampler.evaluation_steps", "x", "expected `int | null`, got `str`"),
        ("sampler.shift", "x", "expected `float | null`, got `str`"),
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
        ("training.learning_rate", "fast", "expected `float`, got `str`"),
        ("training.adam_betas", [0.9], "expected `array` of length 2, got 1"),
        (
            "training.loss",
            "ppo",
            "must be `awm`, `diffusion_nft`, `flow_grpo`, `grpo_guard` or `module:Class`,"
            " not `ppo`",
        ),
        (
            "training.loss",
            "my losses:Mine",
            "must be `awm`, `diffusion_nft`, `flow_grpo`, `grpo_guard` or `module:Class`,"
            " not `my losses:Mine`",
        ),
        (
            "exploration.mode",
            "greedy",
            "must be `none`, `random`, `uniform` or `bandit`, not `greedy`",
        ),
        ("scoring.on_failure", "zero", "must be `drop_group` or `stop`, not `zero`"),
        ("model.tuning", "qlora", "must be `full` or `lora`, not `qlora`"),
        ("pools.spot", None, "expected `object`, got `null`"),
    ],
)
def test_a_value_of_the_wrong_type_is_named_with_its_path(
    path: str, value: object, problem: str
) -> None:
    error = _problem(_with(path, value))
    assert (error.path, error.problem) == (path, problem)


def test_an_item_of_a_list_is_named_by_its_place() -> None:
    assert _problem(_with("model.lora.targets", ["to_q", 3])).path == "model.lora.targets[1]"


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
        ("sampler.window.stride", 0),
        ("sampler.window.slide_every", 0),
        ("scoring.attempts", 0),
        ("scoring.flat_iterations", 0),
        ("training.ranks", 0),
        ("training.updates_per_iteration", 0),
        ("training.micro_batch", 0),
        ("training.nft_times", 0),
        ("training.nft_noisiest", 0.0),
        ("training.nft_noisiest", 1.01),
        ("training.learning_rate", 0.0),
        ("training.gradient_clip", 0.0),
        ("training.advantage_clip", -1.0),
        ("training.nft_strength", 0.0),
        ("training.clip_range", 0.0),
        ("training.ema_decay", 1.0),
        ("training.rollout_decay", -0.1),
        ("training.rollout_decay_after", -1),
        ("training.rollout_decay_growth", 0.0),
        ("training.awm_kl", -0.1),
        ("training.weight_decay", -0.1),
        ("training.kl", -0.1),
        ("training.warmup_updates", -1),
        ("training.warmup_updates", 80),
        ("training.adam_betas", [0.9, 1.0]),
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
    assert _problem(_with(path, value)).path == path


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
        ("training.nft_noisiest", 1e-9),
        ("training.warmup_updates", 79),
        ("pools.spot.nodes", 0),
    ],
)
def test_a_value_at_its_bound_is_taken(path: str, value: object) -> None:
    job_from_data(_with(path, value))


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
        ("sampler.window.stride", 1000),
        ("sampler.window.slide_every", 1_000_000),
        ("sampler.micro_batch", 4096),
        ("sampler.degree", 1024),
        ("scoring.attempts", 1000),
        ("training.micro_batch", 4096),
        ("training.nft_times", 1000),
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
    job_from_data(_with(path, most))
    for too_many in (most + 1, 1000 * most, 2**62):
        error = _problem(_with(path, too_many))
        # Where a product is bounded, it is named by one of its factors.
        assert error.path in (path, path.split(".")[0], "group_size"), error
        assert len(str(error)) < 200


def test_so_many_previews_are_refused_that_nobody_could_hold_them() -> None:
    data = _with("exploration.candidates", 1000, _with("group_size", 1000))
    assert _problem(data).path == "exploration.candidates"


def test_a_preview_has_no_more_steps_than_a_sample() -> None:
    data = _with("exploration.preview_steps", 5, _with("sampler.steps", 4))
    error = _problem(data)
    assert error.path == "exploration.preview_steps" and "`sampler.steps` (4)" in error.problem
    job_from_data(_with("exploration.preview_steps", 4, data))
    job_from_data(_with("exploration.mode", "none", data))


@pytest.mark.parametrize("digits", [19, 4000])
def test_a_number_of_more_than_64_bits_is_refused(digits: int) -> None:
    for path in ("seed", "iterations", "training.learning_rate", "sampler.shift"):
        error = _problem(_with(path, 10**digits))
        assert error.path == path and "64 bits" in error.problem


@pytest.mark.parametrize("path", ["model.checkpoint", "prompts.train", "prompts.validation"])
@pytest.mark.parametrize("name", ["", "a\0b", "a\nb", "x" * 5000, "a\ud800"])
def test_a_name_that_no_file_can_have_is_refused(path: str, name: str) -> None:
    assert _problem(_with(path, name)).path == path


@pytest.mark.parametrize("targets", [["to_q"] * 1001, ["to q"], ["x" * 201], [""]])
def test_names_that_no_module_can_have_are_refused(targets: list[str]) -> None:
    assert _problem(_with("model.lora.targets", targets)).path == "model.lora.targets"


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("path", ["sampler.guidance", "training.kl", "sampler.shift"])
def test_a_number_that_is_not_finite_is_refused(path: str, value: float) -> None:
    error = _problem(_with(path, value))
    assert error.path == path and "finite" in error.problem


def test_flow_grpo_needs_a_stochastic_sampler() -> None:
    data = _with("training.loss", "flow_grpo")
    assert _problem(data).path == "sampler.kind"
    job_from_data(_with("sampler.kind", "flow_sde", data))


def test_a_loss_of_the_users_own_is_named_by_module_and_class() -> None:
    job = job_from_data(_with("training.loss", "my_package.losses:Mine"))
    assert job.training.loss == "my_package.losses:Mine"


@pytest.mark.parametrize("loss", ["diffusion_nft", "awm", "flow_grpo", "grpo_guard"])
@pytest.mark.parametrize("kind", ["ode", "flow_sde", "dance_sde", "cps"])
def test_a_loss_that_cannot_train_on_what_the_sampler_makes_is_one_line(
    loss: str, kind: str
) -> None:
    data = _with("sampler.kind", kind, _with("training.loss", loss))
    refused = {"flow_grpo": {"ode"}, "grpo_guard": {"ode", "cps"}}.get(loss, set())
    if kind not in refused:
        job_from_data(data)
        return
    error = _problem(data)
    assert error.path == "sampler.kind"
    assert error.problem.startswith(f"{loss} cannot train on samples of `{kind}`, only on those of")
    assert "`flow_sde`, `dance_sde`" in error.problem


def test_flow_grpo_takes_a_small_micro_batch_only_where_it_trains_with_the_same() -> None:
    data = _with("sampler.kind", "flow_sde", _with("training.loss", "flow_grpo"))
    data = _with("sampler.micro_batch", 2, data)
    assert _problem(data).path == "sampler.micro_batch"
    job_from_data(_with("training.micro_batch", 2, data))


def test_the_window_of_a_stochastic_sampler_ends_before_the_last_step() -> None:
    data = _with("sampler.kind", "cps", _with("sampler.steps", 4))
    error = _problem(data)
    assert error.path == "sampler.window.latest" and "below steps (4)" in error.problem
    job_from_data(_with("sampler.window.latest", 3, data))


def test_an_ode_sampler_has_no_use_for_the_window() -> None:
    job_from_data(_with("sampler.steps", 2))


@pytest.mark.parametrize("noise_level", [1.01, 2.0])
def test_cps_refuses_a_noise_level_above_all_of_the_noise(noise_level: float) -> None:
    """At 2 it would add none."""
    error = _problem(_with("sampler.noise_level", noise_level, _with("sampler.kind", "cps")))
    assert error.path == "sampler.noise_level"
    assert f"must be in [0, 1] with `cps`, not {noise_level}" in error.problem


@pytest.mark.parametrize(("kind", "noise_level"), [("cps", 1.0), ("flow_sde", 1.2)])
def test_noise_levels_of_known_recipes_are_accepted(kind: str, noise_level: float) -> None:
    job_from_data(_with("sampler.noise_level", noise_level, _with("sampler.kind", kind)))


@pytest.mark.parametrize("kind", ["cps", "flow_sde", "dance_sde"])
def test_flow_grpo_needs_noise(kind: str) -> None:
    data = _with("training.loss", "flow_grpo", _with("sampler.kind", kind))
    error = _problem(_with("sampler.noise_level", 0, data))
    assert error.path == "sampler.noise_level" and "above 0 with flow_grpo" in error.problem


@pytest.mark.parametrize("loss", ["flow_grpo", "grpo_guard"])
def test_a_loss_that_draws_no_flow_times_cannot_train_on_the_noisiest(loss: str) -> None:
    data = _with("training.loss", loss, _with("sampler.kind", "flow_sde"))
    error = _problem(_with("training.nft_noisiest", 0.5, data))
    assert error.path == "training.nft_noisiest" and f"must be 1 with {loss}" in error.problem
    job_from_data(_with("training.nft_noisiest", 1, data))
    job_from_data(_with("training.nft_noisiest", 0.5, _with("training.loss", "awm")))


def test_pools_do_not_limit_the_trainer_ranks_of_a_job_for_a_cluster() -> None:
    job_from_data(_with("training.ranks", 4))


def test_only_all_weights_can_be_sharded() -> None:
    data = _with("training.sharded", True)
    assert job_from_data(data).training.sharded
    error = _problem(_with("model.tuning", "lora", data))
    assert error.path == "training.sharded" and "needs `model.tuning: full`" in error.problem


def test_only_all_weights_can_be_offloaded_and_only_once() -> None:
    data = _with("training.cpu_offload", True)
    assert job_from_data(data).training.cpu_offload
    error = _problem(_with("model.tuning", "lora", data))
    assert error.path == "training.cpu_offload" and "needs `model.tuning: full`" in error.problem
    error = _problem(_with("training.ranks", 2, data))
    assert error.path == "training.cpu_offload" and "`training.sharded: true`" in error.problem
    assert job_from_data(_with("training.sharded", True, _with("training.ranks", 2, data)))


def test_samples_are_dealt_out_evenly_over_updates() -> None:
    error = _problem(_with("training.updates_per_iteration", 3))
    assert error.path == "training.updates_per_iteration"
    assert "64 samples cannot be divided evenly among 3 updates" in error.problem


def test_diffusion_nft_with_one_update_needs_an_old_policy() -> None:
    """At the old policy nothing holds it: it unlearns everything."""
    data = _with("training.updates_per_iteration", 1)
    error = _problem(data)
    assert error.path == "training.rollout_decay"
    assert "above 0 with 1 update per iteration" in error.problem
    data_with_old = _with("training.rollout_decay", 0.1, data)
    job_from_data(data_with_old)
    late = _problem(_with("training.rollout_decay_after", 75, data_with_old))
    assert late.path == "training.rollout_decay_after"
    job_from_data(_with("training.loss", "flow_grpo", _with("sampler.kind", "cps", data)))


def test_a_job_survives_the_way_through_yaml() -> None:
    data = _with("sampler.shift", 1e-5, _with("training.learning_rate", 1e-7))
    job = job_from_data(_with("model.lora.targets", ["to_q"], data))
    text = job_to_yaml(job)
    assert parse_job(text) == job
    assert job_to_yaml(parse_job(text)) == text


def test_the_yaml_of_a_job_shows_every_default() -> None:
    written = yaml.safe_load(job_to_yaml(job_from_data(SMALLEST)))
    assert set(written) == set(JobSpec.__struct_fields__)
    assert written["pools"]["spot"] == {"nodes": 1, "workers": 1}
    assert written["sampler"]["shift"] is None


@pytest.mark.parametrize("number", ["1e-4", "1E-4", "+1e-4", "1.0e-4", ".1e-3", "0.0001"])
def test_numbers_with_an_exponent_are_numbers(number: str) -> None:
    text = yaml.safe_dump(SMALLEST) + f"training:\n  learning_rate: {number}\n"
    assert parse_job(text).training.learning_rate == pytest.approx(1e-4)


def test_yaml_that_does_not_parse_is_refused_with_file_and_line() -> None:
    with pytest.raises(JobError, match=r"^job\.yaml: is not valid YAML at line 2"):
        parse_job("name: x\nmodel: [", source="job.yaml")


def test_a_key_given_twice_is_refused_with_its_line() -> None:
    text = yaml.safe_dump(SMALLEST) + "iterations: 3\niterations: 4\n"
    with pytest.raises(JobError, match=r"at line \d+: key `iterations` is given twice"):
        parse_job(text)


@pytest.mark.parametrize("text", ["", "just words", "- a\n- b", "3"])
def test_yaml_that_is_no_mapping_is_refused(text: str) -> None:
    with pytest.raises(JobError, match="must hold a mapping"):
        parse_job(text)


def test_yaml_cannot_make_objects() -> None:
    with pytest.raises(JobError, match="is not valid YAML"):
        parse_job("name: !!python/object/apply:os.system ['true']")


def test_relative_paths_start_from_the_job_file(tmp_path: Path) -> None:
    data = _with("prompts.train", "train.txt", _with("model.checkpoint", "../model"))
    file = tmp_path / "jobs" / "job.yaml"
    file.parent.mkdir()
    file.write_text(yaml.safe_dump(data))
    job = load_job(file)
    assert job.prompts.train == str(tmp_path / "jobs" / "train.txt")
    assert job.model.checkpoint == str(tmp_path / "model")
    assert job.prompts.validation == "builtin:ocr-tiny/validation"


def test_a_path_may_start_at_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    job = parse_job(yaml.safe_dump(_with("model.checkpoint", "~/model")), base=Path("/jobs"))
    assert job.model.checkpoint == str(tmp_path / "model")


@pytest.mark.parametrize("path", ["model.checkpoint", "prompts.train", "prompts.validation"])
def test_the_home_of_nobody_is_refused_with_its_field(tmp_path: Path, path: str) -> None:
    name = "~no-such-user/file"
    data = _with(path, name)
    with pytest.raises(JobError, match=f"^{path}: `{name}` does not lead anywhere"):
        parse_job(yaml.safe_dump(data), base=tmp_path)


@pytest.mark.parametrize("base", ["/" + "x" * 4090, "/a\nb", "/a\udcff"])
def test_a_path_that_becomes_one_that_cannot_be_is_refused(base: str) -> None:
    data = _with("prompts.train", "train.txt")
    with pytest.raises(JobError, match=r"^prompts\.train: `train\.txt` leads to a path that must"):
        parse_job(yaml.safe_dump(data), base=Path(base))


def test_links_in_a_circle_are_refused_with_their_field(tmp_path: Path) -> None:
    (tmp_path / "circle").symlink_to("circle")
    with pytest.raises(JobError, match=r"^prompts\.train: "):
        parse_job(yaml.safe_dump(_with("prompts.train", "circle/file")), base=tmp_path)


def test_a_job_file_of_twenty_megabytes_is_refused_unread(tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(yaml.safe_dump(SMALLEST) + "# much ado\n" * 2_000_000)
    with pytest.raises(JobError, match=r"job\.yaml: has 22,000,[0-9]+ bytes"):
        load_job(file)


def test_the_largest_job_fits_into_a_job_file() -> None:
    """So that a run that it began can be resumed."""
    longest = "/" + "\N{GRINNING FACE}" * 1023
    data = {
        **SMALLEST,
        "model": {"checkpoint": longest, "lora": {"targets": ["x" * 200] * 1000}},
        "prompts": {"train": longest, "validation": longest},
    }
    assert len(job_to_yaml(job_from_data(data))) < LARGEST_JOB_FILE


def test_a_job_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(JobError, match=r"none\.yaml: cannot be read \(No such file"):
        load_job(tmp_path / "none.yaml")


def test_a_job_file_that_is_not_text_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(JobError, match="is not UTF-8 text"):
        load_job(file)


def test_a_wrong_job_is_the_users_to_mend() -> None:
    assert issubclass(JobError, UserError) and JobError("a", "b").exit_code == 2


def test_a_window_budget_needs_training_to_go_on_meanwhile() -> None:
    error = _problem(_with("exploration.weights", "fresh"))
    assert error.path == "exploration.budget"
    assert "`fixed` with fresh weights" in error.problem


REUSE = {"exploration": {"mode": "uniform", "reuse": True}}


@pytest.mark.parametrize(
    ("changes", "path"),
    [
        ({"training": {"loss": "awm"}}, "exploration.reuse"),
        ({"exploration": {"reuse": True, "preview_steps": 2}}, "exploration.preview_steps"),
        ({"exploration": {"reuse": True, "mode": "none"}}, "exploration.reuse"),
        (
            {"exploration": {"reuse": True, "weights": "fresh", "budget": "fixed"}},
            "exploration.reuse",
        ),
        ({"exploration": {"reuse": "yes"}}, "exploration.reuse"),
    ],
)
def test_previews_that_cannot_be_trained_on_are_refused(changes: dict[str, Any], path: str) -> None:
    job_from_data({**SMALLEST, **REUSE})
    assert _problem({**SMALLEST, **REUSE, **changes}).path == path


@pytest.mark.parametrize(
    ("loss", "kind"),
    [("flow_grpo", "flow_sde"), ("flow_grpo", "cps"), ("grpo_guard", "dance_sde")],
)
def test_losses_that_correct_for_older_weights_train_on_previews(loss: str, kind: str) -> None:
    sampler = {**SMALLEST.get("sampler", {}), "kind": kind}
    job = job_from_data({**SMALLEST, **REUSE, "sampler": sampler, "training": {"loss": loss}})
    assert job.trained_on == ("rollout", "preview")


@pytest.mark.parametrize("loss", ["awm", "my_losses:Mine"])
def test_a_loss_that_does_not_is_refused_with_those_that_do(loss: str) -> None:
    problem = _problem({**SMALLEST, **REUSE, "training": {"loss": loss}}).problem
    assert "`diffusion_nft`, `flow_grpo`, `grpo_guard`" in problem
    assert f"not `{loss}`" in problem


def test_prompts_of_a_random_choice_are_not_chosen_by_their_previews() -> None:
    exploration = {"mode": "random", "prompt_pool": 2}
    assert _problem({**SMALLEST, "exploration": exploration}).path == "exploration.prompt_pool"
