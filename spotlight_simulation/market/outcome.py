"""What came of a job on a spot market, whichever way it was replayed."""

from __future__ import annotations

from itertools import pairwise

import msgspec

from spotlight_simulation.market.schedule import Schedule


class Outcome(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a replay came to, from the beginning of its schedule until the job was done or the
    schedule ended."""

    iterations: float
    """How many iterations were done; whole ones, where the job itself was run."""
    is_finished: bool
    """Whether these are all that the job has."""
    hours: float
    """How long that took. [h]"""
    money: float
    """What all nodes cost, in the currency of the prices."""
    currency: str
    """The currency of `money`."""
    previews_per_sample: float
    """How many previews were made for each sample that was trained on."""
    nodes_share: tuple[float, ...]
    """The share of the time with no spot node billed, with one, and so on up to the whole pool."""
    lost_s: float
    """The seconds of spot GPUs that were paid and not spent on samples, previews or waiting for
    them: booting, loading, joining and leaving. [GPU s]"""
    losses: int
    """How many nodes the market took."""
    violations: tuple[str, ...] = ()
    """What must not happen, and did; only where the job itself was run."""


def shares_of_nodes(schedule: Schedule, until_s: float) -> tuple[float, ...]:
    """The share of the time with no node billed, with one, and so on up to the whole pool."""
    moments = {0.0, until_s}
    for stay in schedule.stays:
        moments |= {moment for moment in (stay.from_s, stay.until_s) if moment < until_s}
    shares, ordered = [0.0] * (schedule.pool + 1), sorted(moments)
    for begin_s, end_s in pairwise(ordered):
        shares[schedule.nodes_at(begin_s)] += (end_s - begin_s) / until_s
    return tuple(shares)
