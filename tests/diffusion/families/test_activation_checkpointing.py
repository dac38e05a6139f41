"""Training with activation checkpointing, on the tiny checkpoint of every family."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
import torch
from torch import Tensor

from spotlight.actors.coordinator.tenant.request_plans import sampling_settings
from spotlight.diffusion.checkpoints import load_model
from spotlight.diffusion.families.registry import FAMILIES
from spotlight.diffusion.model import DiffusionModel
from spotlight.diffusion.samplers import sample
from spotlight.jobs import LoraSpec, ModelSpec, SamplerSpec, TrainingSpec, WindowSpec
from spotlight.training.trainer import Trainer, TrainingBatch

TRAINED = [f for f in FAMILIES.values() if not f.image_processor and not f.any_step]
NAMES = [family.name for family in TRAINED] + ["wan-a14b"]
NFT = TrainingSpec(micro_batch=2, options={"times": 1}, learning_rate=1e-2, kl=0.1)
GRPO = msgspec.structs.replace(NFT, loss="flow_grpo", options={})


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def sampler_of(name: str) -> SamplerSpec:
    return SamplerSpec(
        height=32,
        width=64,
        frames=5 if name.startswith("wan") else 1,
        steps=4,
        kind="flow_sde",
        window=WindowSpec(length=2, earliest=1, latest=3),
        guidance=2.0,
        micro_batch=2,
    )


def batch_of(model: DiffusionModel, sampler: SamplerSpec) -> TrainingBatch:
    prompts = ["a cat", "a dog"] * 2
    settings = sampling_settings(sampler, sampler.steps, 1)
    samples = sample(model, prompts, range(4), settings)
    return TrainingBatch(
        prompts=prompts,
        latents=samples.latents,
        advantages=torch.linspace(-2, 2, 4),
        window_states=samples.window_states,
        log_probs=samples.log_probs,
        window_start=samples.window_start,
    )


def trained(
    spec: ModelSpec, name: str, training: TrainingSpec
) -> tuple[dict[str, Tensor], dict[str, float], int]:
    """The state after two updates, the report, and how often the first block was computed."""
    model, sampler, calls = load_model(spec, device="cpu"), sampler_of(name), 0

    def count(*_: object) -> None:
        nonlocal calls
        calls += torch.is_grad_enabled()

    lists = [m for m in model.transformer.modules() if isinstance(m, torch.nn.ModuleList)]
    blocks = max(lists, key=lambda each: sum(p.numel() for p in each.parameters()))
    blocks[0].register_forward_pre_hook(count)
    trainer = Trainer(model, training, sampler, seed=0)
    report = trainer.train(0, batch_of(model, sampler))
    return trainer.state_dict(), report, calls


@pytest.mark.parametrize("name", NAMES)
def test_updates_have_the_same_bits_with_blocks_computed_twice(
    checkpoint_of: Callable[[str], Path], name: str
) -> None:
    """All weights of every second family, and an adapter of the others."""
    is_full = NAMES.index(name) % 2 == 0
    training = GRPO if is_full else NFT
    spec = ModelSpec(
        checkpoint=str(checkpoint_of(name)),
        tuning="full" if is_full else "lora",
        lora=LoraSpec(rank=2),
    )
    kept, report, once = trained(spec, name, training)
    checkpointing = msgspec.structs.replace(training, activation_checkpointing=True)
    computed, other_report, twice = trained(spec, name, checkpointing)
    assert report == other_report
    assert report["grad_norm"] > 0
    assert kept.keys() == computed.keys()
    assert all(torch.equal(kept[key], computed[key]) for key in kept)
    assert twice == 2 * once


def test_a_trainer_that_keeps_activations_undoes_the_choice_of_one_before_it(
    checkpoint_of: Callable[[str], Path],
) -> None:
    model = load_model(ModelSpec(checkpoint=str(checkpoint_of("sd3"))), device="cpu")
    sampler = sampler_of("sd3")
    for wanted in (True, False):
        training = msgspec.structs.replace(NFT, activation_checkpointing=wanted)
        Trainer(model, training, sampler, seed=0)
        assert model.transformer.gradient_checkpointing is wanted
