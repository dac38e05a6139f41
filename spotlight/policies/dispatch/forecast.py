"""When the requests that are in work will be done."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from spotlight.policies.dispatch.pace import Pace
from spotlight.policies.dispatch.takers import Taker
from spotlight.types import RequestKind


class Arrival(NamedTuple):
    """So many requests will be done in so many seconds."""

    in_s: float
    requests: int


def arrivals(
    takers: Iterable[Taker], pace: Pace, kind: RequestKind, iteration: int, now: float
) -> tuple[Arrival, ...]:
    """Of the leased requests of a kind and an iteration, the first ones first, as far as groups go
    on at the pace that they had. What a group has for which no pace is known is left out."""
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
