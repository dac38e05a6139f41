"""What denoising and training give in a simulated cluster: fingerprints in place of tensors.

As in reality a sample is a function of weights, prompt, seed and settings alone, step by step, so
a step that is left out, done twice or done with other weights shows in the end.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import msgspec

from spotlight.types import Request, Slice


class Row(msgspec.Struct, frozen=True):
    """One request in a bundle: whose, made with which weights, how far, and what is there."""

    request: Request
    weights: str
    step: int
    latents: str


class Bundle(msgspec.Struct, frozen=True):
    """Samples, or a commit."""

    rows: tuple[Row, ...]


class Weights(msgspec.Struct, frozen=True):
    """A weights version, as it is published or saved."""

    version: int
    weights: str


def fingerprint(*parts: object) -> str:
    """Of anything that prints the same whenever it is the same."""
    return hashlib.blake2b(repr(parts).encode(), digest_size=8).hexdigest()


def noise(weights: str, request: Request) -> str:
    """Where denoising begins."""
    return fingerprint("noise", weights, request.prompt, request.seed, request.settings)


def denoised(latents: str, step: int) -> str:
    """One step further."""
    return fingerprint("step", latents, step)


def sample(weights: str, request: Request) -> str:
    """The end of an undisturbed denoising."""
    latents = noise(weights, request)
    for step in range(request.settings.steps):
        latents = denoised(latents, step)
    return latents


def reward(latents: str) -> float:
    """In [0, 1]."""
    return int(latents[:8], 16) / 2**32


def initial_weights(job_seed: int) -> str:
    """Those of the job's model."""
    return fingerprint("model", job_seed)


def evaluation_weights(weights: str) -> str:
    """The average that is validated."""
    return fingerprint("average", weights)


def gradient(current: str, old: str, latents: Sequence[str], its: Slice) -> str:
    """That of a slice with these samples, of the weights that are trained and that roll out."""
    return fingerprint("gradient", current, old, tuple(latents), its.first, its.rows)


def trained(weights: str, samples: Sequence[tuple[str, float]], chance: str) -> str:
    """The weights after an update with these (latents, advantage); `chance` is what makes two
    updates with the same samples differ, empty on hardware on which they do not."""
    return fingerprint("update", weights, tuple(samples), chance)
