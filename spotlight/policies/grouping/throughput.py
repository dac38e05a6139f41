"""How much of the waiting work a set of SP groups finishes. Pure; all times in seconds.

Micro-batches of a class are alike. Classes are served in the order in which they are given, and
every micro-batch goes to the group that is done with it first, of several to the smallest. That is
what pulling comes to when groups are alike; when they are not, no other order finishes more of a
class.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

_ROUNDING = 1e-9


@dataclass(frozen=True)
class WorkClass:
    """Micro-batches of one kind that wait or are in work.

    Raises `ValueError` for anything else than whole numbers of batches (0 or more) and steps (1 or
    more), and finite times above 0; degree 1 must be there.
    """

    batches: int
    steps: int
    """Denoising steps of one micro-batch."""
    step_s: Mapping[int, float]
    """Seconds of a step by degree: only the degrees that are possible."""

    def __post_init__(self) -> None:
        if self.batches < 0:
            raise ValueError(f"batches must be 0 or more, not {self.batches}")
        if self.steps < 1:
            raise ValueError(f"steps must be 1 or more, not {self.steps}")
        if 1 not in self.step_s or min(self.step_s) < 1:
            raise ValueError(f"step_s must have degree 1 and none below it, not {self.step_s}")
        for degree, seconds in self.step_s.items():
            if not 0 < seconds < math.inf:
                raise ValueError(f"step_s[{degree}] must be finite and above 0, not {seconds}")

    def batch_s(self, degree: int) -> float:
        """Seconds that one group of this degree takes for one micro-batch."""
        return self.steps * self.step_s[degree]


class GroupKind(NamedTuple):
    """What the speed of a group depends on."""

    degree: int
    spans: bool
    """Its members are on several nodes."""


class Score(NamedTuple):
    """How good groups are."""

    rate: float
    """Micro-batches per second that they finish before the phase ends. If that is everything, or
    nobody knows when the phase ends: of what they do now, when no more groups are busy than there
    are micro-batches. What they do now counts then because groups are planned anew as less and
    less waits. Who finishes everything has a higher rate than who does not.
    """
    end: float
    """When all is finished, or the phase ends. 0 while there is work for every single member: then
    it is too early to ask."""


@dataclass(frozen=True)
class _Free:
    """So many groups of a kind that are free from a moment on."""

    kind: GroupKind
    since: float
    count: int


class Outlook:
    """The waiting work and the time that is left for it.

    Args:
        work: classes with waiting micro-batches, one at least.
        seconds_left: until the phase ends; None while that is not known.
        span_factor: so many times longer a step takes when the group spans nodes.
    """

    def __init__(
        self, work: Sequence[WorkClass], seconds_left: float | None, span_factor: float
    ) -> None:
        self._work = work
        self._span_factor = span_factor
        self._left_s = math.inf if seconds_left is None else max(0.0, seconds_left)
        self.batches = sum(each.batches for each in work)

    def score(self, groups: Mapping[GroupKind, int]) -> Score:
        """How good so many groups of each kind are; see `Score`."""
        free = [_Free(kind, 0.0, count) for kind, count in sorted(groups.items()) if count]
        finished, end = 0, 0.0
        for each in self._work:
            free, batches, last = self._serve(each, free)
            finished += batches
            end = max(end, last)
        if finished < self.batches:
            return Score(finished / self._left_s if finished else 0.0, self._left_s)
        rate, idle = 0.0, self.batches
        for speed, count in sorted(((self.speed(k), n) for k, n in groups.items()), reverse=True):
            rate += speed * min(count, idle)
            idle -= min(count, idle)
        everyone_busy = self.batches >= sum(kind.degree * n for kind, n in groups.items())
        return Score(max(rate, finished / self._left_s), 0.0 if everyone_busy else end)

    def speed(self, kind: GroupKind) -> float:
        """Micro-batches per second of one busy group, of the mixture of all classes."""
        return self.batches / self._alone_s(kind)

    def in_time(self, kind: GroupKind) -> int:
        """Micro-batches that one group finishes before the phase ends, if enough wait and each
        class has its share of the time. It adds up over groups; exact for one class.
        """
        shares = self._left_s / self._alone_s(kind)
        return sum(_whole(shares * each.batches) for each in self._work)

    @property
    def ends(self) -> bool:
        """Is it known when the phase ends?"""
        return self._left_s < math.inf

    def _alone_s(self, kind: GroupKind) -> float:
        """Seconds that one group takes for everything."""
        return sum(each.batches * self._batch_s(each, kind) for each in self._work)

    def _serve(self, work: WorkClass, free: Sequence[_Free]) -> tuple[list[_Free], int, float]:
        """When the groups are free again, how many micro-batches end in time, and the last end."""
        free = list(free)
        batch_s = [self._batch_s(work, group.kind) for group in free]
        # Could micro-batches be cut at will, all would be done at `sure`. Of whole ones fewer are;
        # what is missing then ends one after the other, the soonest first.
        sure = min(self._left_s, _fluid_end(work.batches, free, batch_s))
        done = [
            _whole(max(0.0, sure - group.since) / each)
            for group, each in zip(free, batch_s, strict=True)
        ]
        left = work.batches - sum(
            group.count * each for group, each in zip(free, done, strict=True)
        )
        while left > 0:
            end, _, index = min(
                (group.since + (done[index] + 1) * batch_s[index], group.kind, index)
                for index, group in enumerate(free)
            )
            if end > self._left_s * (1 + _ROUNDING):
                break
            group = free[index]
            if left < group.count:
                free.append(replace(group, count=group.count - left))
                done.append(done[index])
                batch_s.append(batch_s[index])
                group = free[index] = replace(group, count=left)
            done[index] += 1
            left -= group.count
        later = [
            replace(group, since=group.since + each * seconds)
            for group, each, seconds in zip(free, done, batch_s, strict=True)
        ]
        last = max((each.since for each, n in zip(later, done, strict=True) if n), default=0.0)
        return later, work.batches - left, last

    def _batch_s(self, work: WorkClass, kind: GroupKind) -> float:
        return work.batch_s(kind.degree) * (self._span_factor if kind.spans else 1.0)


def _fluid_end(batches: int, free: Sequence[_Free], batch_s: Sequence[float]) -> float:
    """When all would be done if every group worked on them from the moment that it is free."""
    speed, missed, end = 0.0, 0.0, math.inf
    for group, seconds in sorted(zip(free, batch_s, strict=True), key=lambda each: each[0].since):
        if group.since >= end:
            break
        speed += group.count / seconds
        missed += group.since * group.count / seconds
        end = (batches + missed) / speed
    return end


def _whole(batches: float) -> int:
    return math.floor(batches + _ROUNDING)
