"""The plan of a job's memory, from outlines of published checkpoints."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from spotlight.diffusion.checkpoints import load_model
from spotlight.errors import JobError, UserError
from spotlight.jobs import JobSpec, LoraSpec, ModelSpec, SamplerSpec, TrainingSpec, job_from_data
from spotlight.preflight.checkpoint_facts import CheckpointInfo, inspect_checkpoint
from spotlight.preflight.gpus import GPUS, gpu_nbytes, require_fit
from spotlight.preflight.memory import (
    FLOAT32,
    MemoryPlan,
    Part,
    WorkerMemory,
    least_store,
    memory_plan,
    saved_bytes,
    trained_bytes,
)
from spotlight.training.trainer import Trainer, TrainingBatch
from spotlight_simulation.outlines import OUTLINES, write_outline
from spotlight_simulation.tiny_families import make_tiny_checkpoint

GB = 1e9
H200 = GPUS["h200-141g"]
Inspect = Callable[[JobSpec], CheckpointInfo]


@pytest.fixture(scope="session")
def outlines(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An outline of every family's published checkpoint."""
    folder = tmp_path_factory.mktemp("outlines")
    for name in OUTLINES:
        write_outline(name, folder / name)
    return folder


@pytest.fixture
def make_job(outlines: Path) -> Callable[..., JobSpec]:
    def make(name: str = "qwen-image", **sections: dict[str, Any]) -> JobSpec:
        model = {"tuning": "lora", "lora": {"rank": 64}} | sections.pop("model", {})
        return job_from_data(
            {
                "name": "job",
                "model": {"checkpoint": str(outlines / name)} | model,
                "prompts": {"train": "train.txt", "validation": "validation.txt"},
                "sampler": {"height": 512, "width": 512} | sections.pop("sampler", {}),
                **sections,
            },
            base=outlines,
        )

    return make


def part(worker: WorkerMemory, name: str) -> Part:
    (found,) = (each for each in worker.parts if each.name == name)
    return found


def test_replicated_full_fine_tuning_keeps_twenty_bytes_of_every_number(
    make_job: Callable[..., JobSpec],
) -> None:
    job = make_job(model={"tuning": "full"})
    checkpoint = inspect_checkpoint(job.model)
    plan = memory_plan(job, checkpoint)
    kept = ("weights to train", "gradients", "Adam's moments", "averaged weights")
    state = sum(part(plan.trainer, name).nbytes for name in kept)
    assert checkpoint.parameters == 20_430_401_088
    assert state == 20 * checkpoint.parameters
    assert part(plan.trainer, "transformer").nbytes == 2 * checkpoint.parameters


def test_sharded_ranks_share_out_what_training_keeps(make_job: Callable[..., JobSpec]) -> None:
    whole = make_job(model={"tuning": "full"}, training={"ranks": 4})
    shared = make_job(model={"tuning": "full"}, training={"ranks": 4, "sharded": True})
    checkpoint = inspect_checkpoint(whole.model)
    one, quarter = (memory_plan(job, checkpoint).trainer for job in (whole, shared))
    for name in ("weights to train", "gradients", "Adam's moments", "averaged weights"):
        assert part(quarter, name).nbytes == part(one, name).nbytes / 4


@pytest.mark.parametrize("ranks", [1, 4])
def test_what_is_offloaded_is_in_host_memory_and_gradients_of_a_pass_are_not(
    make_job: Callable[..., JobSpec], ranks: int
) -> None:
    def plan(offloaded: bool) -> MemoryPlan:
        training = {"ranks": ranks, "sharded": True, "cpu_offload": offloaded, "kl": 0.1}
        job = make_job(model={"tuning": "full"}, training=training)
        return memory_plan(job, inspect_checkpoint(job.model))

    before, after = plan(False), plan(True)
    assert before.training == 0
    state = 24 * 20_430_401_088 // ranks
    assert after.training == state
    names = {each.name for each in after.trainer.parts}
    assert {each.name for each in before.trainer.parts} - names == set(
        trained_bytes(make_job(training={"kl": 0.1}).training)
    )
    saved = before.trainer.in_phase("always") - after.trainer.in_phase("always")
    assert saved == state
    if ranks > 1:
        gradients = part(after.trainer, "gradients of a pass").nbytes
        assert gradients == 4 * 20_430_401_088 // ranks
    assert after.denoiser == before.denoiser


