"""What group leaders say, as far as the table of requests reads it; the messages themselves fit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from spotlight.types import BundleOffer


class HeldLease(Protocol):
    """A lease as its holder knows it."""

    @property
    def lease(self) -> int:
        """Its number."""

    @property
    def requests(self) -> tuple[str, ...]:
        """Ids of its requests, in the order of the grant."""


class Report(Protocol):
    """What the leader of an SP group says of it."""

    @property
    def members(self) -> int:
        """Of the group; 0 of a worker that follows another."""

    @property
    def followers(self) -> tuple[str, ...]:
        """Workers of the other members."""

    @property
    def credits(self) -> int:
        """Leases it can take now, in all."""

    @property
    def batch(self) -> int:
        """Requests that fit one lease."""

    @property
    def rollout_versions(self) -> tuple[int, ...]:
        """Weights that all members hold."""

    @property
    def evaluation_versions(self) -> tuple[int, ...]:
        """Weights for evaluations that all members hold."""

    @property
    def prompts(self) -> tuple[str, ...]:
        """Denoised lately: their embeddings are still there."""

    @property
    def leases(self) -> Sequence[HeldLease]:
        """What it holds."""


class BatchEvent(Protocol):
    """Something that a worker has done under a lease."""

    @property
    def lease(self) -> int:
        """Its number."""

    @property
    def requests(self) -> tuple[str, ...]:
        """Ids of its requests, in the order of the grant and of the bundle's rows."""

    @property
    def bundle(self) -> BundleOffer:
        """What was left in the coordinator's store."""


class CommittedBatch(BatchEvent, Protocol):
    """Its steps so far need not be taken again."""

    @property
    def step(self) -> int:
        """Steps taken."""

    @property
    def cost_s(self) -> float:
        """Time for which committing kept the accelerator from denoising."""


class FinishedBatch(BatchEvent, Protocol):
    """It is denoised and scored; the bundle is that of the last step."""

    @property
    def rewards(self) -> tuple[float, ...]:
        """In the order of the requests."""

    @property
    def steps(self) -> int:
        """Steps that were taken for it."""

    @property
    def seconds(self) -> float:
        """Time that they took."""

    @property
    def members(self) -> int:
        """Who took them together; 0 if the group changed on the way."""

    @property
    def scoring_s(self) -> float:
        """Time that scoring took."""


def problem_with(batch: FinishedBatch) -> str:
    """Why these cannot be the rewards of the batch; empty if they can."""
    if len(batch.rewards) != len(batch.requests):
        return f"{len(batch.rewards)} rewards for {len(batch.requests)} images"
    if not all(0.0 <= reward <= 1.0 for reward in batch.rewards):
        return f"rewards outside [0, 1]: {list(batch.rewards)}"
    return ""
