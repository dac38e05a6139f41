"""How much better a sample is than the others of its prompt group.

A group without contrast teaches nothing: its advantages are exactly 0, whatever rounding does to
its mean.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from operator import mul
from statistics import median
from typing import Literal, TypeVar

_Group = TypeVar("_Group", bound=Hashable)

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
    spread = _std(rewards)
    advantages = [0.0] * len(rewards)
    for indices in _members(rewards, groups).values():
        inside = [rewards[index] for index in indices]
        if _flat(inside):
            continue
        scale = EPSILON + (spread if std == "global" else _std(inside))
        centre = median(inside) if baseline == "median" else math.fsum(inside) / len(inside)
        for index in indices:
            advantages[index] = (rewards[index] - centre) / scale
    return _bounded(advantages, groups, clip, centre=baseline == "mean")


def mixed_advantages(
    rewards: Sequence[Sequence[float]],
    groups: Sequence[_Group],
    weights: Sequence[float],
    *,
    by_group: Mapping[_Group, Sequence[float]] | None = None,
    baseline: Literal["mean", "median"] = "mean",
    std: Literal["global", "group"] = "global",
    clip: float = 5.0,
) -> list[float]:
    """Advantages by several rewards, each normalised by itself, so that none drowns the others by
    its unit or its spread (GDPO, arXiv 2601.05242):

        A_k = (r_k - baseline of its group) / (std_k + 1e-4)
        S   = sum of weight_k * A_k
        A   = (S - baseline of its group) / (std of all S + 1e-4), in [-clip, clip]

    With `std` `group`, as in GDPO, std_k is that of the group, with `global` that of all r_k. With
    the mean as baseline, that of S is 0 in every group. One reward is left to `group_advantages`:
    there is nothing to bring to one scale, unless it weighs more in some groups.

    Args:
        rewards: of each sample one of each reward.
        weights: of the rewards.
        by_group: of the rewards in groups where they are others.

    Raises `ValueError` as `group_advantages` does, and when rewards and weights differ in number.
    """
    columns = list(zip(*rewards, strict=True)) or [()] * len(weights)
    if len(columns) != len(weights):
        raise ValueError(f"{len(columns)} rewards of a sample, but {len(weights)} weights")
    if len(columns) == 1 and not by_group:
        return group_advantages(columns[0], groups, baseline=baseline, std=std, clip=clip)
    parts = [
        group_advantages(column, groups, baseline=baseline, std=std, clip=math.inf)
        for column in columns
    ]
    sums = _weighted(parts, groups, weights, by_group)
    return group_advantages(sums, groups, baseline=baseline, std="global", clip=clip)


def contrasting_groups(
    rewards: Sequence[Sequence[float]],
    groups: Sequence[_Group],
    weights: Sequence[float],
    share: float,
    by_group: Mapping[_Group, Sequence[float]] | None = None,
) -> frozenset[_Group]:
    """The fewest groups that together have this share of the variances of all groups, the one that
    varies most first; of equals the one that comes first. RAGEN-2, arXiv 2604.06268.

    Variances are of the weighted sum of the rewards, each over its standard deviation over all
    samples: with that of its group, all groups would vary alike. All groups are kept with a share
    of 1, and where none varies. Takes and raises what `mixed_advantages` does.
    """
    parts = [
        group_advantages(column, groups, clip=math.inf) for column in zip(*rewards, strict=True)
    ]
    sums = _weighted(parts, groups, weights, by_group)
    variances = {
        group: _std([sums[index] for index in indices]) ** 2
        for group, indices in _members(sums, groups).items()
    }
    wanted = share * math.fsum(variances.values())
    if share == 1 or wanted == 0:
        return frozenset(variances)
    kept: list[_Group] = []
    for group in sorted(variances, key=lambda group: -variances[group]):
        if math.fsum(variances[each] for each in kept) >= wanted:
            break
        kept.append(group)
    return frozenset(kept)


def all_equal(rewards: Iterable[Sequence[float]]) -> bool:
    """Whether all samples have the same rewards, of which each has one or several."""
    return len(set(map(tuple, rewards))) == 1


def _weighted(
    parts: Sequence[Sequence[float]],
    groups: Sequence[_Group],
    weights: Sequence[float],
    by_group: Mapping[_Group, Sequence[float]] | None,
) -> list[float]:
    """The weighted sum of the parts of each sample."""
    samples, others = zip(*parts, strict=True), by_group or {}
    return [
        math.fsum(map(mul, others.get(group, weights), sample))
        for group, sample in zip(groups, samples, strict=True)
    ]


def _members(rewards: Sequence[float], groups: Sequence[_Group]) -> dict[_Group, list[int]]:
    if len(rewards) != len(groups):
        raise ValueError(f"{len(rewards)} rewards, but {len(groups)} group names")
    if not all(math.isfinite(reward) for reward in rewards):
        raise ValueError("rewards must be finite; a failed score is not a reward")
    members: dict[_Group, list[int]] = {}
    for index, group in enumerate(groups):
        members.setdefault(group, []).append(index)
    return members


def _bounded(
    advantages: Sequence[float], groups: Sequence[Hashable], clip: float, *, centre: bool
) -> list[float]:
    """Cut to [-clip, clip]; a group of which something is cut is shifted to a sum of 0 and shrunk
    into the clip, if it is to be centred.
    """
    bounded = [min(max(advantage, -clip), clip) for advantage in advantages]
    if not centre:
        return bounded
    for indices in _members(advantages, groups).values():
        if all(bounded[index] == advantages[index] for index in indices):
            continue
        mean = math.fsum(bounded[index] for index in indices) / len(indices)
        shrink = min(1.0, clip / max(abs(bounded[index] - mean) for index in indices))
        for index in indices:
            bounded[index] = (bounded[index] - mean) * shrink
    return bounded


def _flat(rewards: Sequence[float]) -> bool:
    return min(rewards) == max(rewards)


def _std(rewards: Sequence[float]) -> float:
    if not rewards or _flat(rewards):
        return 0.0
    mean = math.fsum(rewards) / len(rewards)
    return math.sqrt(math.fsum((reward - mean) ** 2 for reward in rewards) / len(rewards))