@pytest.mark.parametrize("updates", [1, 2])
def test_the_weights_of_the_beginning_are_kept_only_where_an_iteration_has_two_parts(
    make_job: Callable[..., JobSpec], updates: int
) -> None:
    job = make_job(
        exploration={"reuse": True, "preview_steps": None},
        training={"updates_per_iteration": updates, "loss": "flow_grpo"},
        sampler={"kind": "cps"},
    )
    plan = memory_plan(job, inspect_checkpoint(job.model))
    names = {each.name for each in plan.trainer.parts}
    assert ("weights that an iteration began with" in names) == (updates == 2)


def test_an_old_policy_is_what_an_iteration_began_with(make_job: Callable[..., JobSpec]) -> None:
    training = {"slices": 4, "rollout_decay": 0.5}
    job = make_job(
        exploration={"reuse": True, "preview_steps": None, "budget": "window"}, training=training
    )
    plan = memory_plan(job, inspect_checkpoint(job.model))
    assert "weights that an iteration began with" not in {it.name for it in plan.trainer.parts}


def test_with_slices_every_worker_has_room_for_a_gradient(make_job: Callable[..., JobSpec]) -> None:
    job = make_job(training={"slices": 4})
    checkpoint = inspect_checkpoint(job.model)
    plan = memory_plan(job, checkpoint)
    for worker in (plan.trainer, plan.denoiser):
        assert part(worker, "gradient of a slice").nbytes == 4 * checkpoint.trainable
        assert part(worker, "activations").phase == "training"
    began = part(plan.trainer, "weights that an iteration began with")
    assert began.nbytes == 4 * checkpoint.trainable


def test_on_a_cpu_nothing_is_elsewhere_than_in_host_memory(
    make_job: Callable[..., JobSpec],
) -> None:
    training = {"sharded": True, "cpu_offload": True}
    job = make_job(model={"tuning": "full"}, training=training)
    plan = memory_plan(job, inspect_checkpoint(job.model), nbytes=FLOAT32)
    assert plan.training == 0
    assert part(plan.trainer, "Adam's moments").nbytes == 8 * 20_430_401_088


def test_a_single_rank_that_does_not_fit_is_told_to_offload(
    make_job: Callable[..., JobSpec],
) -> None:
    training = {"micro_batch": 1, "activation_checkpointing": True}
    job = make_job("wan2.1-t2v-1.3b", model={"tuning": "full"}, training=training)
    with pytest.raises(JobError) as error:
        require_fit(job, inspect_checkpoint(job.model), gpu_nbytes("32g"))
    assert error.value.path == "training.cpu_offload"
    job = make_job(
        "wan2.1-t2v-1.3b", model={"tuning": "full"}, training=training | {"cpu_offload": True}
    )
    assert require_fit(job, inspect_checkpoint(job.model), gpu_nbytes("32g"))


def test_guidance_keeps_the_activations_of_two_passes_unless_it_is_an_input(
    make_job: Callable[..., JobSpec],
) -> None:
    def kept(name: str, guidance: float) -> int:
        training = {"guidance": guidance}
        job = make_job(name, sampler={"guidance": 4.0}, training=training)
        plan = memory_plan(job, inspect_checkpoint(job.model))
        return part(plan.trainer, "activations").nbytes

    assert kept("qwen-image", 4.0) == 2 * kept("qwen-image", 1.0)
    assert kept("flux.1-dev", 4.0) == kept("flux.1-dev", 1.0)


@pytest.mark.parametrize(
    ("loss", "kind", "passes"),
    [("diffusion_nft", "ode", 1), ("flow_grpo", "flow_sde", 2), ("my_losses:Mine", "ode", 2)],
)
def test_guided_rollouts_take_a_second_pass_of_training_only_from_losses_that_replay_them(
    make_job: Callable[..., JobSpec], loss: str, kind: str, passes: int
) -> None:
    def kept(guidance: float) -> int:
        sampler = {"guidance": guidance, "kind": kind}
        job = make_job(sampler=sampler, training={"loss": loss, "advantage_clip": 1.0})
        plan = memory_plan(job, inspect_checkpoint(job.model))
        return part(plan.trainer, "activations").nbytes

    assert kept(4.0) == passes * kept(1.0)


