"""What the makers of the built-in checkpoints share: a Qwen-Image-shaped pixel-space DiT, flow
matching in phases, validation, and writing a folder in diffusers layout.

Deterministic from the seed on one machine. A maker brings a `Task`: its sizes and words, pictures
with what they show, captions, prompts and a scorer.
"""

from __future__ import annotations

import argparse
import json
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

import numpy as np
import torch
from diffusers import FlowMatchEulerDiscreteScheduler, QwenImageTransformer2DModel
from torch import Tensor

from spotlight.diffusion.families.qwen_image import QwenImage
from spotlight.diffusion.flow_model import FlowModel
from spotlight.diffusion.images import PixelCodec
from spotlight.diffusion.samplers import sample
from spotlight.diffusion.text import TokenTextEncoder
from spotlight.diffusion.vocabulary import TokenVocabulary
from spotlight.rewards.base import Prompt, Scorer
from spotlight.types import SamplingSettings

VALIDATION_SEEDS = 4

log = logging.getLogger(__name__)

Shown = TypeVar("Shown")


@dataclass(frozen=True)
class Recipe:
    """How a checkpoint is made."""

    seed: int = 0
    layers: int = 2
    heads: int = 4
    head_dim: int = 32
    text_dim: int = 32
    batch: int = 64
    true_steps: int = 900
    """Steps with true captions."""
    true_learning_rate: float = 1.5e-3
    mixed_steps: int = 150
    """Steps in which a share of the captions is wrong; 0 leaves them out."""
    mixed_learning_rate: float = 7e-4
    wrong_captions: float = 0.64
    """The share of captions that are wrong in these steps."""
    empty_captions: float = 0.05
    """Share of captions left out, for classifier-free guidance."""
    ema_decay: float = 0.99


@dataclass(frozen=True)
class Phase:
    """One stretch of flow matching with an optimizer of its own."""

    steps: int
    learning_rate: float
    wrong_captions: float

    def learning_rate_at(self, step: int) -> float:
        """Linear warm-up over 100 steps, linear decay over the last two thirds."""
        decay = min(1.0, 1.5 * (1 - step / self.steps) + 0.03)
        return self.learning_rate * min(1.0, (step + 1) / 100) * decay


class Task(Protocol[Shown]):
    """What a checkpoint learns to draw."""

    height: int
    """Height of an image in pixels."""
    width: int
    """Width of an image in pixels."""
    patch: int
    """Pixels of a token's edge."""
    colours: int
    """1 for grey, 3 for RGB."""
    shift: float
    """The shift of the noise schedule: above 1 it dwells on high noise, where it is decided what is
    where."""
    axes: tuple[int, int, int]
    """Channels of a head that say frame, row and column."""
    words: tuple[str, ...]
    """Words of the prompts that are one token each."""
    characters: str
    """Characters that are."""
    tokens: int
    """Tokens of the longest prompt."""

    def draw(self, count: int, generator: torch.Generator) -> tuple[Tensor, Shown]:
        """`count` pictures [count, colours, height, width] in [-1, 1], and what they show. Never
        what a validation prompt asks for.
        """
        ...

    def captions(self, shown: Shown, wrong: float, generator: torch.Generator) -> list[str]:
        """Prompts for the pictures of one batch; a share `wrong` of them names something else."""
        ...

    def validation_prompts(self) -> list[Prompt]:
        """Prompts to measure the model on."""
        ...

    def prompt_files(self) -> dict[str, str]:
        """Texts of the files of the folder `prompts`, by name."""
        ...

    def scorer(self) -> Scorer:
        """The reward that the checkpoint is meant for."""
        ...


def build_model(task: Task[Shown], recipe: Recipe) -> FlowModel:
    """The randomly initialised model."""
    torch.manual_seed(recipe.seed)
    transformer = QwenImageTransformer2DModel(
        patch_size=task.patch,
        in_channels=task.colours * task.patch**2,
        out_channels=task.colours,
        num_layers=recipe.layers,
        attention_head_dim=recipe.head_dim,
        num_attention_heads=recipe.heads,
        joint_attention_dim=recipe.text_dim,
        axes_dims_rope=task.axes,
    )
    vocabulary = TokenVocabulary(task.words, task.characters, task.tokens, recipe.text_dim)
    text = TokenTextEncoder.create(vocabulary, torch.Generator().manual_seed(recipe.seed))
    scheduler = FlowMatchEulerDiscreteScheduler(shift=task.shift)
    codec = PixelCodec(task.patch, task.colours)
    return FlowModel(QwenImage(), transformer, scheduler, text, codec)


