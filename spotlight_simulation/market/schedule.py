"""A schedule: which spot nodes a job has, from when until when, and how each of them ends."""

from __future__ import annotations

import msgspec


class Stay(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One node from its start until the market takes it. A node that comes back is another one."""

    node: str
    """The name of the node, which no other stay has."""
    from_s: float
    """The moment at which the node is billed and begins to boot. [s from the beginning]"""
    until_s: float
    """The moment at which the node is gone; the end of the schedule, if it stayed. [s]"""
    notice_s: float
    """How long before its end the node is told; 0 if it is never told. [s]"""
    is_taken: bool
    """Whether the market took the node; otherwise it stayed until the end of the schedule."""


class Schedule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The stays of a pool's nodes over a stretch of a market."""

    market: str
    """The name of the trace and zone that it was drawn from."""
    is_held: bool
    """Whether the trace tells when held nodes were taken; a trace of launch probes tells only when
    a node could have been started."""
    pool: int
    """How many nodes are asked for at most."""
    seconds: float
    """The length of the schedule. [s]"""
    stays: tuple[Stay, ...]
    """All stays, in the order of their beginnings."""

    def nodes_at(self, at_s: float) -> int:
        """How many nodes are billed at a moment."""
        return sum(stay.from_s <= at_s < stay.until_s for stay in self.stays)


class Prices(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a GPU costs in one price table."""

    name: str
    """The name of the price table, such as `aws-p5`."""
    currency: str
    """The currency of both prices, such as `USD`."""
    reserved_per_gpu_hour: float
    """The price of a reserved or on-demand GPU for an hour."""
    spot_per_gpu_hour: float
    """The price of a spot GPU for an hour."""