def test_quantised_weights_take_fewer_bytes_and_everything_else_as_many(
    make_job: Callable[..., JobSpec],
) -> None:
    def parts(kind: str) -> dict[str, int]:
        job = make_job("qwen-image", model={"tuning": "lora", "quantize": kind})
        plan = memory_plan(job, inspect_checkpoint(job.model))
        return {part.name: part.nbytes for part in plan.trainer.parts}

    whole, eight, four = parts("none"), parts("fp8"), parts("nf4")
    assert eight["transformer"] == pytest.approx(whole["transformer"] / 2, rel=0.01)
    assert four["transformer"] == pytest.approx(whole["transformer"] * 0.5625 / 2, rel=0.01)
    for quantised in (eight, four):
        assert quantised.keys() - whole.keys() == {"a matrix made whole (about)"}
        same = whole.keys() - {"transformer"}
        assert {name: quantised[name] for name in same} == {name: whole[name] for name in same}


def test_two_transformers_are_held_together_and_loaded_one_after_the_other(
    make_job: Callable[..., JobSpec], tmp_path: Path
) -> None:
    def planned(name: str) -> MemoryPlan:
        make_tiny_checkpoint(name, tmp_path / name)
        sampler = {"height": 32, "width": 32}
        job = make_job(name, model={"checkpoint": str(tmp_path / name)}, sampler=sampler)
        return memory_plan(job, inspect_checkpoint(job.model))

    one, two = planned("wan"), planned("wan-a14b")
    for name in ("transformer", "adapters", "weights to train", "Adam's moments"):
        assert part(two.trainer, name).nbytes == 2 * part(one.trainer, name).nbytes
    assert part(two.trainer, "activations") == part(one.trainer, "activations")
    assert two.loading == one.loading


def test_a_sample_of_1280_pixels_needs_activation_checkpointing(
    make_job: Callable[..., JobSpec],
) -> None:
    def kept(checkpointing: bool) -> float:
        job = make_job(
            sampler={"height": 1280, "width": 1280},
            training={"micro_batch": 1, "activation_checkpointing": checkpointing},
        )
        plan = memory_plan(job, inspect_checkpoint(job.model))
        return part(plan.trainer, "activations").nbytes / GB

    assert kept(False) > 80
    assert kept(True) < 5


def test_text_that_is_padded_less_keeps_less(make_job: Callable[..., JobSpec]) -> None:
    plans = []
    for tokens in (64, 256):
        job = make_job(sampler={"text_tokens": tokens})
        plans.append(memory_plan(job, inspect_checkpoint(job.model)))
    less, more = (part(plan.trainer, "activations").nbytes for plan in plans)
    assert less < more


def test_a_worker_that_only_denoises_has_nothing_of_training(
    make_job: Callable[..., JobSpec],
) -> None:
    job = make_job()
    plan = memory_plan(job, inspect_checkpoint(job.model))
    assert plan.denoiser.in_phase("training") == 0
    assert plan.denoiser.most < plan.trainer.most
    assert plan.denoiser_store < plan.trainer_store


def test_where_samples_are_made_ahead_stores_hold_another_version(
    make_job: Callable[..., JobSpec],
) -> None:
    """Of the weights that samples which are lost are made again with."""
    fresh, ahead = make_job(), make_job(exploration={"reuse": True})
    checkpoint = inspect_checkpoint(fresh.model)
    before, after = (memory_plan(job, checkpoint) for job in (fresh, ahead))
    version = before.denoiser_store / 3
    assert after.denoiser_store - before.denoiser_store == version
    assert after.trainer_store - before.trainer_store == version
    assert least_store(ahead, checkpoint) > least_store(fresh, checkpoint)


def test_with_slices_gradients_of_others_lie_in_stores_and_beside_ranks(
    make_job: Callable[..., JobSpec],
) -> None:
    plain, sliced, wide = (
        memory_plan(job, inspect_checkpoint(job.model))
        for job in (
            make_job(),
            make_job(training={"slices": 4}),
            make_job(training={"slices": 4}, pools={"spot": {"workers": 3}}),
        )
    )
    gradient = part(sliced.denoiser, "gradient of a slice").nbytes
    assert sliced.training - plain.training == 3 * gradient, "all but the first may come early"
    assert wide.denoiser_store - sliced.denoiser_store == 2 * 4 * gradient
    lent = sliced.trainer_store - plain.trainer_store
    assert sliced.denoiser_store - plain.denoiser_store == 4 * gradient + lent


