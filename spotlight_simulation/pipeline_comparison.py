"""Our sampler beside the pipelines of diffusers, on the same latents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

import diffusers
import msgspec
import torch
from diffusers import QwenImageEditPlusPipeline
from torch import Tensor

from spotlight.condition_images import digest_of, with_image
from spotlight.diffusion.checkpoint_names import find_checkpoint
from spotlight.diffusion.checkpoints import load_model
from spotlight.diffusion.families.base import SECOND, Family
from spotlight.diffusion.families.registry import open_checkpoint, open_transformers
from spotlight.diffusion.geometry import Geometry, pack, unpack
from spotlight.diffusion.noise import initial_noise
from spotlight.diffusion.samplers import sample
from spotlight.jobs import ModelSpec
from spotlight.types import SamplingSettings
from spotlight_simulation.pixels import IMAGES, png_of
from spotlight_simulation.text_pipelines import load_pipeline

PROMPTS = ("a cat", 'a sign that says "open" &amp; shut')
FILES = tuple(map(png_of, IMAGES))
FILES_BY_DIGEST = {digest_of(file): file for file in FILES}
EDITS = [with_image(text, digest) for text, digest in zip(PROMPTS, FILES_BY_DIGEST, strict=True)]
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
    guidance_2: float | None = None
    """That of the second of two transformers."""


@dataclass(frozen=True)
class Manner:
    """How the pipeline of a family is asked."""

    scale: str = "guidance_scale"
    """Its name for the guidance scale."""
    unguided: float = 1.0
    """The scale at which it does not guide."""
    latents: Literal["tokens", "image", "frames", "bands"] = "tokens"
    """What it takes and gives: tokens, latents, or bands of squares of 2 x 2 latents, given
    back as latents with the mean and the spread of each band."""
    scheduler: Mapping[str, Any] = field(default_factory=dict)
    """What makes its scheduler take Euler's steps."""
    one_by_one: bool = False
    """Whether it must be asked for one picture at a time, because it pads the prompts of several
    so that it draws something else."""
    embeds_negative: bool = False
    """Whether it takes negative prompts only as embeddings."""


MANNERS = {
    "qwen-image": Manner("true_cfg_scale"),
    "qwen-image-2.1": Manner("true_cfg_scale", one_by_one=True),
    "sd3": Manner(latents="image"),
    "flux": Manner("true_cfg_scale"),
    "flux2-klein": Manner(latents="bands", embeds_negative=True),
    "wan": Manner(
        latents="frames",
        scheduler={"solver_order": 1, "disable_corrector": list(range(1000))},
    ),
    "anyflow": Manner(latents="frames"),
    "krea2": Manner(unguided=0.0),
    "z-image": Manner(unguided=0.0, latents="image", one_by_one=True),
    "qwen-image-edit": Manner("true_cfg_scale", one_by_one=True),
}
"""The manner of every family, by its name."""


@dataclass(frozen=True)
class Trained:
    """What a job made of a checkpoint."""

    model: ModelSpec
    weights: Mapping[str, Tensor]
    """The trained ones, float32, by their names in the model; our sampler draws with them."""
    export: Path | None
    """The folder that the pipeline reads; without one it draws as before the job."""


@dataclass(frozen=True)
class Difference:
    """How far both are from each other."""

    latents: float
    """Largest difference of a clean latent."""
    pixels: float
    """Largest difference of a pixel's colour, of 255."""


def prompts_of(family: Family) -> Sequence[str]:
    """Two prompts that the family can draw."""
    return EDITS if family.image_processor else PROMPTS


def small_case(family: Family) -> Case:
    """A small picture or clip with guidance, of a size that every tiny checkpoint can draw."""
    if family.image_processor:
        return Case(64, 128, guidance=2.0)
    return Case(32, 64, 5 if MANNERS[family.name].latents == "frames" else 1, guidance=2.0)


def compare(
    folder: Path,
    case: Case,
    scheduler: Mapping[str, Any] = MappingProxyType({}),
    *,
    trained: Trained | None = None,
    device: str = "cpu",
    dtype: torch.dtype = torch.float32,
) -> Difference:
    """Draw two samples by the pipeline of a checkpoint and by our sampler, which computes in
    float32 on the CPU and in bfloat16 elsewhere; `dtype` is that of the pipeline.

    `scheduler` replaces fields of the pipeline's scheduler, in both. After a job, both draw with
    what it has `trained`.
    """
    family, checkpoint = open_checkpoint(folder)
    geometry = family.inspect(checkpoint).geometry
    manner = MANNERS[family.name]
    pipeline = load_pipeline(folder, torch_dtype=dtype)
    spec = ModelSpec(checkpoint=str(folder)) if trained is None else trained.model
    spec = msgspec.structs.replace(
        spec, negative_prompt=NEGATIVE_PROMPT, guidance_2=case.guidance_2
    )
    model: Any = load_model(spec, device=device, images=FILES_BY_DIGEST)
    if trained is not None:
        model.load_trainable_state(trained.weights)
        _read_export(pipeline, family, trained)
    pipeline.to(device)
    for owner, name in ((pipeline, "scheduler"), (model, "_scheduler")):
        own = getattr(owner, name)
        setattr(owner, name, type(own).from_config(own.config, **manner.scheduler, **scheduler))
    theirs = _Theirs(pipeline, manner, case, geometry)
    noise = initial_noise(SEEDS, (theirs.grid.tokens, geometry.channels)).to(device, dtype)
    settings = SamplingSettings(
        kind="ode",
        steps=case.steps,
        height=case.height,
        width=case.width,
        guidance=case.guidance,
        micro_batch=len(SEEDS),
        frames=case.frames,
    )
    ours = sample(model, prompts_of(family), SEEDS, settings).latents
    pixels = torch.as_tensor(model.decode(ours, case.height, case.width, case.frames)).float()
    drawn = theirs.pixels(noise)
    return Difference(
        float((ours - theirs.latents(noise)).abs().max()),
        float((pixels.reshape(drawn.shape) - drawn * 255).abs().max()),
    )


