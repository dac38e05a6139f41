import msgspec
import pytest
import torch

from spotlight.actors.coordinator.tenant.request_plans import sampling_settings
from spotlight.diffusion.samplers import sample
from spotlight.jobs import SamplerSpec, TrainingSpec, WindowSpec
from spotlight.training.trainer import Trainer, TrainingBatch

from .qwen import tiny_model

SAMPLER = SamplerSpec(height=16, width=16, steps=5, micro_batch=4)
NOISY = msgspec.structs.replace(
    SAMPLER, kind="flow_sde", window=WindowSpec(length=2, earliest=0, latest=3)
)
TRAINING = TrainingSpec(micro_batch=8, options={"times": 2})


def batch_of(model, sampler, start=0):
    prompts = ["red", "blue"] * 4
    samples = sample(model, prompts, range(8), sampling_settings(sampler, sampler.steps, start))
    return TrainingBatch(
        prompts=prompts,
        latents=samples.latents,
        advantages=torch.linspace(-2, 2, 8),
        window_states=samples.window_states,
        log_probs=samples.log_probs,
        window_start=samples.window_start,
    )


@pytest.mark.parametrize("kind", ["flow_sde", "cps"])
@pytest.mark.parametrize("start", [0, 1])
@pytest.mark.parametrize("guidance", [1.0, 2.0])
@pytest.mark.parametrize("lora", [False, True])
def test_replay_in_larger_batches_has_ratio_exactly_1(kind, start, guidance, lora):
    model = tiny_model(lora=lora)
    sampler = msgspec.structs.replace(NOISY, kind=kind, guidance=guidance)
    training = msgspec.structs.replace(
        TRAINING, loss="flow_grpo", options={}, updates_per_iteration=1
    )
    trainer = Trainer(model, training, sampler, seed=0)
    report = trainer.train(0, batch_of(model, sampler, start))
    assert report["first_ratio_deviation"] == 0


@pytest.mark.parametrize("loss", ["diffusion_nft", "flow_grpo"])
def test_lora_trains_only_the_adapters(loss):
    model = tiny_model(lora=True)
    sampler = NOISY if loss == "flow_grpo" else SAMPLER
    training = msgspec.structs.replace(TRAINING, loss=loss, options={})
    before = {name: p.detach().clone() for name, p in model.transformer.named_parameters()}
    trainer = Trainer(model, training, sampler, seed=0)
    trainer.train(0, batch_of(model, sampler))
    changed = {
        name
        for name, parameter in model.transformer.named_parameters()
        if not torch.equal(parameter, before[name])
    }
    assert changed
    assert all("lora_" in name for name in changed)
    assert trainer.rollout_state().keys() == model.trainable_state().keys()


def test_another_worker_samples_the_same_with_the_published_weights():
    trained, worker = tiny_model(), tiny_model(seed=3)
    worker._text_encoder = trained._text_encoder
    trainer = Trainer(trained, TRAINING, SAMPLER, seed=0)
    trainer.train(0, batch_of(trained, SAMPLER))
    worker.load_trainable_state(trainer.rollout_state())
    assert torch.equal(batch_of(worker, SAMPLER).latents, batch_of(trained, SAMPLER).latents)
