"""Fields that do not go together are refused with the field to change."""

from __future__ import annotations

from typing import Any

import pytest
from smallest_job import SMALLEST, problem_of, with_field

from spotlight.jobs import job_from_data


def test_so_many_previews_are_refused_that_nobody_could_hold_them() -> None:
    data = with_field("exploration.candidates", 1000, with_field("group_size", 1000))
    assert problem_of(data).path == "exploration.candidates"


def test_a_preview_has_no_more_steps_than_a_sample() -> None:
    data = with_field("exploration.preview_steps", 5, with_field("sampler.steps", 4))
    error = problem_of(data)
    assert error.path == "exploration.preview_steps" and "`sampler.steps` (4)" in error.problem
    job_from_data(with_field("exploration.preview_steps", 4, data))
    job_from_data(with_field("exploration.mode", "none", data))


def test_flow_grpo_needs_a_stochastic_sampler() -> None:
    data = with_field("training.loss", "flow_grpo")
    assert problem_of(data).path == "sampler.kind"
    job_from_data(with_field("sampler.kind", "flow_sde", data))


def test_a_loss_of_the_users_own_is_named_by_module_and_class() -> None:
    job = job_from_data(with_field("training.loss", "my_package.losses:Mine"))
    assert job.training.loss == "my_package.losses:Mine"


@pytest.mark.parametrize("loss", ["diffusion_nft", "awm", "flow_grpo", "grpo_guard"])
@pytest.mark.parametrize("kind", ["ode", "flow_sde", "dance_sde", "cps"])
def test_a_loss_that_cannot_train_on_what_the_sampler_makes_is_one_line(
    loss: str, kind: str
) -> None:
    data = with_field("sampler.kind", kind, with_field("training.loss", loss))
    refused = {"flow_grpo": {"ode"}, "grpo_guard": {"ode", "cps"}}.get(loss, set())
    if kind not in refused:
        job_from_data(data)
        return
    error = problem_of(data)
    assert error.path == "sampler.kind"
    assert error.problem.startswith(f"{loss} cannot train on samples of `{kind}`, only on those of")
    assert "`flow_sde`, `dance_sde`" in error.problem


def test_flow_grpo_takes_a_small_micro_batch_only_where_it_trains_with_the_same() -> None:
    data = with_field("sampler.kind", "flow_sde", with_field("training.loss", "flow_grpo"))
    data = with_field("sampler.micro_batch", 2, data)
    assert problem_of(data).path == "sampler.micro_batch"
    job_from_data(with_field("training.micro_batch", 2, data))


def test_the_window_of_a_stochastic_sampler_ends_before_the_last_step() -> None:
    data = with_field("sampler.kind", "cps", with_field("sampler.steps", 4))
    error = problem_of(data)
    assert error.path == "sampler.window.latest" and "below steps (4)" in error.problem
    job_from_data(with_field("sampler.window.latest", 3, data))


def test_an_ode_sampler_has_no_use_for_the_window() -> None:
    job_from_data(with_field("sampler.steps", 2))


@pytest.mark.parametrize("loss", ["flow_grpo", "grpo_guard"])
def test_losses_that_replay_steps_refuse_another_guidance_than_that_of_rollouts(loss: str) -> None:
    data = with_field("sampler.kind", "flow_sde", with_field("training.loss", loss))
    data = with_field("sampler.guidance", 4.5, data)
    assert job_from_data(data).training.guidance is None
    assert job_from_data(with_field("training.guidance", 4.5, data)).training.guidance == 4.5
    error = problem_of(with_field("training.guidance", 1, data))
    assert error.path == "training.guidance"
    assert error.problem.startswith("must be 4.5 as `sampler.guidance`, or absent, with " + loss)


@pytest.mark.parametrize("kind", ["fp8", "nf4"])
def test_weights_that_are_trained_cannot_be_quantised(kind: str) -> None:
    data = with_field("model.quantize", kind)
    error = problem_of(data)
    assert error.path == "model.quantize"
    assert error.problem.startswith(f"must be `none`, not `{kind}`, with `model.tuning: full`")
    job = job_from_data(with_field("model.tuning", "lora", data))
    assert job.model.quantize == kind


