"""Which prompt groups are explored when, where an iteration is trained in two parts.

At first all groups are given what they need to be whole. Then those of the first part have their
share, and at last those of the later part, so that what is in work when training ends is still
good for something: later groups are chosen when the first part is trained. In a pool of prompts it
is only after their share that those of the first part are known.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from spotlight.policies.exploration.planners import Candidate, ExplorationPlanner, widest


class Turn(NamedTuple):
    """Some groups are given candidates until so many are handed out, those before included."""

    groups: Sequence[int] | None
    """The groups; None for those that the first part does not train on."""
    until: float


class Turns:
    """Candidates of a planner, turn by turn; the last turn is for good.

    Args:
        turns: at least one.
        first_part: how many groups the first part trains on; it matters only where a turn is of the
            others.
    """

    def __init__(
        self, planner: ExplorationPlanner, turns: Sequence[Turn], first_part: int = 0
    ) -> None:
        self._planner = planner
        self._turns = deque(turns)
        self._first_part = first_part
        self._issued = 0
        self.first: tuple[int, ...] = ()
        """The groups that the first part trains on, once their turn is over and others are given
        candidates."""

    def next_chunk(self, size: int) -> list[Candidate]:
        """As of an `ExplorationPlanner`. A turn whose groups want no more is over."""
        chunk: list[Candidate] = []
        while len(chunk) < size:
            wanted = min(size - len(chunk), self._turns[0].until - self._issued)
            found = self._planner.next_chunk(int(wanted))
            chunk += found
            self._issued += len(found)
            is_over = not found or self._issued >= self._turns[0].until
            if is_over and len(self._turns) == 1:
                break
            if is_over:
                self._turns.popleft()
                groups = self._turns[0].groups
                self._planner.restrict(self._others() if groups is None else groups)
        return chunk

    def _others(self) -> list[int]:
        """The groups of the pool but those that the first part trains on, which are chosen now: of
        the others, it may depend on what is to come which are trained on. All groups where too few
        are whole yet to choose among: many workers are given many previews before any is scored."""
        choices = widest(self._planner.choose(), self._first_part)
        chosen = [group for group, one in enumerate(choices) if one.seeds]
        if all(choices[group].is_previewed for group in chosen):
            self.first = tuple(chosen)
        return [group for group in range(len(choices)) if group not in self.first]


def turns_of(groups: int, trained: int, whole: int, in_time: int, in_all: int) -> list[Turn]:
    """The turns of the groups of an iteration that is trained in two parts, of half of them each.

    Args:
        groups: those that may be explored.
        trained: how many of them are trained on.
        whole: candidates that as many groups as are trained on need to be whole.
        in_time: candidates that are expected to be scored when the first part's groups are chosen:
            later ones would be of no use to them. 0 if that is not known.
        in_all: the same when the later groups are chosen, or 0.
    """
    everything = Turn(range(groups), math.inf)
    if not (in_time and in_all):
        return [everything]
    half = groups // 2
    first = max(whole, min(in_time, (whole + in_all) // 2))
    if trained < groups:
        return [Turn(everything.groups, first), Turn(None, math.inf)]
    return [
        Turn(everything.groups, whole),
        Turn(range(half), first),
        Turn(range(half, groups), math.inf),
    ]