def pretrain(
    model: FlowModel,
    task: Task[Shown],
    recipe: Recipe,
    phase: Phase,
    generator: torch.Generator,
) -> None:
    """Flow matching on pictures of the task; leaves the averaged weights in the model."""
    codec = PixelCodec(task.patch, task.colours)
    parameters = list(model.transformer.parameters())
    optimizer = torch.optim.AdamW(parameters, betas=(0.9, 0.99), weight_decay=0.01)
    average = [parameter.detach().clone() for parameter in parameters]
    started = time.monotonic()
    for step in range(phase.steps):
        optimizer.param_groups[0]["lr"] = phase.learning_rate_at(step)
        pictures, shown = task.draw(recipe.batch, generator)
        clean = codec.encode(pictures)
        noise = torch.randn(clean.shape, generator=generator)
        uniform = torch.rand(recipe.batch, generator=generator)
        sigma = task.shift * uniform / (1 + (task.shift - 1) * uniform)
        noisy = torch.lerp(clean, noise, sigma.view(-1, 1, 1))
        prompts = task.captions(shown, phase.wrong_captions, generator)
        prompts = leave_out(prompts, recipe.empty_captions, generator)
        velocity = model.velocity(
            noisy, sigma, model.encode_prompts(prompts), height=task.height, width=task.width
        )
        loss = (velocity - (noise - clean)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        decay = min(recipe.ema_decay, step / (step + 10))
        torch._foreach_lerp_(average, [p.detach() for p in parameters], 1 - decay)
        if step % 50 == 49:
            seconds = time.monotonic() - started
            log.info("step %d: loss %.4f, %.0f s", step + 1, loss.item(), seconds)
    with torch.no_grad():
        for parameter, mean in zip(parameters, average, strict=True):
            parameter.copy_(mean)


def leave_out(prompts: Sequence[str], share: float, generator: torch.Generator) -> list[str]:
    """The prompts, a share of them empty."""
    empty = torch.rand(len(prompts), generator=generator) < share
    return ["" if no else prompt for no, prompt in zip(empty.tolist(), prompts, strict=True)]


def validate(model: FlowModel, task: Task[Shown], scorer: Scorer) -> tuple[float, float]:
    """Mean reward, and mean in-prompt standard deviation, of 8 Euler steps without guidance."""
    prompts = task.validation_prompts()
    settings = SamplingSettings(
        kind="ode", steps=8, height=task.height, width=task.width, micro_batch=32
    )
    repeated = [prompt for prompt in prompts for _ in range(VALIDATION_SEEDS)]
    texts = [prompt.text for prompt in repeated]
    latents = sample(model, texts, list(range(len(repeated))), settings).latents
    images = model.decode(latents, task.height, task.width)
    rewards = np.array(scorer.score(images, repeated))
    return float(rewards.mean()), float(rewards.reshape(len(prompts), -1).std(axis=1).mean())


def save(model: FlowModel, folder: Path, prompt_files: dict[str, str]) -> None:
    """Write the checkpoint in diffusers layout, weights in bfloat16, and the prompt lists."""
    model.transformer.to(torch.bfloat16).save_pretrained(folder / "transformer")
    model.transformer.to(torch.float32)
    model._scheduler.save_pretrained(folder / "scheduler")
    assert isinstance(model._text_encoder, TokenTextEncoder)
    model._text_encoder.save(folder / "text_encoder")
    index = {
        "_class_name": "QwenImagePipeline",
        "scheduler": ["diffusers", "FlowMatchEulerDiscreteScheduler"],
        "text_encoder": ["spotlight", "TokenTextEncoder"],
        "tokenizer": [None, None],
        "transformer": ["diffusers", "QwenImageTransformer2DModel"],
        "vae": [None, None],
    }
    (folder / "model_index.json").write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")
    (folder / "prompts").mkdir(exist_ok=True)
    for name, text in prompt_files.items():
        (folder / "prompts" / name).write_text(text, encoding="utf-8")


def parse_arguments(description: str | None, defaults: Recipe) -> tuple[Path, Recipe]:
    """The folder to write and the recipe that the command line asks for."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--folder", type=Path, required=True)
    for name, value in vars(defaults).items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(value), default=value)
    arguments = vars(parser.parse_args())
    return arguments.pop("folder"), Recipe(**arguments)


def make(task: Task[Shown], recipe: Recipe, folder: Path) -> None:
    """Train, measure and save, on one core."""
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    torch.set_num_threads(1)
    model, scorer = build_model(task, recipe), task.scorer()
    generator = torch.Generator().manual_seed(recipe.seed + 1)
    for phase in (
        Phase(recipe.true_steps, recipe.true_learning_rate, 0.0),
        Phase(recipe.mixed_steps, recipe.mixed_learning_rate, recipe.wrong_captions),
    ):
        if phase.steps == 0:
            continue
        pretrain(model, task, recipe, phase, generator)
        log.info("validation %.3f, in-prompt std %.3f", *validate(model, task, scorer))
    save(model, folder, task.prompt_files())