def _read_export(pipeline: Any, family: Family, trained: Trained) -> None:
    """Have the pipeline draw with it."""
    if trained.export is None:
        return
    _, base = open_transformers(find_checkpoint(trained.model.checkpoint))
    for part, prefix in base.transformers.items():
        folder = trained.export / part if prefix else trained.export
        if trained.model.tuning == "lora":
            second = {"load_into_transformer_2": True} if part == SECOND else {}
            pipeline.load_lora_weights(folder, **second)
        else:
            kind = getattr(diffusers, family.transformer)
            setattr(pipeline, part, kind.from_pretrained(folder))


class _Theirs:
    """What a pipeline draws."""

    def __init__(self, pipeline: Any, manner: Manner, case: Case, geometry: Geometry) -> None:
        self.grid = geometry.grid(case.height, case.width, case.frames)
        self._pipeline, self._manner, self._case = pipeline, manner, case
        self._patch = geometry.patch

    def latents(self, noise: Tensor) -> Tensor:
        """Clean latents of packed noise, packed."""
        found = self._draw(noise, "latent").float().cpu()
        if self._manner.latents == "tokens":
            return found
        if self._manner.latents == "bands":
            norm = self._pipeline.vae.bn
            spread = (norm.running_var + norm.eps).sqrt()
            bands: Tensor = (pack(found.unsqueeze(2), 2) - norm.running_mean) / spread
            return bands
        return pack(found if found.dim() == 5 else found.unsqueeze(2), self._patch)

    def pixels(self, noise: Tensor) -> Tensor:
        """The same decoded, from 0 to 1; what is transparent is white."""
        drawn = self._draw(noise, "np")
        if drawn.shape[-1] == 3:
            return drawn
        colours, opaque = drawn[..., :3], drawn[..., 3:]
        return colours * opaque + (1 - opaque)

    def _draw(self, noise: Tensor, what: str) -> Tensor:
        everything = range(len(SEEDS))
        parts = [[row] for row in everything] if self._manner.one_by_one else [[*everything]]
        drawn = [self._of(rows, self._given(noise[rows]), what) for rows in parts]
        return torch.cat(drawn)

    def _given(self, noise: Tensor) -> Tensor:
        if self._manner.latents == "tokens":
            return noise.clone()
        frames = unpack(noise, self.grid, self._patch)
        return frames if self._manner.latents == "frames" else frames[:, :, 0]

    def _of(self, rows: list[int], noise: Tensor, what: str) -> Tensor:
        case, options = self._case, self._guidance(len(rows))
        if case.frames > 1:
            options["num_frames"] = case.frames
        if isinstance(self._pipeline, QwenImageEditPlusPipeline):
            options["image"] = [IMAGES[row] for row in rows]
        return torch.as_tensor(
            self._pipeline(
                prompt=[PROMPTS[row] for row in rows],
                latents=noise,
                output_type=what,
                height=case.height,
                width=case.width,
                num_inference_steps=case.steps,
                **options,
            )[0]
        )

    def _guidance(self, rows: int) -> dict[str, Any]:
        """Some pipelines cannot do without guidance by default."""
        if getattr(self._pipeline.transformer.config, "guidance_embeds", False):
            return {"guidance_scale": self._case.guidance}
        options: dict[str, Any] = {
            self._manner.scale: self._case.guidance - 1 + self._manner.unguided
        }
        if self._case.guidance_2 is not None:
            options["guidance_scale_2"] = self._case.guidance_2
        if self._case.guidance > 1:
            options |= self._against([NEGATIVE_PROMPT] * rows)
        return options

    def _against(self, prompts: list[str]) -> dict[str, Any]:
        """The negative prompts, which some pipelines take only as embeddings."""
        if self._manner.embeds_negative:
            return {"negative_prompt_embeds": self._pipeline.encode_prompt(prompts)[0]}
        return {"negative_prompt": prompts}
