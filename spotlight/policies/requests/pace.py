"""How fast groups work, how often they are lost, and what follows from that: after how many steps
to commit, what is too slow, and when the requests in work will be done."""

from __future__ import annotations

import math
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable
from statistics import median
from typing import NamedTuple, Protocol

from spotlight.policies.commit_interval import commit_interval
from spotlight.policies.preemption import LossRate
from spotlight.policies.requests.rows import Lease, StepsOf, Taker
from spotlight.types import RequestKind, SamplingSettings

_SLOW = 3.0
"""A batch that takes so many times longer than it takes others is given to another group."""
_SMOOTHING = 0.3
_RECENT = 63


class Profile(Protocol):
    """What is known of the model's steps, from this run and others."""

    def measure(self, settings: SamplingSettings, members: int, step_s: float) -> None:
        """A step of a micro-batch took so many members so long."""

    def step_s(self, settings: SamplingSettings, members: int) -> float | None:
        """Measured, or estimated from what is; None when nothing of the model is."""


class Pace:
    """See the module's docstring."""

    def __init__(self, profile: Profile) -> None:
        self._profile = profile
        self._recent: defaultdict[StepsOf, deque[float]]
        self._recent = defaultdict(lambda: deque(maxlen=_RECENT))
        """How many seconds the latest steps took."""
        self._losses: defaultdict[str, LossRate] = defaultdict(LossRate)
        """How often workers are lost, by pool."""
        self._commit_s = 0.0
        """Seconds for which a commit keeps an accelerator from denoising, of late."""
        self.score_s = 0.0
        """How many seconds scoring a batch takes, of late."""
        self._slices: deque[float] = deque(maxlen=_RECENT)
        """How many seconds the gradients of the latest slices took."""

    def measure(
        self, taker: Taker, settings: SamplingSettings, members: int, step_s: float
    ) -> None:
        """Its group of so many members took so long for a step; a time that cannot be is passed
        over."""
        if not (members > 0 and 0 < step_s < math.inf):
            return
        steps = StepsOf(members, settings.preview_model)
        known = taker.step_s.get(steps, step_s)
        taker.step_s[steps] = known + _SMOOTHING * (step_s - known)
        self._recent[steps].append(step_s)
        self._profile.measure(settings, members, step_s)

    def committed(self, cost_s: float) -> None:
        """A commit kept an accelerator from denoising for so long."""
        self._commit_s += _SMOOTHING * (cost_s - self._commit_s)

    def scored(self, seconds: float) -> None:
        """Scoring a batch took so long."""
        self.score_s += _SMOOTHING * (seconds - self.score_s)

    def computed(self, seconds: float) -> None:
        """The gradient of a slice took so long."""
        self._slices.append(seconds)

    @property
    def slice_s(self) -> float | None:
        """How many seconds the gradient of a slice takes; None while that is not known."""
        return median(self._slices) if self._slices else None

    def lost(self, pool: str) -> None:
        """A worker of the pool was lost, or has notice."""
        self._losses[pool].losses += 1

    def watched(self, workers: Counter[str], seconds: float) -> None:
        """So much time has passed with so many workers in each pool: those that live through it
        make losses less likely."""
        for pool, count in workers.items():
            self._losses[pool].worker_s += seconds * count

    def commit_every(self, taker: Taker, settings: SamplingSettings) -> int:
        """After how many steps a batch is committed; 0 for only when it must stop."""
        step_s = self.step_s_of(taker, settings)
        if step_s is None:
            return 0  # nothing is known yet: the first batch shows what a step takes
        return commit_interval(
            step_s, self._commit_s, self._losses[taker.pool].per_s, settings.steps
        )

    def step_s_of(self, taker: Taker, settings: SamplingSettings) -> float | None:
        """What a step takes its group, or others if it has not taken any."""
        steps = StepsOf(taker.members, settings.preview_model)
        return taker.step_s.get(steps) or self.usual_step_s(settings, taker.members)

    def usual_step_s(self, settings: SamplingSettings, members: int) -> float | None:
        """What a step takes groups of so many members; what other sizes took tells it too."""
        recent = self._recent.get(StepsOf(members, settings.preview_model))
        return median(recent) if recent else self._profile.step_s(settings, members)

    def slow_from(
        self,
        lease: Lease,
        taker: Taker,
        usual_step_s: Callable[[SamplingSettings, int], float | None],
    ) -> float | None:
        """When a lease will have taken far too long; None if that cannot be told yet.

        Args:
            usual_step_s: as the method says it; whoever asks for many leases remembers the answers.
        """
        settings, is_gradient = lease.request.settings, lease.rows[0].is_gradient
        usual = self.slice_s if is_gradient else usual_step_s(settings, taker.members)
        if usual is None:
            return None
        since = max(lease.granted_at, taker.regrouped_at)  # another size, another pace
        left = 1 if is_gradient else settings.steps - lease.rows[0].steps_done
        return since + _SLOW * max(1, taker.load) * left * usual + 1.0


def usual_batch_s(takers: Iterable[Taker], pace: Pace, settings: SamplingSettings) -> float | None:
    """How many seconds denoising and scoring a batch takes these groups, in the median; None if
    nothing is known of any."""
    steps_s = [pace.step_s_of(taker, settings) for taker in takers]
    known = [settings.steps * step_s for step_s in steps_s if step_s is not None]
    return median(known) + pace.score_s if known else None


class Arrival(NamedTuple):
    """So many requests will be done in so many seconds."""

    in_s: float
    requests: int


def arrivals(
    takers: Iterable[Taker], pace: Pace, kind: RequestKind, iteration: int, now: float
) -> tuple[Arrival, ...]:
    """When the leased requests of a kind and an iteration will be done, the first ones first, if
    groups go on at the pace that they had. What a group has for which no pace is known is left
    out."""
    found: list[Arrival] = []
    for taker in takers:
        left_s = 0.0
        began = max(taker.free_since, taker.regrouped_at)
        for _, lease in sorted(taker.leases.items()):
            settings = lease.request.settings
            step_s = pace.step_s_of(taker, settings)
            if step_s is None:
                break
            if not lease.is_denoised:
                row = lease.rows[0]
                taken_s = now - max(began, lease.granted_at) if not left_s else 0.0
                work_s = (settings.steps - row.resumed_at) * step_s - taken_s
                left_s += max(0.0, min(work_s, (settings.steps - row.steps_done) * step_s))
            if (lease.request.kind, lease.request.iteration) == (kind, iteration):
                found.append(Arrival(left_s + pace.score_s, len(lease.rows)))
    return tuple(sorted(found))
