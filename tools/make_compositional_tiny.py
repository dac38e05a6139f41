"""Make the built-in checkpoint `compositional-tiny` from nothing: a Qwen-Image-shaped pixel-space
DiT that draws coloured circles, squares and triangles.

Deterministic from the seed on one machine; about four minutes on one CPU core. Flow matching with
true captions, stopped early on purpose: the model knows the colours and where things go, but often
draws the wrong number of shapes or frays them, and reinforcement learning can fix that.

    python tools/make_compositional_tiny.py --folder spotlight/assets/compositional-tiny
"""

from __future__ import annotations

import random

import msgspec
import numpy as np
import torch
from shape_scenes import EDGE, all_prompts, as_prompt, render, scene_for
from tiny_checkpoints import Recipe, make, parse_arguments
from torch import Tensor

from spotlight.assets.geneval import PromptMetadata
from spotlight.rewards.compositional import CompositionalScorer
from spotlight.rewards.shape_prompts import COLOURS, SHAPES
from spotlight.rewards.shapes import ShapeDetector
from spotlight.types import Prompt

HELD_OUT = {"colors": 2, "counting": 6, "color_attr": 8, "position": 16}
"""Validation prompts of each tag."""


RECIPE = Recipe(batch=32, true_steps=4500, true_learning_rate=2e-3, mixed_steps=0)


class Scenes:
    """The task: scenes of shapes; shown is the prompts that they were drawn for. A training batch
    has as many prompts of each tag, whatever the number of different ones.
    """

    height, width, patch, colours = EDGE, EDGE, 4, 3
    shift, axes = 3.0, (4, 14, 14)
    words: tuple[str, ...] = (
        *("a", "and", "two", "three", "four"),
        *COLOURS,
        *SHAPES,
        *(f"{name}s" for name in SHAPES),
        *("left", "right", "of", "above", "below"),
    )
    characters = ""
    tokens = 8

    def __init__(self, seed: int) -> None:
        rng = random.Random(seed)
        self._train: list[PromptMetadata] = []
        self._validation: list[PromptMetadata] = []
        for tag, count in HELD_OUT.items():
            prompts = [one for one in all_prompts() if one.tag == tag]
            rng.shuffle(prompts)
            self._validation += prompts[:count]
            self._train += prompts[count:]

    def draw(self, count: int, generator: torch.Generator) -> tuple[Tensor, list[str]]:
        """Pictures of scenes for training prompts."""
        rng = random.Random(int(torch.randint(2**62, (), generator=generator)))
        chosen = [self._choose(rng) for _ in range(count)]
        pictures = np.stack([render(scene_for(metadata, rng)) for metadata in chosen])
        scaled = torch.from_numpy(pictures).permute(0, 3, 1, 2) / 127.5 - 1
        return scaled, [metadata.prompt for metadata in chosen]

    def captions(self, shown: list[str], wrong: float, generator: torch.Generator) -> list[str]:
        """The prompts of the scenes; a share of them is that of another scene."""
        rng = random.Random(int(torch.randint(2**62, (), generator=generator)))
        return [self._choose(rng).prompt if rng.random() < wrong else prompt for prompt in shown]

    def validation_prompts(self) -> list[Prompt]:
        """Of scenes that are never drawn."""
        return [as_prompt(metadata) for metadata in self._validation]

    def prompt_files(self) -> dict[str, str]:
        """Metadata as GenEval writes it."""
        lists = {"train.jsonl": self._train, "validation.jsonl": self._validation}
        return {name: "".join(map(_json_line, each)) for name, each in lists.items()}

    def scorer(self) -> CompositionalScorer:
        """The compositional reward."""
        return CompositionalScorer(ShapeDetector())

    def _choose(self, rng: random.Random) -> PromptMetadata:
        tag = rng.choice(list(HELD_OUT))
        return rng.choice([metadata for metadata in self._train if metadata.tag == tag])


def _json_line(metadata: PromptMetadata) -> str:
    return msgspec.json.encode(metadata).decode() + "\n"


if __name__ == "__main__":
    folder, recipe = parse_arguments(__doc__, RECIPE)
    make(Scenes(recipe.seed), recipe, folder)
