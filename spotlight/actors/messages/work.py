"""Requests, their saved progress, and their results."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from spotlight.jobs import SamplerKind
from spotlight.transport.tensors import BundleOffer

RequestKind = Literal["preview", "rollout", "evaluation"]

NAME_OF_NODE = r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,99}"
"""Names go to logs, into the run folder, and into the keys of bundles."""
NodeName = Annotated[str, msgspec.Meta(pattern=rf"^{NAME_OF_NODE}\Z")]
WorkerName = Annotated[str, msgspec.Meta(pattern=rf"^{NAME_OF_NODE}(/[0-9]{{1,9}})?\Z")]
"""That of its node and a number."""


class Record(msgspec.Struct, frozen=True):
    """A part of a message."""


class SamplingSettings(Record, frozen=True):
    """How a request is denoised; the fields are those of `diffusion.samplers.SamplerSettings`."""

    kind: SamplerKind
    steps: int
    shift: float | None
    guidance: float
    noise_level: float
    window: tuple[int, int] | None
    height: int
    width: int
    micro_batch: int


class Request(Record, frozen=True):
    """One unit of denoising work; the sample is a function of weights, prompt, seed and settings
    alone.
    """

    id: str
    kind: RequestKind
    iteration: int
    group: int
    """Index of the prompt group in its iteration (of the validation prompt for an evaluation)."""
    prompt: str
    seed: int
    weights_version: int
    settings: SamplingSettings
    image_key: str = ""
    """Where the member leaves the image as PNG in the coordinator's store; empty for nowhere."""


class Commit(Record, frozen=True):
    """The saved progress of one request: `row` of a bundle that holds its latents after `step`
    denoising steps, and what the loss needs of these steps.
    """

    step: int
    bundle: BundleOffer
    row: int


class Result(Record, frozen=True):
    """A denoised and scored request."""

    request: Request
    reward: float
    bundle: BundleOffer
    row: int
