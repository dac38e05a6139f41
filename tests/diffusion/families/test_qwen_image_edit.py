"""The model that changes images, on a tiny checkpoint."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from spotlight.condition_images import digest_of, with_image
from spotlight.diffusion.checkpoints import load_model
from spotlight.diffusion.model import DiffusionModel
from spotlight.diffusion.samplers import resume, sample, start
from spotlight.errors import JobError
from spotlight.jobs import LoraSpec, ModelSpec
from spotlight.types import SamplingSettings
from spotlight_simulation.pixels import IMAGES, png_of

pytestmark = pytest.mark.timeout(240)  # images are read at a megapixel

FILES = {digest_of(file): file for file in map(png_of, IMAGES)}
PROMPTS = [with_image("make it red", digest) for digest in FILES]
SETTINGS = SamplingSettings(
    kind="flow_sde", steps=2, height=64, width=128, guidance=2.0, window=(0, 1), micro_batch=2
)


@pytest.fixture(scope="module")
def model(checkpoint_of: Callable[[str], Path]) -> DiffusionModel:
    spec = ModelSpec(
        checkpoint=str(checkpoint_of("qwen-image-edit")), tuning="lora", lora=LoraSpec(rank=2)
    )
    return load_model(spec, device="cpu", images=FILES)


def test_a_sample_depends_on_its_image_and_not_on_its_company(model: DiffusionModel) -> None:
    together = sample(model, PROMPTS, [1, 1], SETTINGS).latents
    assert not torch.equal(together[0], together[1])
    assert torch.equal(sample(model, PROMPTS[1:], [1], SETTINGS).latents, together[1:])
    broken = start(model, PROMPTS, [1, 1], SETTINGS)
    broken.step()
    resumed = resume(model, PROMPTS[:1], [1], SETTINGS, broken.progress().select([0]))
    resumed.step()
    assert torch.equal(resumed.result().latents, together[:1])


def test_gradients_reach_the_adapters(model: DiffusionModel) -> None:
    velocity = model.velocity(
        torch.randn(1, *model.latent_shape(64, 128)),
        torch.tensor([0.5]),
        model.encode_prompts(PROMPTS[:1]),
        height=64,
        width=128,
    )
    velocity.square().mean().backward()
    gradients = [each.grad for each in model.transformer.parameters() if each.requires_grad]
    assert any(grad is not None and grad.abs().sum() > 0 for grad in gradients)


def test_what_has_no_image_or_one_that_is_not_here_is_refused(model: DiffusionModel) -> None:
    with pytest.raises(JobError, match="has no image"):
        model.encode_prompts(["make it red"])
    with pytest.raises(JobError, match="is not here"):
        model.encode_prompts([with_image("make it red", "0" * 32)])
