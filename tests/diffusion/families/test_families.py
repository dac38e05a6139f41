"""What holds for the model of every family."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch

from spotlight.condition_images import digest_of, with_image
from spotlight.diffusion.checkpoints import load_model
from spotlight.diffusion.experts import experts_of
from spotlight.diffusion.families.registry import FAMILIES, open_checkpoint
from spotlight.diffusion.flow_model import FlowModel
from spotlight.diffusion.model import DiffusionModel
from spotlight.diffusion.parallel_plans import matching, plan_of
from spotlight.diffusion.samplers import resume, sample, start
from spotlight.errors import JobError
from spotlight.jobs import LoraSpec, ModelSpec
from spotlight.preflight.trainable import trainable_shapes
from spotlight.types import SamplingSettings

NAMES = [family.name for family in FAMILIES.values() if not family.image_processor] + ["wan-a14b"]
PROMPTS = ["a cat", "a dog", "two birds"]
SEEDS = [1, 2, 3]
SIZE = (32, 64)

Load = Callable[[str], DiffusionModel]


@pytest.fixture(scope="session")
def load(checkpoint_of: Callable[[str], Path]) -> Load:
    """The loaded model of a family; nobody may change it."""
    loaded: dict[str, DiffusionModel] = {}

    def model(name: str) -> DiffusionModel:
        if name not in loaded:
            spec = ModelSpec(checkpoint=str(checkpoint_of(name)))
            loaded[name] = load_model(spec, device="cpu")
        return loaded[name]

    return model


def settings_of(name: str) -> SamplingSettings:
    frames = 5 if name.startswith(("wan", "anyflow")) else 1
    return SamplingSettings(
        kind="flow_sde",
        steps=4,
        height=SIZE[0],
        width=SIZE[1],
        guidance=2.0,
        window=(1, 2),
        micro_batch=4,
        frames=frames,
    )


@pytest.mark.parametrize("name", NAMES)
def test_the_embedding_of_a_prompt_does_not_depend_on_those_beside_it(
    checkpoint_of: Callable[[str], Path], name: str
) -> None:
    """To the bit: whoever computes a part of a batch encodes only the prompts of that part."""
    spec = ModelSpec(checkpoint=str(checkpoint_of(name)))
    together = load_model(spec, device="cpu").encode_prompts(PROMPTS)
    alone = load_model(spec, device="cpu")  # which has not encoded anything yet
    for row, prompt in reversed(list(enumerate(PROMPTS))):
        found = alone.encode_prompts([prompt]).tensors
        expected = together.select([row]).tensors
        assert found.keys() == expected.keys()
        assert all(torch.equal(found[each], expected[each]) for each in found)


def test_words_that_look_like_the_name_of_an_image_are_words_of_a_model_that_takes_none(
    load: Load,
) -> None:
    named = with_image("a cat", digest_of(b"any"))
    found = load("flux").encode_prompts(["a cat", named]).tensors["embeds"]
    assert not torch.equal(found[0], found[1])
    assert sample(load("flux"), [named], [1], settings_of("flux")).latents.isfinite().all()


@pytest.mark.parametrize("name", NAMES)
def test_a_sample_is_the_same_in_other_company_and_order(load: Load, name: str) -> None:
    model, settings = load(name), settings_of(name)
    together = sample(model, PROMPTS, SEEDS, settings)
    backwards = sample(model, PROMPTS[::-1], SEEDS[::-1], settings)
    alone = sample(model, PROMPTS[1:2], SEEDS[1:2], settings)
    assert torch.equal(together.latents, backwards.latents.flip(0))
    assert torch.equal(together.latents[1:2], alone.latents)
    assert together.log_probs is not None
    assert alone.log_probs is not None
    assert torch.equal(together.log_probs[1:2], alone.log_probs)


@pytest.mark.parametrize("name", NAMES)
def test_a_sample_is_the_same_after_it_was_resumed_in_other_company(load: Load, name: str) -> None:
    model, settings = load(name), settings_of(name)
    whole = sample(model, PROMPTS, SEEDS, settings)
    broken = start(model, PROMPTS, SEEDS, settings)
    for _ in range(2):
        broken.step()
    commit = broken.progress().select([2, 0])
    resumed = resume(model, [PROMPTS[2], PROMPTS[0]], [SEEDS[2], SEEDS[0]], settings, commit)
    while not resumed.done:
        resumed.step()
    assert torch.equal(resumed.result().latents, whole.latents[[2, 0]])


@pytest.mark.parametrize("name", NAMES)
def test_the_prompt_and_the_guidance_are_seen_in_the_velocity(load: Load, name: str) -> None:
    model = load(name)
    frames = settings_of(name).frames
    latents = torch.randn(
        1, *model.latent_shape(*SIZE, frames), generator=torch.Generator().manual_seed(0)
    )

    def velocity(prompt: str, guidance: float = 1.0, sigma: float = 0.5) -> torch.Tensor:
        with torch.no_grad():
            return model.velocity(
                latents,
                torch.tensor([sigma]),
                model.encode_prompts([prompt]),
                height=SIZE[0],
                width=SIZE[1],
                frames=frames,
                guidance=guidance,
            )

    plain = velocity("a cat")
    for other in (velocity("a dog"), velocity("a cat", 3.0), velocity("a cat", sigma=0.9)):
        assert not torch.equal(plain, other)


@pytest.mark.parametrize("name", NAMES)
def test_gradients_reach_every_adapter_of_the_familys_own_list(
    checkpoint_of: Callable[[str], Path], name: str
) -> None:
    spec = ModelSpec(checkpoint=str(checkpoint_of(name)), tuning="lora", lora=LoraSpec(rank=2))
    model, frames = load_model(spec, device="cpu"), settings_of(name).frames
    velocity = model.velocity(
        torch.randn(2, *model.latent_shape(*SIZE, frames)),
        torch.tensor([0.5, 0.95]),
        model.encode_prompts(["a cat"] * 2),
        height=SIZE[0],
        width=SIZE[1],
        frames=frames,
    )
    velocity.square().mean().backward()
    state = model.trainable_state()
    assert {name: tuple(tensor.shape) for name, tensor in state.items()} == trainable_shapes(spec)
    parameters = dict(model.transformer.named_parameters())
    family, folder = open_checkpoint(checkpoint_of(name))
    for prefix, target in product(folder.transformers.values(), family.lora_targets):
        gradients = [
            parameter.grad
            for each, parameter in parameters.items()
            if each.startswith(prefix) and f".{target}.lora_B." in f".{each}"
        ]
        assert any(grad is not None and grad.abs().sum() > 0 for grad in gradients), target


@pytest.mark.parametrize("name", NAMES)
def test_what_is_trained_is_what_preflight_says(
    checkpoint_of: Callable[[str], Path], load: Load, name: str
) -> None:
    state = load(name).trainable_state()
    shapes = trainable_shapes(ModelSpec(checkpoint=str(checkpoint_of(name))))
    assert {name: tuple(tensor.shape) for name, tensor in state.items()} == shapes


@pytest.mark.parametrize("name", NAMES)
def test_the_plan_for_several_members_names_modules_that_there_are(load: Load, name: str) -> None:
    for transformer in experts_of(load(name).transformer):
        plan = plan_of(transformer)
        for pattern in (*plan.inputs, *plan.outputs, *plan.gathers):
            assert list(matching(transformer, pattern)), pattern
        assert any(list(matching(transformer, pattern)) for pattern in plan.attention)


def test_a_video_is_decoded_to_frames_and_one_frame_to_an_image(load: Load) -> None:
    model = load("wan")
    for frames, shape in ((5, (1, 5, *SIZE, 3)), (1, (1, *SIZE, 3))):
        latents = torch.zeros(1, *model.latent_shape(*SIZE, frames))
        pixels = model.decode(latents, *SIZE, frames)
        assert (pixels.shape, pixels.dtype) == (shape, np.uint8)


def test_an_image_model_has_no_frames(load: Load) -> None:
    with pytest.raises(JobError, match=r"^sampler\.frames: 5 frames are wanted, .* draws images"):
        load("sd3").latent_shape(*SIZE, 5)


@pytest.mark.parametrize("name", ["sd3", "flux", "flux2-klein", "wan"])
def test_a_prompt_that_the_encoder_cannot_read_is_refused(load: Load, name: str) -> None:
    model = load(name)
    assert isinstance(model, FlowModel)
    with pytest.raises(JobError, match="at most"):
        model.encode_prompts(["x" * 600])


def test_wan_tells_its_transformer_the_times_of_the_checkpoints_scheduler(load: Load) -> None:
    model = load("wan")
    assert isinstance(model, FlowModel)
    scheduler = model._scheduler
    scheduler = type(scheduler).from_config(scheduler.config)
    scheduler.set_timesteps(10)
    told = FAMILIES["WanPipeline"].told(scheduler, scheduler.sigmas[:-1])
    torch.testing.assert_close(told * 1000, scheduler.timesteps.float())
