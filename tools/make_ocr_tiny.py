"""Make the built-in checkpoint `ocr-tiny` from nothing: a Qwen-Image-shaped pixel-space DiT that
draws four digits.

Deterministic from the seed on one machine; a few minutes on one CPU core. Two phases of flow
matching: the first, with true captions, teaches the model to draw the number that it is asked for;
the second, short one, in which most captions name another number, makes it unsure whether it
should. The model is left there on purpose: it draws clean digits, often not the right ones, and
reinforcement learning can mend that within minutes.

    python tools/make_ocr_tiny.py --folder spotlight/assets/ocr-tiny
"""

from __future__ import annotations

import argparse
import json
import logging
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from diffusers import FlowMatchEulerDiscreteScheduler, QwenImageTransformer2DModel
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from spotlight.diffusion.images import PixelCodec
from spotlight.diffusion.qwen_image import QwenImageModel
from spotlight.diffusion.samplers import SamplerSettings, sample
from spotlight.diffusion.text import TokenTextEncoder, TokenVocabulary
from spotlight.rewards.ocr import OcrScorer
from spotlight.rewards.recognition import RapidRecognizer

HEIGHT, WIDTH, PATCH, DIGITS = 16, 48, 4, 4
FONT_SIZE = 16
CELL = WIDTH // DIGITS
PROMPT = 'the number "{}"'
VALIDATION_SEEDS = 4

log = logging.getLogger("make_ocr_tiny")


@dataclass(frozen=True)
class Recipe:
    """How the checkpoint is made."""

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
    """Steps in which a share of the captions is wrong."""
    mixed_learning_rate: float = 7e-4
    wrong_captions: float = 0.64
    """That share."""
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


def build_model(recipe: Recipe) -> QwenImageModel:
    """The randomly initialised model."""
    torch.manual_seed(recipe.seed)
    half = recipe.head_dim // 4 // 2 * 2
    transformer = QwenImageTransformer2DModel(
        patch_size=PATCH,
        in_channels=PATCH * PATCH,
        out_channels=1,
        num_layers=recipe.layers,
        attention_head_dim=recipe.head_dim,
        num_attention_heads=recipe.heads,
        joint_attention_dim=recipe.text_dim,
        axes_dims_rope=(half, half, recipe.head_dim - 2 * half),
    )
    vocabulary = TokenVocabulary(
        words=("the", "number"), characters='"0123456789', length=8, dim=recipe.text_dim
    )
    text = TokenTextEncoder.create(vocabulary, torch.Generator().manual_seed(recipe.seed))
    scheduler = FlowMatchEulerDiscreteScheduler(shift=1.0)
    return QwenImageModel(transformer, scheduler, text, PixelCodec(PATCH, 1))


def glyph_bank() -> Tensor:
    """Digits [offsets, 10, HEIGHT, CELL] in [0, 1]: PIL's own font, shifted sideways by up to a
    pixel.
    """
    font = ImageFont.load_default(FONT_SIZE)
    variants = []
    for offset in (-1, 0, 1):
        row = []
        for digit in "0123456789":
            image = Image.new("L", (CELL, HEIGHT), 0)
            centre = (CELL / 2 + offset, HEIGHT / 2)
            ImageDraw.Draw(image).text(centre, digit, fill=255, font=font, anchor="mm")
            row.append(np.asarray(image, dtype=np.float32) / 255)
        variants.append(np.stack(row))
    return torch.from_numpy(np.stack(variants))


def draw(bank: Tensor, digits: Tensor, generator: torch.Generator) -> Tensor:
    """Images [B, 1, HEIGHT, WIDTH] in [-1, 1] of digits [B, DIGITS]; one offset and brightness per
    image.
    """
    offset = torch.randint(len(bank), (len(digits), 1), generator=generator)
    brightness = 0.8 + 0.2 * torch.rand(len(digits), 1, 1, 1, generator=generator)
    cells = bank[offset, digits] * brightness
    return cells.permute(0, 2, 1, 3).reshape(len(digits), 1, HEIGHT, WIDTH) * 2 - 1


def captions(digits: Tensor, wrong: float, empty: float, generator: torch.Generator) -> list[str]:
    """Prompts for digits [B, DIGITS]: shares of them name a random number, or are empty."""
    count = len(digits)
    others = torch.randint(10, digits.shape, generator=generator)
    named = torch.where(torch.rand(count, 1, generator=generator) < wrong, others, digits)
    dropped = torch.rand(count, generator=generator) < empty
    return [
        "" if drop else PROMPT.format("".join(map(str, row)))
        for row, drop in zip(named.tolist(), dropped.tolist(), strict=True)
    ]