@pytest.mark.parametrize("name", ["flux1-dev-Q4_K_S.gguf", "/models/A.GGUF"])
def test_a_gguf_file_is_refused_with_what_to_do(name: str) -> None:
    error = problem_of(with_field("model.checkpoint", name))
    assert error.path == "model.checkpoint"
    assert "is a GGUF file, which is not read" in error.problem
    assert "`model.quantize`" in error.problem


@pytest.mark.parametrize("noise_level", [1.01, 2.0])
def test_cps_refuses_a_noise_level_above_all_of_the_noise(noise_level: float) -> None:
    """At 2 it would add none."""
    error = problem_of(
        with_field("sampler.noise_level", noise_level, with_field("sampler.kind", "cps"))
    )
    assert error.path == "sampler.noise_level"
    assert f"must be in [0, 1] with `cps`, not {noise_level}" in error.problem


@pytest.mark.parametrize(("kind", "noise_level"), [("cps", 1.0), ("flow_sde", 1.2)])
def test_noise_levels_of_known_recipes_are_accepted(kind: str, noise_level: float) -> None:
    job_from_data(with_field("sampler.noise_level", noise_level, with_field("sampler.kind", kind)))


@pytest.mark.parametrize("kind", ["cps", "flow_sde", "dance_sde"])
def test_flow_grpo_needs_noise(kind: str) -> None:
    data = with_field("training.loss", "flow_grpo", with_field("sampler.kind", kind))
    error = problem_of(with_field("sampler.noise_level", 0, data))
    assert error.path == "sampler.noise_level" and "above 0 with flow_grpo" in error.problem


def test_pools_do_not_limit_the_trainer_ranks_of_a_job_for_a_cluster() -> None:
    job_from_data(with_field("training.ranks", 4))


def test_only_all_weights_can_be_sharded() -> None:
    data = with_field("training.sharded", True)
    assert job_from_data(data).training.sharded
    error = problem_of(with_field("model.tuning", "lora", data))
    assert error.path == "training.sharded" and "needs `model.tuning: full`" in error.problem


def test_a_sharded_model_has_no_slices() -> None:
    data = with_field("training.slices", 4)
    assert job_from_data(data).training.slices == 4
    error = problem_of(with_field("training.sharded", True, data))
    assert error.path == "training.slices"
    assert "must be 1, not 4, with `training.sharded: true`" in error.problem


def test_only_all_weights_can_be_offloaded_and_only_once() -> None:
    data = with_field("training.cpu_offload", True)
    assert job_from_data(data).training.cpu_offload
    error = problem_of(with_field("model.tuning", "lora", data))
    assert error.path == "training.cpu_offload" and "needs `model.tuning: full`" in error.problem
    error = problem_of(with_field("training.ranks", 2, data))
    assert error.path == "training.cpu_offload" and "`training.sharded: true`" in error.problem
    assert job_from_data(
        with_field("training.sharded", True, with_field("training.ranks", 2, data))
    )


def test_samples_are_dealt_out_evenly_over_updates() -> None:
    error = problem_of(with_field("training.updates_per_iteration", 3))
    assert error.path == "training.updates_per_iteration"
    assert "64 samples cannot be divided evenly among 3 updates" in error.problem


def test_diffusion_nft_with_one_update_needs_an_old_policy() -> None:
    """At the old policy nothing holds it: it unlearns everything."""
    data = with_field("training.updates_per_iteration", 1)
    error = problem_of(data)
    assert error.path == "training.rollout_decay"
    assert "above 0 with 1 update per iteration" in error.problem
    data_with_old = with_field("training.rollout_decay", 0.1, data)
    job_from_data(data_with_old)
    late = problem_of(with_field("training.rollout_decay_after", 75, data_with_old))
    assert late.path == "training.rollout_decay_after"
    job_from_data(with_field("training.loss", "flow_grpo", with_field("sampler.kind", "cps", data)))


def test_a_window_budget_needs_training_to_go_on_meanwhile() -> None:
    error = problem_of(with_field("exploration.weights", "fresh"))
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
    assert problem_of({**SMALLEST, **REUSE, **changes}).path == path


FINISH = {
    "sampler": {**SMALLEST.get("sampler", {}), "steps": 8},
    "exploration": {"finish": "previous", "preview_steps": 2},
}


