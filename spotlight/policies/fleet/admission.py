"""Which waiting jobs and sessions begin now. Pure: times, in seconds, are handed in.

A job begins when enough workers of reserved nodes are free beyond what those that run need: the one
with the highest priority first, then the one that was submitted first. While it does not fit, later
ones that do may begin, unless it has waited for too long. If no job runs, the first one begins even
without nodes, and waits for them as any job does that has lost its nodes. Sessions train on nothing
of ours, and begin at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from spotlight.policies.fleet.allocation import Borrower, Lendable, hold
from spotlight.timings import SharingTimings


class Waiting(NamedTuple):
    """A job or a session that has not begun."""

    id: str
    priority: int
    submitted: float
    """When it was."""
    ranks: int
    """How many workers of reserved nodes it trains on; 0 for a session."""


def admit(
    now: float,
    waiting: Iterable[Waiting],
    borrowers: Sequence[Borrower],
    nodes: Sequence[Lendable],
    timings: SharingTimings,
) -> list[str]:
    """The ids of those that begin now, in this order."""
    reasons = _reasons(now, waiting, borrowers, nodes, timings)
    return [each.id for each, reason in reasons if not reason]


def why_waits(
    waits: str,
    now: float,
    waiting: Iterable[Waiting],
    borrowers: Sequence[Borrower],
    nodes: Sequence[Lendable],
    timings: SharingTimings,
) -> str:
    """Why the one with this id, which is among them, does not begin now; empty if it does."""
    reasons = _reasons(now, waiting, borrowers, nodes, timings)
    return {each.id: reason for each, reason in reasons}[waits]


def _reasons(
    now: float,
    waiting: Iterable[Waiting],
    borrowers: Sequence[Borrower],
    nodes: Sequence[Lendable],
    timings: SharingTimings,
) -> Iterator[tuple[Waiting, str]]:
    """Why each does not begin now, in the order in which they are looked at; empty for one that
    does."""
    running, overdue = list(borrowers), ""
    free = _free_workers(running, nodes)
    for each in sorted(waiting, key=lambda it: (-it.priority, it.submitted, it.id)):
        reason = ""
        if each.ranks and any(borrower.ranks for borrower in running):
            reason = overdue if each.ranks <= free else _lack(each.ranks, free)
        if not reason:
            running.append(_as_borrower(each, running))
            free = _free_workers(running, nodes)
        elif not overdue and now - each.submitted > timings.backfill_limit_s:
            overdue = f"waits until {each.id} begins, which has waited for too long"
        yield each, reason


def _free_workers(running: Iterable[Borrower], nodes: Sequence[Lendable]) -> int:
    """Workers of reserved nodes beyond what those that run need."""
    held = hold({}, running, nodes)
    reserved = (node for node in nodes if node.pool == "reserved" and node.may_be_lent)
    return sum(node.workers for node in reserved if node.name not in held)


def _as_borrower(waiting: Waiting, running: Iterable[Borrower]) -> Borrower:
    """One that begins now, after all that run."""
    order = 1 + max((borrower.order for borrower in running), default=0)
    return Borrower(waiting.id, 1.0, waiting.priority, order, waiting.ranks, frozenset(), 0.0)


def _lack(ranks: int, free: int) -> str:
    workers = "worker" if ranks == 1 else "workers"
    return f"waits for {ranks} reserved {workers}; {free} {'is' if free == 1 else 'are'} free"