def pretrain(
    model: QwenImageModel, recipe: Recipe, phase: Phase, known: Tensor, generator: torch.Generator
) -> None:
    """Flow matching on images of the numbers `known` [N, DIGITS]; leaves the averaged weights in
    the model.
    """
    bank, codec = glyph_bank(), PixelCodec(PATCH, 1)
    parameters = list(model.transformer.parameters())
    optimizer = torch.optim.AdamW(parameters, betas=(0.9, 0.99), weight_decay=0.01)
    average = [parameter.detach().clone() for parameter in parameters]
    started = time.monotonic()
    for step in range(phase.steps):
        optimizer.param_groups[0]["lr"] = phase.learning_rate_at(step)
        digits = known[torch.randint(len(known), (recipe.batch,), generator=generator)]
        clean = codec.encode(draw(bank, digits, generator))
        noise = torch.randn(clean.shape, generator=generator)
        sigma = torch.rand(recipe.batch, generator=generator)
        noisy = torch.lerp(clean, noise, sigma.view(-1, 1, 1))
        prompts = captions(digits, phase.wrong_captions, recipe.empty_captions, generator)
        velocity = model.velocity(
            noisy, sigma, model.encode_prompts(prompts), height=HEIGHT, width=WIDTH
        )
        loss = (velocity - (noise - clean)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        decay = min(recipe.ema_decay, step / (step + 10))
        torch._foreach_lerp_(average, [p.detach() for p in parameters], 1 - decay)
        if step % 50 == 49:
            log.info(
                "step %d: loss %.4f, %.0f s", step + 1, loss.item(), time.monotonic() - started
            )
    with torch.no_grad():
        for parameter, mean in zip(parameters, average, strict=True):
            parameter.copy_(mean)


def validate(model: QwenImageModel, prompts: list[str]) -> tuple[float, float]:
    """Mean OCR reward, and mean in-prompt standard deviation, of 8 Euler steps without guidance."""
    settings = SamplerSettings("ode", 8, HEIGHT, WIDTH, micro_batch=32)
    repeated = [prompt for prompt in prompts for _ in range(VALIDATION_SEEDS)]
    latents = sample(model, repeated, list(range(len(repeated))), settings).latents
    images = model.decode(latents, HEIGHT, WIDTH)
    rewards = np.array(OcrScorer(RapidRecognizer()).score(images, repeated))
    return float(rewards.mean()), float(rewards.reshape(len(prompts), -1).std(axis=1).mean())


def make_numbers(seed: int) -> tuple[list[str], list[str]]:
    """512 numbers to train on and 32 others to validate on."""
    order = torch.randperm(10**DIGITS, generator=torch.Generator().manual_seed(seed)).tolist()
    numbers = [f"{number:0{DIGITS}d}" for number in order]
    return numbers[32 : 32 + 512], numbers[:32]


def save(model: QwenImageModel, folder: Path, train: list[str], validation: list[str]) -> None:
    """Write the checkpoint in diffusers layout, weights in bfloat16, and the prompt lists."""
    model.transformer.to(torch.bfloat16).save_pretrained(folder / "transformer")
    model.transformer.to(torch.float32)
    model._scheduler.save_pretrained(folder / "scheduler")
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
    for name, prompts in (("train", train), ("validation", validation)):
        text = "".join(f"{prompt}\n" for prompt in prompts)
        (folder / "prompts" / f"{name}.txt").write_text(text, encoding="utf-8")


def main() -> None:
    """Train, measure and save."""
    defaults = Recipe()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, required=True)
    for name, value in vars(defaults).items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(value), default=value)
    arguments = vars(parser.parse_args())
    folder = arguments.pop("folder")
    recipe = Recipe(**arguments)
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    torch.set_num_threads(1)
    train, validation = make_numbers(recipe.seed)
    model = build_model(recipe)
    held_out = [PROMPT.format(number) for number in validation]
    held_out_numbers = set(validation)
    numbers = [f"{number:0{DIGITS}d}" for number in range(10**DIGITS)]
    known = torch.tensor(
        [[int(digit) for digit in number] for number in numbers if number not in held_out_numbers]
    )
    generator = torch.Generator().manual_seed(recipe.seed + 1)
    for phase in (
        Phase(recipe.true_steps, recipe.true_learning_rate, 0.0),
        Phase(recipe.mixed_steps, recipe.mixed_learning_rate, recipe.wrong_captions),
    ):
        pretrain(model, recipe, phase, known, generator)
        log.info("validation %.3f, in-prompt std %.3f", *validate(model, held_out))
    train_prompts = [PROMPT.format(number) for number in train]
    save(model, folder, train_prompts, held_out)


if __name__ == "__main__":
    main()
