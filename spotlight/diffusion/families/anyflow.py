"""AnyFlow text-to-video: Wan's blocks, and a forward pass that is told where its step ends.

It predicts the average velocity of a step (arXiv 2605.13724), so that Euler's step is right at any
length, and one to eight steps make a video. Guidance is in its weights. No loss here trains it:
they train the velocity of a moment, which is the average of a step of no length, and say nothing of
the long steps that make its videos.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal, cast

import msgspec

from spotlight.diffusion.activations import FLOAT32, Activations, Pass
from spotlight.diffusion.families.base import (
    CheckpointFolder,
    Facts,
    ModelInput,
    TransformerConfig,
)
from spotlight.diffusion.families.wan import Wan
from spotlight.diffusion.geometry import pack, unpack

if TYPE_CHECKING:
    from torch import Tensor

_PRECISE, _OTHERS = 6, 9
"""How many tensors of the width of the transformer a pass without gradients has besides those of
Wan, in float32 and in its own dtype: every token has its own shifts, scales and gates (measured on
the meta device at the widths of Wan 2.1 1.3B: 72 to 81 bytes a number in bfloat16, 120 to 125 in
float32, all together)."""


class _Times(msgspec.Struct, frozen=True):
    """What transformer/config.json says of the two times; defaults are those of diffusers."""

    deltatime_type: Literal["r", "t-r"] = "r"


class AnyFlow(Wan):
    """See `Family`."""

    name = "anyflow"
    pipeline = "AnyFlowPipeline"
    transformer = "AnyFlowTransformer3DModel"
    schedulers = ("FlowMapEulerDiscreteScheduler",)
    has_experts = False
    any_step = True
    cuts: ClassVar[Mapping[str, Mapping[str | int, int]]] = {
        "condition_embedder": {0: 1, 1: 1},
        "blocks.0": {"hidden_states": 1},
        "blocks.*": {"rotary_emb": 2},
    }
    gathers: ClassVar[Mapping[str, int]] = {"proj_out": 1}

    def inspect(self, folder: CheckpointFolder) -> Facts:
        """See `Family`."""
        folder.config("transformer", _Times)
        return super().inspect(folder)

    def velocity(self, transformer: Any, given: ModelInput) -> Tensor:
        """See `Family`: the average of a step, between times that every frame has."""
        dtype, patch = transformer.dtype, transformer.config.patch_size[1]
        begins, ends = (
            (sigmas * 1000)[:, None].expand(-1, given.grid.frames)
            for sigmas in (given.sigmas, given.next_sigmas)
        )
        velocity: Tensor = transformer(
            hidden_states=unpack(given.latents, given.grid, patch).to(dtype).transpose(1, 2),
            timestep=begins,
            r_timestep=ends,
            encoder_hidden_states=given.text("embeds", dtype),
            return_dict=False,
        )[0]
        return pack(velocity.transpose(1, 2), patch)

    def activations(self, facts: Facts, step: Pass) -> Activations:
        """See `Family`; what a backward pass keeps is Wan's, since nobody trains it."""
        found = super().activations(facts, step)
        stream = step.rows * step.tokens * cast(TransformerConfig, facts.config).width
        modulation = stream * (_PRECISE * FLOAT32 + _OTHERS * step.nbytes)
        return replace(found, sampling=found.sampling + modulation)