@pytest.mark.parametrize(
    ("changes", "path"),
    [
        ({"training.loss": "awm"}, "exploration.finish"),
        ({"exploration.preview_steps": None}, "exploration.preview_steps"),
        ({"exploration.preview_steps": 8}, "exploration.preview_steps"),
        ({"exploration.reuse": True}, "exploration.finish"),
        ({"exploration.mode": "none"}, "exploration.finish"),
        ({"exploration.weights": "fresh", "exploration.budget": "fixed"}, "exploration.finish"),
        ({"sampler.kind": "cps"}, "exploration.finish"),
        ({"exploration.finish": "older"}, "exploration.finish"),
    ],
)
def test_seeds_that_cannot_be_finished_with_the_weights_of_their_previews_are_refused(
    changes: dict[str, Any], path: str
) -> None:
    data = {**SMALLEST, **FINISH}
    job = job_from_data(data)
    assert job.trains_on_older
    assert job.trained_on == ("rollout", "preview")
    for field, value in changes.items():
        data = with_field(field, value, data)
    assert problem_of(data).path == path


def test_only_losses_are_advised_with_which_seeds_can_be_finished() -> None:
    data = with_field("training.loss", "awm", {**SMALLEST, **FINISH})
    assert "(`diffusion_nft`), not `awm`" in problem_of(data).problem


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
    problem = problem_of({**SMALLEST, **REUSE, "training": {"loss": loss}}).problem
    assert "`diffusion_nft`, `flow_grpo`, `grpo_guard`" in problem
    assert f"not `{loss}`" in problem


def test_prompts_of_a_random_choice_are_not_chosen_by_their_previews() -> None:
    exploration = {"mode": "random", "prompt_pool": 2}
    assert problem_of({**SMALLEST, "exploration": exploration}).path == "exploration.prompt_pool"


@pytest.mark.parametrize(
    ("exploration", "problem"),
    [
        ({"preview_steps": None}, "needs previews of fewer steps than a rollout"),
        ({"preview_steps": 8}, "needs previews of fewer steps than a rollout"),
        ({"mode": "none", "preview_steps": None}, "needs previews of fewer steps than a rollout"),
        ({"preview_checkpoint": "hf:nvidia/AnyFlow"}, "cannot be with `preview_checkpoint`"),
        ({"preview_solver": "heun"}, "heun"),
    ],
)
def test_a_solver_for_previews_alone_is_refused_where_they_have_none(
    exploration: dict[str, Any], problem: str
) -> None:
    asked = {"preview_steps": 2, "preview_solver": "dpmpp_2m"}
    assert job_from_data(with_field("exploration", asked)).exploration.preview_solver == "dpmpp_2m"
    error = problem_of(with_field("exploration", {**asked, **exploration}))
    assert error.path == "exploration.preview_solver"
    assert problem in error.problem


def with_preview_checkpoint(**exploration: Any) -> dict[str, Any]:
    asked = {"preview_checkpoint": "hf:nvidia/AnyFlow", "preview_steps": 2, **exploration}
    return with_field("exploration", asked)


@pytest.mark.parametrize("mode", ["random", "uniform", "bandit"])
@pytest.mark.parametrize("finish", ["newest", "previous"])
def test_a_model_of_their_own_makes_previews_that_choose(mode: str, finish: str) -> None:
    job = job_from_data(with_preview_checkpoint(mode=mode, finish=finish))
    assert job.work.preview_model is not None
    assert job.work.preview_model.checkpoint == "hf:nvidia/AnyFlow"


@pytest.mark.parametrize(
    ("exploration", "path", "problem"),
    [
        ({"reuse": True}, "preview_checkpoint", "cannot be with `reuse: true`"),
        ({"mode": "none"}, "preview_checkpoint", "needs previews"),
        ({"preview_steps": 8}, "preview_steps", "must be below `sampler.steps` (8) with"),
        ({"preview_steps": None}, "preview_steps", "1 to 8 are usual"),
        ({"preview_checkpoint": "hf:AnyFlow"}, "preview_checkpoint", "is no name of the hub"),
    ],
)
def test_what_a_model_of_previews_cannot_be_with_is_named(
    exploration: dict[str, Any], path: str, problem: str
) -> None:
    error = problem_of(with_preview_checkpoint(**exploration))
    assert error.path == f"exploration.{path}"
    assert problem in error.problem
