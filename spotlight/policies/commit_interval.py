"""When denoising saves its progress. Pure: times are handed in, in seconds."""

from __future__ import annotations

import math


def commit_interval(step_s: float, commit_s: float, losses_per_s: float, steps: int) -> int:
    """After how many steps to commit, so that committing and repeating lost steps cost least.

    Young's first-order optimum sqrt(2 * cost of a commit * mean time between losses), from which
    Daly starts too (J. T. Daly, A higher order estimate of the optimum checkpoint interval for
    restart dumps, 2006); one step at least. 0, never, when losses are not expected, or so rarely
    that a request of `steps` is over before the first commit.
    """
    if losses_per_s <= 0.0 or step_s <= 0.0:
        return 0
    interval = math.sqrt(2.0 * commit_s / losses_per_s) / step_s
    if interval >= steps:  # also guards the rounding against infinity
        return 0
    every = max(1, round(interval))
    return every if every < steps else 0


def commit_due(
    step: int, steps: int, last: int, every: int, *, urgent: bool, delivering: bool
) -> bool:
    """Whether to commit now, after `step` of `steps`; the last commit was after `last`.

    One delivery at a time: what became due meanwhile is committed, at its latest, when the delivery
    is done. After the last step the images themselves are delivered.

    What a loss costs follows: with d steps taken while a commit is on its way, which does not count
    before it is saved, at most max(every, d + 1) + d.
    """
    if delivering or not last < step < steps:
        return False
    return urgent or (every > 0 and step - last >= every)


def must_stop(now: float, stop_at: float | None, step_s: float) -> bool:
    """Whether the next step would end after the time to stop."""
    return stop_at is not None and now + step_s >= stop_at
