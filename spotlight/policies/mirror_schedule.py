"""When a run is copied to object storage, and when that is tried again. Pure: times, in seconds,
are handed in.

One copy at a time, always of the newest state that was taken: what is older by then is passed over.
A copy that fails is tried again after a pause that grows, and a newer state does not shorten it.
"""

from __future__ import annotations

from dataclasses import dataclass

PAUSES_S = (1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0)
"""The pause after a first failure, a second in a row, and so on; the last one is not exceeded."""


@dataclass(frozen=True)
class Upload:
    """Copy the state of this number now."""

    number: int


@dataclass(frozen=True)
class Wait:
    """Nothing may be tried for so long."""

    seconds: float


class MirrorSchedule:
    """See the module's docstring. States are numbered as they are taken."""

    def __init__(self) -> None:
        self._taken = 0
        self._copied = 0
        self._failed_in_a_row = 0
        self._not_before = 0.0

    def taken(self) -> None:
        """There is a newer state of the run."""
        self._taken += 1

    def next(self, now: float) -> Upload | Wait | None:
        """What to do; None: nothing until another state is taken."""
        if self._copied == self._taken:
            return None
        if now < self._not_before:
            return Wait(self._not_before - now)
        return Upload(self._taken)

    def uploaded(self, number: int) -> None:
        """The copy of this state is complete."""
        self._copied = number
        self._failed_in_a_row, self._not_before = 0, 0.0

    def failed(self, now: float) -> float:
        """A copy has failed; returns the seconds until the next try."""
        pause_s = PAUSES_S[min(self._failed_in_a_row, len(PAUSES_S) - 1)]
        self._failed_in_a_row += 1
        self._not_before = now + pause_s
        return pause_s

    def hurry(self) -> None:
        """The state that was taken last is the last of all, and time is short: try at once, and
        pause as after a first failure."""
        self._failed_in_a_row, self._not_before = 0, 0.0
