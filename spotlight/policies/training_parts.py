"""An iteration in two parts: while its first updates are taken, the prompt groups of the later ones
can still be chosen better.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Literal

Part = Literal["whole", "first", "rest"]
"""The part of an iteration: all of its updates and samples, or one of two halves, one after the
other."""


def can_be_divided(prompts: int, updates: int) -> bool:
    """Whether an iteration of so many prompt groups and updates has two halves."""
    return prompts % 2 == 0 and updates % 2 == 0


def updates_of(part: Part, updates: int) -> range:
    """Which of an iteration's updates these are."""
    if part == "whole":
        return range(updates)
    half = updates // 2
    return range(half) if part == "first" else range(half, updates)


def later_groups(
    groups: Sequence[int], scored: Mapping[int, int], awaited: Mapping[int, int]
) -> tuple[int, ...]:
    """Half of the groups that are trained on: those that have the fewest previews by now, and of
    equals those that the most are awaited for, and the later ones.

    Args:
        scored: previews that are there, by group.
        awaited: previews in work, by group.
    """

    def rank(group: int) -> tuple[int, int, int]:
        return scored.get(group, 0), -awaited.get(group, 0), -group

    order = sorted(groups, key=rank)
    return tuple(sorted(order[: len(groups) // 2]))


def have_their_share(
    later: Collection[int], trained: Collection[int], previews: Mapping[int, int]
) -> bool:
    """Whether the later groups have as many previews as the first ones. More of them would only
    delay the next exploration, whose first groups would have less choice.

    Args:
        trained: all groups that are trained on.
        previews: those that are there or in work, by group.
    """
    first = sum(previews.get(group, 0) for group in trained if group not in later)
    return sum(previews.get(group, 0) for group in later) >= first
