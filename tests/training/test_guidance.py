"""Training's forward passes have a guidance of their own, which follows from the loss."""

import msgspec
import pytest
import torch

from spotlight.errors import JobError
from spotlight.jobs import SamplerSpec, TrainingSpec
from spotlight.training.trainer import Trainer

from .fakes import GRPO, NFT, NOISY, SAMPLER, FakeModel, make_batch, same_bits
from .qwen import SIZE, tiny_model

AWM = msgspec.structs.replace(NFT, loss="awm", options={})
GUARD = msgspec.structs.replace(GRPO, loss="grpo_guard", options={})


def guided(sampler: SamplerSpec, scale: float = 3.0) -> SamplerSpec:
    return msgspec.structs.replace(sampler, guidance=scale)


def scales(training: TrainingSpec, sampler: SamplerSpec, *, embeds: bool = False) -> set[float]:
    """Those of all forward passes of an iteration, with an old policy and a reference."""
    model = FakeModel()
    model.embeds_guidance = embeds
    training = msgspec.structs.replace(training, kl=0.1, rollout_decay=0.5)
    trainer = Trainer(model, training, sampler, seed=0, reuse=sampler is not SAMPLER)
    trainer.train(0, make_batch(FakeModel(), sampler, count=8))
    return model.guidance


@pytest.mark.parametrize("training", [NFT, AWM], ids=lambda training: training.loss)
def test_losses_that_noise_samples_anew_train_without_the_guidance_of_rollouts(training):
    assert scales(training, guided(SAMPLER)) == {1.0}


@pytest.mark.parametrize("training", [GRPO, GUARD], ids=lambda training: training.loss)
def test_losses_that_replay_steps_train_with_the_guidance_of_rollouts(training):
    assert scales(training, guided(NOISY)) == {3.0}


def test_guidance_that_is_an_input_of_the_transformer_stays_that_of_rollouts():
    assert scales(NFT, guided(SAMPLER), embeds=True) == {3.0}


@pytest.mark.parametrize("embeds", [False, True])
def test_a_job_can_name_the_guidance_of_training(embeds):
    training = msgspec.structs.replace(NFT, guidance=2.0)
    assert scales(training, guided(SAMPLER), embeds=embeds) == {2.0}


@pytest.mark.parametrize("training", [GRPO, GUARD], ids=lambda training: training.loss)
def test_losses_that_replay_steps_refuse_another_guidance_than_that_of_rollouts(training):
    training = msgspec.structs.replace(training, guidance=1.0)
    with pytest.raises(JobError) as caught:
        Trainer(FakeModel(), training, guided(NOISY), seed=0)
    assert caught.value.path == "training.guidance"
    assert "must be 3 as `sampler.guidance`, or absent" in caught.value.problem


def trained(sampler: SamplerSpec, guidance: float | None):
    torch.manual_seed(0)
    training = msgspec.structs.replace(NFT, guidance=guidance)
    trainer = Trainer(tiny_model(), training, sampler, seed=0)
    trainer.train(0, make_batch(tiny_model(), msgspec.structs.replace(SAMPLER, **SIZE), count=8))
    return trainer.state_dict()


def test_training_without_guidance_has_the_bits_of_a_job_that_has_none():
    sampler = msgspec.structs.replace(SAMPLER, **SIZE)
    alone = trained(sampler, None)
    assert same_bits(trained(guided(sampler), None), alone)
    assert same_bits(trained(guided(sampler), 1.0), alone)
    assert not same_bits(trained(guided(sampler), 3.0), alone)
