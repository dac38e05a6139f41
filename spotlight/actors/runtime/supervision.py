"""When a crashed actor is started again: a pure decision from the times of its crashes."""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class RestartPolicy:
    """At most `limit` restarts within `window_s`, after a random delay that doubles with each; then
    `otherwise`."""

    limit: int = 3
    window_s: float = 60.0
    first_delay_s: float = 0.1
    """The delay before the n-th restart of a window is uniform in [0, first_delay_s * 2**(n-1)]
    (full jitter)."""
    greatest_delay_s: float = 10.0
    otherwise: Literal["escalate", "abandon"] = "escalate"
    """`escalate` crashes the parent, or stops the whole system if there is none; `abandon` leaves
    the actor dead."""

    def __post_init__(self) -> None:
        if self.limit < 0 or self.window_s <= 0 or self.first_delay_s < 0:
            raise ValueError(f"a restart policy cannot be negative: {self}")


NEVER = RestartPolicy(limit=0, otherwise="abandon")
"""A crash ends the actor; its watchers are told, nobody else."""

ESCALATE = RestartPolicy(limit=0)
"""A crash is a crash of the parent, or stops the whole system."""


class RestartHistory:
    """The restarts of one actor so far."""

    def __init__(self, policy: RestartPolicy, rng: random.Random) -> None:
        self._policy = policy
        self._rng = rng
        self._restarts: deque[float] = deque()

    def next_delay(self, now: float) -> float | None:
        """Seconds to wait before the restart after a crash at `now`, or None when the limit is
        reached."""
        policy = self._policy
        while self._restarts and self._restarts[0] <= now - policy.window_s:
            self._restarts.popleft()
        if len(self._restarts) >= policy.limit:
            return None
        greatest = min(policy.first_delay_s * 2.0 ** len(self._restarts), policy.greatest_delay_s)
        self._restarts.append(now)
        return self._rng.uniform(0.0, greatest)
