"""How much better a sample is than the others of its prompt group.

A group without contrast teaches nothing: its advantages are exactly 0, whatever rounding does to
its mean.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from statistics import median
from typing import Literal

EPSILON = 1e-4
"""Added to the standard deviation, as in Flow-GRPO and DiffusionNFT."""


def group_advantages(
    rewards: Sequence[float],
    groups: Sequence[Hashable],
    *,
    baseline: Literal["mean", "median"] = "mean",
    std: Literal["global", "group"] = "global",
    clip: float = 5.0,
) -> list[float]:
    """(reward - baseline of its group) / (std + 1e-4), in [-clip, clip]; one per reward, in the
    same order.

    `groups` names the group of every reward; groups may have different sizes and lie in any order.
    `std` is the population standard deviation of all rewards (`global`: near-solved prompts are not
    blown up) or of the group. Flow-GRPO, arXiv 2505.05470.

    With the mean as `baseline`, the advantages of every group sum to 0: where the clip cut one
    side more than the other, they are centred again, and shrunk if that led out of the clip. What
    was left over would push all samples of a prompt one way, whatever their rewards. With the
    median (MC-GRPO, arXiv 2601.22582) the sample in the middle has 0 instead, and one outlier does
    not turn the others' signs.

    Raises `ValueError` when lengths differ or a reward is not finite.
    """
    members = _members(rewards, groups)
    spread = _std(rewards)
    advantages = [0.0] * len(rewards)
    for indices in members.values():
        inside = [rewards[index] for index in indices]
        if _flat(inside):
            continue
        scale = EPSILON + (spread if std == "global" else _std(inside))
        centre = median(inside) if baseline == "median" else math.fsum(inside) / len(inside)
        found = [(reward - centre) / scale for reward in inside]
        clipped = [min(max(value, -clip), clip) for value in found]
        if baseline == "mean" and clipped != found:
            clipped = _recentred(clipped, clip)
        for index, advantage in zip(indices, clipped, strict=True):
            advantages[index] = advantage
    return advantages


def flat_group_share(rewards: Sequence[float], groups: Sequence[Hashable]) -> float:
    """The share of groups, in [0, 1], whose rewards are all equal: what they cost is wasted.

    Raises `ValueError` as `group_advantages` does; 0 without rewards.
    """
    members = _members(rewards, groups)
    flat = sum(_flat([rewards[index] for index in indices]) for indices in members.values())
    return flat / len(members) if members else 0.0


def _members(rewards: Sequence[float], groups: Sequence[Hashable]) -> dict[Hashable, list[int]]:
    if len(rewards) != len(groups):
        raise ValueError(f"{len(rewards)} rewards, but {len(groups)} group names")
    if not all(math.isfinite(reward) for reward in rewards):
        raise ValueError("rewards must be finite; a failed score is no reward")
    members: dict[Hashable, list[int]] = {}
    for index, group in enumerate(groups):
        members.setdefault(group, []).append(index)
    return members


def _recentred(advantages: Sequence[float], clip: float) -> list[float]:
    """Shifted to a sum of 0, and shrunk into [-clip, clip]."""
    mean = math.fsum(advantages) / len(advantages)
    centred = [advantage - mean for advantage in advantages]
    shrink = min(1.0, clip / max(map(abs, centred)))
    return [advantage * shrink for advantage in centred]


def _flat(rewards: Sequence[float]) -> bool:
    return min(rewards) == max(rewards)


def _std(rewards: Sequence[float]) -> float:
    if not rewards or _flat(rewards):
        return 0.0
    mean = math.fsum(rewards) / len(rewards)
    return math.sqrt(math.fsum((reward - mean) ** 2 for reward in rewards) / len(rewards))
