"""The messages of the HTTP twin of `Rollouts`, in JSON or MessagePack; bytes are base64 in JSON."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

VERSION = 1
"""The version of these messages."""
MSGPACK = "application/msgpack"
JSON = "application/json"


class WantedGroup(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of `POST /rollouts`: a prompt group."""

    id: Annotated[str, msgspec.Meta(min_length=1, max_length=200)]
    """Chosen by the client: the same id again is the same group, and is made once."""
    prompt: str
    seeds: tuple[int, ...]
    at_least: int | None = None
    """The newest weights, which have this version at least; not with `exactly`."""
    exactly: int | None = None
    """These weights and no others."""
    images: bool = False
    steps: int | None = None
    window_start: int | None = None
    metadata: dict[str, Any] = {}


class Array(msgspec.Struct, frozen=True):
    """A tensor."""

    shape: tuple[int, ...]
    data: bytes
    """float32, little-endian, in C order."""


class MadeSample(msgspec.Struct, frozen=True):
    """A sample; see `Sample`."""

    seed: int
    reward: float | None
    rewards: dict[str, float]
    attempts: int
    resumed_at_step: int
    image: bytes | None = None
    """A PNG file."""
    latents: Array | None = None
    states: Array | None = None
    log_probs: Array | None = None


class FailedSeed(msgspec.Struct, frozen=True):
    """A sample that could not be made; it has no reward."""

    seed: int
    reason: str


class MadeGroup(msgspec.Struct, frozen=True):
    """The answer to `POST /rollouts`."""

    version: int
    id: str
    policy_version: int
    samples: tuple[MadeSample, ...]
    failed: tuple[FailedSeed, ...]


class Problem(msgspec.Struct, frozen=True):
    """The answer to a request that cannot be carried out."""

    error: str
