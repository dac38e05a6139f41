"""Whether the trainer ranks of a job are there, and how often they may be replaced. Pure: time is
handed in, in seconds.
"""

from __future__ import annotations

from collections.abc import Iterable

MOST_RECOVERIES = 3
"""So often in a row trainers are replaced without a trained iteration: a job whose training ends
every process that does it must end, too."""


class RankWatch:
    """Which ranks are out of reach, and for how long; ranks are named by the epoch of their worker.

      there --(its node is out of reach)--> silent --(unheard for `patience_s`)--> given up
        ^                                    |  ^
        +---(its node is back, with it)------+  +--- it answers at its own address: silent since now

    Out of reach is not dead: a machine that moves, a network that stalls, and a process that was
    stopped come back. A rank whose process has ended is nothing to watch.
    """

    def __init__(self, patience_s: float) -> None:
        self._patience_s = patience_s
        self._heard_at: dict[int, float] = {}

    @property
    def silent(self) -> tuple[int, ...]:
        """Those that are out of reach."""
        return tuple(self._heard_at)

    def lose_sight(self, epochs: Iterable[int], now: float) -> None:
        """Their node is out of reach; some may be so already."""
        for epoch in epochs:
            self._heard_at.setdefault(epoch, now)

    def see(self, epochs: Iterable[int]) -> None:
        """Their node is there, and has them."""
        for epoch in epochs:
            self._heard_at.pop(epoch, None)

    def answered(self, epoch: int, now: float) -> None:
        """A rank answers itself, whatever is with its node."""
        if epoch in self._heard_at:
            self._heard_at[epoch] = now

    def given_up(self, now: float) -> tuple[int, ...]:
        """Those that nobody has heard of for too long."""
        return tuple(
            epoch for epoch, heard in self._heard_at.items() if now - heard >= self._patience_s
        )


def next_recovery(last: tuple[int, int] | None, completed: int) -> tuple[int, int] | None:
    """The number of a recovery, from 1, with the iterations that it goes on from; None if there
    were too many.

    Args:
        last: what this returned for the recovery before; None for the first.
        completed: iterations that the next trainers go on after.
    """
    count = last[0] + 1 if last is not None and last[1] == completed else 1
    return (count, completed) if count <= MOST_RECOVERIES else None
