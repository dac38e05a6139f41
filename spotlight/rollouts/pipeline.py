"""Rollouts that are called like a diffusers text-to-image pipeline: a program that uses a pipeline
can call this instead, and Spotlight's workers denoise.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from PIL import Image

from spotlight.errors import JobError, SpotlightError
from spotlight.rollouts.blocking import BlockingRollouts
from spotlight.rollouts.groups import Group, RolloutRequest, Sample

Generators = torch.Generator | Sequence[torch.Generator]


@dataclass
class PipelineImages:
    """As diffusers' `ImagePipelineOutput`."""

    images: list[Image.Image] | np.ndarray | torch.Tensor
    """Those of the first prompt first: PIL images, an array [B, H, W, 3] in [0, 1], or latents
    [B, tokens, channels]."""


class RolloutPipeline:
    """Call it as a pipeline of diffusers, with the arguments that its `__call__` has here. Size,
    guidance and scheduler are those of the session's sampler; the weights are the newest that were
    published.
    """

    def __init__(self, rollouts: BlockingRollouts) -> None:
        self._rollouts = rollouts

    def __call__(
        self,
        prompt: str | Sequence[str],
        *,
        num_inference_steps: int | None = None,
        num_images_per_prompt: int = 1,
        generator: Generators | None = None,
        output_type: Literal["pil", "np", "latent"] = "pil",
    ) -> PipelineImages:
        """Images of every prompt; their seeds are drawn from the generator, or from one for each
        image, so that the same generators give the same images.

        Raises `JobError` for arguments that do not fit, and `SpotlightError` with the reason when
        an image cannot be made.
        """
        prompts = [prompt] if isinstance(prompt, str) else list(prompt)
        if output_type not in ("pil", "np", "latent"):
            raise JobError("output_type", f"must be `pil`, `np` or `latent`, not `{output_type}`")
        seeds = _seeds(generator, len(prompts) * num_images_per_prompt)
        requests = [
            RolloutRequest(
                text,
                seeds[number * num_images_per_prompt : (number + 1) * num_images_per_prompt],
                images=output_type != "latent",
                steps=num_inference_steps,
            )
            for number, text in enumerate(prompts)
        ]
        groups = sorted(self._rollouts.rollout(requests), key=lambda group: group.index)
        samples = [sample for group in groups for sample in _complete(group)]
        if output_type == "latent":
            return PipelineImages(torch.stack([_latents(sample) for sample in samples]))
        images = [Image.open(io.BytesIO(sample.image or b"")).convert("RGB") for sample in samples]
        if output_type == "np":
            pixels = np.stack([np.asarray(image) for image in images])
            return PipelineImages(pixels / np.float32(255))
        return PipelineImages(images)


def _seeds(generator: Generators | None, count: int) -> list[int]:
    if isinstance(generator, Sequence):
        if len(generator) != count:
            raise JobError("generator", f"there are {len(generator)} for {count} images")
        return [_draw(each, 1)[0] for each in generator]
    return _draw(generator, count)


def _draw(generator: torch.Generator | None, count: int) -> list[int]:
    device = generator.device if generator is not None else "cpu"
    drawn = torch.randint(2**63 - 1, (count,), generator=generator, device=device)
    return [int(seed) for seed in drawn]


def _complete(group: Group) -> Sequence[Sample]:
    if group.failed:
        failure = group.failed[0]
        raise SpotlightError(f"seed {failure.seed} of `{group.request.prompt}`: {failure.reason}")
    return group.samples


def _latents(sample: Sample) -> torch.Tensor:
    if sample.latents is None:
        raise JobError("output_type", "is `latent`, but the session delivers no tensors")
    return sample.latents
