"""The section `sampler` of a job: how images are denoised.

A field's docstring ends with its unit in square brackets, where it has one.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from spotlight.jobs.fields import (
    MOST_FRAMES,
    MOST_IN_BATCH,
    MOST_ITERATIONS,
    MOST_PIXELS,
    MOST_STEPS,
    MOST_WORKERS,
    GuidanceScale,
    Section,
    require,
)
from spotlight.types import SamplerKind, Solver


class WindowSpec(Section, frozen=True, kw_only=True):
    """The SDE window: noise is added, and trained on, only inside it. Flow-GRPO-Fast has a short
    window, Flow-GRPO one of all steps but the last, and MixGRPO one that slides."""

    length: Annotated[int, msgspec.Meta(ge=1)] = 2
    """Stochastic steps. [steps]"""
    earliest: Annotated[int, msgspec.Meta(ge=0)] = 0
    """First step, counted from 0, at which the window may start."""
    latest: Annotated[int, msgspec.Meta(le=MOST_STEPS)] = 4
    """All steps of the window come before this one, counted from 0."""
    placement: Literal["random", "sliding"] = "random"
    """Where the window starts in an iteration, for all its samples. `random` draws a step for each
    iteration. `sliding` starts at `earliest`, moves later step by step, and then returns to
    `earliest`. `sliding` is for MixGRPO."""
    slide_every: Annotated[int, msgspec.Meta(ge=1, le=MOST_ITERATIONS)] = 25
    """How long a sliding window stays. It is for MixGRPO in jobs of another length than its
    authors'. [iterations]"""

    def __post_init__(self) -> None:
        require(
            self.latest - self.length >= self.earliest,
            "latest",
            f"no room for {self.length} steps from {self.earliest} on; raise `latest`",
        )


class SamplerSpec(Section, frozen=True, kw_only=True):
    """How images are denoised."""

    height: Annotated[int, msgspec.Meta(ge=1)]
    """Height of the images. [pixels]"""
    width: Annotated[int, msgspec.Meta(ge=1)]
    """Width of the images. [pixels]"""
    frames: Annotated[int, msgspec.Meta(ge=1, le=MOST_FRAMES)] = 1
    """Length of the videos, for a checkpoint that makes some; 1 for images. A reward is the mean of
    those of the frames. [frames]"""
    kind: SamplerKind = "ode"
    """`ode` adds no noise. The others add noise inside the window, for losses that replay it:
    `flow_sde` (Flow-GRPO), `dance_sde` (DanceGRPO) and `cps` (FlowCPS)."""
    solver: Solver = "euler"
    """How a step without noise is taken: `euler`, or `dpmpp_2m` (DPM-Solver++ 2M), which also uses
    the previous step and needs fewer steps for the same accuracy."""
    steps: Annotated[int, msgspec.Meta(ge=1, le=MOST_STEPS)] = 8
    """Denoising steps of a rollout. [steps]"""
    evaluation_steps: Annotated[int, msgspec.Meta(ge=1, le=MOST_STEPS)] | None = None
    """Denoising steps of validation images; the rollout's when absent. [steps]"""
    shift: Annotated[float, msgspec.Meta(gt=0)] | None = None
    """Schedule shift; the checkpoint's scheduler decides when absent. It is for recipes that name
    one."""
    text_tokens: Annotated[int, msgspec.Meta(ge=1)] | None = None
    """Prompts are padded to so many tokens, the same for all requests, so that neither the batch
    nor its order changes what a forward pass computes. Only for checkpoints that can hide padding:
    Qwen-Image with 64, 128 or 256. When absent, a job takes the least of them that holds all of its
    prompts, if the package `tokenizers` is there to count them, and otherwise the most. It is for
    machines without `tokenizers`, and for runs that are compared bit by bit while their prompts
    differ. [tokens]"""
    guidance: GuidanceScale = 1.0
    """Classifier-free guidance scale; 1 means none. A FLUX transformer that embeds guidance takes
    it as an input instead, without a second pass."""
    noise_level: Annotated[float, msgspec.Meta(ge=0)] = 0.7
    """How much new noise a step draws: `a` of Flow-SDE and CPS, `eta` of DanceGRPO. With `cps` at
    most 1, which is all of it; unused by `ode`."""
    window: WindowSpec = WindowSpec()
    """Where noise is added; unused by `ode`."""
    micro_batch: Annotated[int, msgspec.Meta(ge=1, le=MOST_IN_BATCH)] = 8
    """Every forward pass runs at this batch size, padded when short, so that kernels never depend
    on the load. [images]"""
    degree: Literal["auto"] | Annotated[int, msgspec.Meta(ge=1, le=MOST_WORKERS)] = "auto"
    """SP degree: how many workers of a node denoise one micro-batch together. `auto` chooses what
    is predicted to finish most, and is 1 with `exploration.budget: fixed`, since results of
    different degrees differ in the last bits; a number is kept to wherever a node has so many. A
    number is for runs that are compared with each other. [workers]"""

    def __post_init__(self) -> None:
        require(
            self.kind != "cps" or self.noise_level <= 1,
            "noise_level",
            f"must be in [0, 1] with `cps`, not {self.noise_level}: a step draws the part"
            " sin(noise_level * pi / 2) of its noise anew, and 1 is all of it; its authors use 0.8",
        )
        require(
            self.height * self.width <= MOST_PIXELS,
            "height" if self.height >= self.width else "width",
            f"{self.width:,} x {self.height:,} pixels are more than an image may have"
            f" ({MOST_PIXELS:,})",
        )
        if self.kind != "ode":
            require(
                self.window.latest < self.steps,
                "window.latest",
                f"must be below steps ({self.steps}): the last step is never trained",
            )
