"""Our sampler beside the pipelines of diffusers, on the same latents."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import diffusers
import torch

from spotlight.condition_images import digest_of, with_image
from spotlight.diffusion.checkpoints import load_model
from spotlight.diffusion.families.registry import open_checkpoint
from spotlight.diffusion.geometry import pack, unpack
from spotlight.diffusion.noise import initial_noise
from spotlight.diffusion.samplers import sample
from spotlight.jobs import ModelSpec
from spotlight.types import SamplingSettings
from spotlight_simulation.edit_pipeline import IMAGES, draw_edits, load_edit_pipeline
from spotlight_simulation.pixels import png_of

PROMPTS = ("a cat", 'a sign that says "open" &amp; shut')
FILES = tuple(map(png_of, IMAGES))
EDITS = [with_image(text, digest_of(file)) for text, file in zip(PROMPTS, FILES, strict=True)]
"""The prompts with an image each."""
SEEDS = (1, 2)
NEGATIVE_PROMPT = "a grey picture"


@dataclass(frozen=True)
class Case:
    """What is drawn by both."""

    height: int
    width: int
    frames: int = 1
    guidance: float = 1.0
    steps: int = 3


@dataclass(frozen=True)
class Difference:
    """How far both are from each other."""

    latents: float
    """Largest difference of a clean latent."""
    pixels: float
    """Largest difference of a pixel's colour, of 255."""


def compare(
    folder: Path,
    case: Case,
    scheduler: Mapping[str, Any] = MappingProxyType({}),
    *,
    device: str = "cpu",
    dtype: torch.dtype = torch.float32,
) -> Difference:
    """Draw two samples by the pipeline of a checkpoint and by our sampler, which computes in
    float32 on the CPU and in bfloat16 elsewhere; `dtype` is that of the pipeline.

    `scheduler` replaces fields of the pipeline's scheduler, in both.
    """
    family, checkpoint = open_checkpoint(folder)
    facts = family.inspect(checkpoint)
    geometry, grid = facts.geometry, facts.geometry.grid(case.height, case.width, case.frames)
    edits = bool(family.image_processor)
    if edits:
        pipeline = load_edit_pipeline(folder, dtype)
    else:
        pipeline = getattr(diffusers, family.pipeline).from_pretrained(folder, torch_dtype=dtype)
    pipeline.to(device)
    draw: Any = partial(draw_edits, pipeline) if edits else pipeline
    pipeline.set_progress_bar_config(disable=True)
    model: Any = load_model(
        ModelSpec(checkpoint=str(folder), negative_prompt=NEGATIVE_PROMPT),
        device=device,
        images={digest_of(file): file for file in FILES} if edits else {},
    )
    for owner, name in ((pipeline, "scheduler"), (model, "_scheduler")):
        own = getattr(owner, name)
        setattr(owner, name, type(own).from_config(own.config, **scheduler))
    noise = initial_noise(SEEDS, (grid.tokens, geometry.channels))
    theirs = noise.to(device, dtype)
    if family.name in ("sd3", "wan"):  # whose latents are no tokens
        theirs = unpack(theirs, grid, geometry.patch)
        theirs = theirs if family.name == "wan" else theirs[:, :, 0]
    options = _guidance(family.name, pipeline, case) | {
        "prompt": list(PROMPTS),
        "height": case.height,
        "width": case.width,
        "num_inference_steps": case.steps,
    }
    if case.frames > 1:
        options["num_frames"] = case.frames
    expected = draw(latents=theirs.clone(), output_type="latent", **options)[0].float().cpu()
    drawn = torch.as_tensor(draw(latents=theirs.clone(), output_type="np", **options)[0])
    if expected.dim() > 3:
        whole = expected if expected.dim() == 5 else expected.unsqueeze(2)
        expected = pack(whole, geometry.patch)
    settings = SamplingSettings(
        kind="ode",
        steps=case.steps,
        height=case.height,
        width=case.width,
        guidance=case.guidance,
        micro_batch=len(SEEDS),
        frames=case.frames,
    )
    prompts = EDITS if edits else PROMPTS
    ours = sample(model, prompts, SEEDS, settings).latents
    pixels = torch.as_tensor(model.decode(ours, case.height, case.width, case.frames))
    return Difference(
        float((ours - expected).abs().max()),
        float((pixels.float().reshape(drawn.shape) - drawn * 255).abs().max()),
    )


def _guidance(family: str, pipeline: Any, case: Case) -> dict[str, Any]:
    """How the pipeline is told the scale; some of them cannot do without guidance by default."""
    scale = case.guidance
    if family in ("sd3", "wan"):
        guided = {"guidance_scale": scale}
    elif family == "krea2":  # whose scale begins at 0, where others begin at 1
        guided = {"guidance_scale": scale - 1}
    elif family == "flux" and pipeline.transformer.config.guidance_embeds:
        return {"guidance_scale": scale}
    else:
        guided = {"true_cfg_scale": scale}
    negative = {"negative_prompt": [NEGATIVE_PROMPT] * len(PROMPTS)} if scale > 1 else {}
    return guided | negative
