"""The part of group leaders' messages that the table of requests reads; the messages fit these
types."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol, get_args

from spotlight.types import BundleOffer, RequestKind


class HeldLease(Protocol):
    """A lease as its holder knows it."""

    @property
    def lease(self) -> int:
        """The number of the lease."""

    @property
    def requests(self) -> tuple[str, ...]:
        """The ids of its requests, in the order of the grant."""


class Report(Protocol):
    """What the leader of an SP group says of it."""

    @property
    def members(self) -> int:
        """How many workers the group has; 0 if the worker follows another one."""

    @property
    def followers(self) -> tuple[str, ...]:
        """The workers of the other members."""

    @property
    def credits(self) -> int:
        """How many leases it can have now, those that it has included."""

    @property
    def batch(self) -> int:
        """How many requests fit one lease."""

    @property
    def rollout_versions(self) -> tuple[int, ...]:
        """The weights versions for rollouts that all members hold."""

    @property
    def evaluation_versions(self) -> tuple[int, ...]:
        """The weights versions for evaluations that all members hold."""

    @property
    def prompts(self) -> tuple[str, ...]:
        """The prompts that it denoised lately: their embeddings are still there."""

    @property
    def leases(self) -> Sequence[HeldLease]:
        """The leases that it holds."""


class BatchEvent(Protocol):
    """Something that a worker has done under a lease."""

    @property
    def lease(self) -> int:
        """The number of the lease."""

    @property
    def requests(self) -> tuple[str, ...]:
        """The ids of its requests, in the order of the grant and of the bundle's rows."""

    @property
    def bundle(self) -> BundleOffer:
        """What was left in the coordinator's store."""


class CommittedBatch(BatchEvent, Protocol):
    """Its steps so far need not be taken again."""

    @property
    def step(self) -> int:
        """How many steps were taken."""

    @property
    def cost_s(self) -> float:
        """For how many seconds committing kept the accelerator from denoising."""


class FinishedBatch(BatchEvent, Protocol):
    """It is denoised and scored; the bundle is that of the last step."""

    @property
    def rewards(self) -> tuple[tuple[float, ...], ...]:
        """What each request was given, in their order, reward by reward; empty if they are yet to
        be scored with others."""

    @property
    def steps(self) -> int:
        """How many steps were taken for it."""

    @property
    def seconds(self) -> float:
        """How many seconds they took."""

    @property
    def members(self) -> int:
        """How many workers took them together; 0 if the group changed on the way."""

    @property
    def scoring_s(self) -> float:
        """How many seconds scoring took."""


RewardLimits = Mapping[RequestKind, Sequence[tuple[float, float]]]
"""The least and the greatest value of each reward, by the kind of request."""

ONE_REWARD: RewardLimits = dict.fromkeys(get_args(RequestKind), ((0.0, 1.0),)) | {"gradient": ()}
"""Every sample has one reward, in [0, 1]; gradients have none."""


def problem_with(batch: FinishedBatch, limits: Sequence[tuple[float, float]]) -> str:
    """Why these cannot be the rewards of the batch; empty if they can."""
    if len(batch.rewards) != len(batch.requests):
        return f"rewards of {len(batch.rewards)} images for {len(batch.requests)}"
    for rewards in batch.rewards:
        if len(rewards) != len(limits):
            return f"{len(rewards)} rewards of an image that has {len(limits)}"
        for reward, (low, high) in zip(rewards, limits, strict=True):
            if not low <= reward <= high:  # true of NaN as well
                return f"a reward of {reward} is outside [{low:g}, {high:g}]"
    return ""