@pytest.mark.parametrize("tuning", ["full", "lora"])
def test_a_trainer_saves_as_many_bytes_as_the_plan_says(tmp_path: Path, tuning: str) -> None:
    make_tiny_checkpoint("sd3", tmp_path)
    spec = ModelSpec(
        checkpoint=str(tmp_path),
        tuning=tuning,  # type: ignore[arg-type]
        lora=LoraSpec(rank=2),
    )
    training = TrainingSpec(micro_batch=2, options={"times": 1}, kl=0.1, rollout_decay=0.5)
    model = load_model(spec, device="cpu")
    trainer = Trainer(model, training, SamplerSpec(height=32, width=48), seed=0)
    batch = TrainingBatch(
        prompts=["a cat", "a dog"],
        latents=torch.zeros(2, *model.latent_shape(32, 48)),
        advantages=torch.tensor([-1.0, 1.0]),
    )
    trainer.train(0, batch)
    saved = sum(tensor.nbytes for name, tensor in trainer.state_dict().items() if "/" in name)
    assert saved == saved_bytes(training) * inspect_checkpoint(spec).trainable


def test_a_gpu_is_named_or_given_by_its_size() -> None:
    assert gpu_nbytes("H100-80g") == GPUS["h100-80g"]
    assert gpu_nbytes("24g") == 24 * 10**9
    with pytest.raises(UserError, match=r"--gpu tpu: .* h200-141g"):
        gpu_nbytes("tpu")


def test_what_does_not_fit_is_refused_with_the_change_that_is_enough(
    make_job: Callable[..., JobSpec],
) -> None:
    job = make_job(sampler={"height": 1280, "width": 1280}, training={"micro_batch": 1})
    with pytest.raises(JobError) as error:
        require_fit(job, inspect_checkpoint(job.model), GPUS["h100-80g"])
    assert error.value.path == "training.activation_checkpointing"
    assert "the most for activations (84." in str(error.value)
    assert "`training.activation_checkpointing: true` needs" in str(error.value)
    better = make_job(
        sampler={"height": 1280, "width": 1280},
        training={"micro_batch": 1, "activation_checkpointing": True},
    )
    assert require_fit(better, inspect_checkpoint(better.model), GPUS["h100-80g"])


def test_several_changes_are_named_where_one_is_not_enough(
    make_job: Callable[..., JobSpec],
) -> None:
    job = make_job("sd3.5-medium", sampler={"height": 1024, "width": 1024, "micro_batch": 1})
    with pytest.raises(JobError, match=r"activation_checkpointing: true`.* and `training.micro_b"):
        require_fit(job, inspect_checkpoint(job.model), gpu_nbytes("18.2g"))


def test_full_fine_tuning_is_told_to_share_out_or_to_train_adapters(
    make_job: Callable[..., JobSpec],
) -> None:
    training = {"ranks": 4, "micro_batch": 1, "activation_checkpointing": True}
    job = make_job(model={"tuning": "full"}, training=training)
    with pytest.raises(JobError) as error:
        require_fit(job, inspect_checkpoint(job.model), H200)
    assert error.value.path == "training.sharded"
    assert "`training.sharded: true` and `training.ranks: " in str(error.value)
    wan = make_job("wan2.1-t2v-1.3b", model={"tuning": "full"}, training=training)
    with pytest.raises(JobError) as error:
        require_fit(wan, inspect_checkpoint(wan.model), gpu_nbytes("32g"))
    assert error.value.path == "training.sharded"


def test_no_gpu_is_advised_to_a_model_that_is_larger_than_any_change_helps(
    make_job: Callable[..., JobSpec],
) -> None:
    job = make_job()
    with pytest.raises(JobError, match="take a smaller model or a larger GPU"):
        require_fit(job, inspect_checkpoint(job.model), GPUS["rtx4090-24g"])


def test_workers_on_cpus_compute_in_float32(make_job: Callable[..., JobSpec]) -> None:
    job = make_job()
    checkpoint = inspect_checkpoint(job.model)
    plan = memory_plan(job, checkpoint, nbytes=FLOAT32)
    assert part(plan.trainer, "transformer").nbytes == 4 * checkpoint.parameters
    assert part(plan.trainer, "text encoders").phase == "always"
    assert plan.resting == 0
