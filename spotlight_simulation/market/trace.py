"""A trace of a spot market: how many nodes could be had when; and the schedules that follow of it.

Pure. A schedule for a pool that is smaller than the market takes part of it: each node of the
market has a place, and the pool has as many of the places as it asks for. So a pool of four gets a
quarter of what a market of sixteen has, and loses its nodes as often as that does.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

import msgspec

from spotlight.errors import UserError
from spotlight.report.formatting import count
from spotlight_simulation.market.schedule import Schedule, Stay

NOTICE_S = 30.0
"""What most clouds promise; no trace tells whether a notice came. [s]"""


class Count(NamedTuple):
    """How many nodes there are from a moment on."""

    at_s: float
    nodes: int


class Life(NamedTuple):
    """A node of the market, from when until when, and whether it was taken then."""

    from_s: float
    until_s: float
    is_taken: bool


class Hole(NamedTuple):
    """A stretch of which a trace tells nothing."""

    from_s: float
    until_s: float


class Trace(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a file tells of one zone."""

    market: str
    """The name of the file, and of the zone where it has several."""
    is_held: bool
    """Whether nodes were kept until they were taken. Otherwise they were started only to see
    whether that is possible, which overstates how often nodes are taken."""
    seconds: float
    """The length of the trace. [s]"""
    places: int
    """How many nodes were asked for, as far as is known: the most that were there at a time."""
    counts: tuple[Count, ...]
    """How many nodes there are, by time; before the first there are none."""
    lives: tuple[Life, ...] = ()
    """The nodes in the order of their beginnings, if the file names them; else they are drawn."""
    holes: tuple[Hole, ...] = ()
    """The stretches without data; the count before one is that of its end."""
    remarks: tuple[str, ...] = ()
    """What was mended in reading the file."""

    @property
    def is_ever_up(self) -> bool:
        """Whether there ever was a node."""
        return any(count.nodes for count in self.counts)

    def mean_nodes(self) -> float:
        """How many nodes there are on average; 0 where the trace has no count."""
        spans = pairwise([*self.counts, Count(self.seconds, 0)])
        return sum(now.nodes * (later.at_s - now.at_s) for now, later in spans) / self.seconds

    def without_holes(self) -> Trace:
        """The same with what comes after a hole moved to its beginning."""
        moved = [
            Count(at_s - self._lost_before(at_s), nodes)
            for at_s, nodes in self.counts
            if not any(hole.from_s <= at_s < hole.until_s for hole in self.holes)
        ]
        remark = f"{count(len(self.holes), 'hole')} in the data left out"
        return msgspec.structs.replace(
            self,
            seconds=self.seconds - self._lost_before(self.seconds),
            counts=tuple(moved),
            holes=(),
            remarks=(*self.remarks, remark) if self.holes else self.remarks,
        )

    def schedule(
        self,
        *,
        pool: int,
        generator: random.Random,
        start_s: float = 0.0,
        seconds: float | None = None,
        notice_s: float = NOTICE_S,
    ) -> Schedule:
        """The nodes that a pool has in a stretch of the trace, by default up to its end.

        Args:
            pool: how many nodes it asks for; all the time.
            generator: it decides which places are the pool's, and, where the trace does not name
                its nodes, which of them are taken.
            notice_s: how long before its end a node is told; 0 if never.

        Raises `UserError` for a stretch with a hole or beyond the end, or a pool that is larger
        than the market ever was.
        """
        end_s = self.seconds if seconds is None else start_s + seconds
        self._check(pool, start_s, end_s)
        lives = self.lives or _drawn_lives(self.counts, self.seconds, generator)
        stays = []
        for number, life in enumerate(_in_pool(lives, self.places, pool, generator)):
            if life.from_s >= end_s or life.until_s <= start_s:
                continue
            is_taken = life.is_taken and life.until_s < end_s
            stays.append(
                Stay(
                    node=f"spot-{number}",
                    from_s=max(0.0, life.from_s - start_s),
                    until_s=min(life.until_s, end_s) - start_s,
                    notice_s=notice_s if is_taken else 0.0,
                    is_taken=is_taken,
                )
            )
        stays.sort(key=lambda stay: stay.from_s)
        return Schedule(
            market=self.market,
            is_held=self.is_held,
            pool=pool,
            seconds=end_s - start_s,
            stays=tuple(stays),
        )

    def _check(self, pool: int, start_s: float, end_s: float) -> None:
        if pool < 1:
            raise UserError(f"pools.spot.nodes: must be 1 at least to replay a market, not {pool}")
        if not 0 <= start_s < end_s <= self.seconds:
            raise UserError(
                f"{self.market}: the stretch from {start_s / 3600:g} to {end_s / 3600:g} h is not"
                f" within the trace, which has {self.seconds / 3600:.1f} h; choose another"
            )
        for hole in self.holes:
            if hole.from_s < end_s and hole.until_s > start_s:
                raise UserError(
                    f"{self.market}: there is no data from {hole.from_s / 3600:.2f} to"
                    f" {hole.until_s / 3600:.2f} h; choose a stretch without that hole, or leave"
                    " holes out (`--skip-holes`)"
                )
        if self.is_ever_up and pool > self.places:
            raise UserError(
                f"{self.market}: the market never had more than {self.places} nodes, and the pool"
                f" asks for {pool} (`pools.spot.nodes`); ask for fewer, or choose another trace"
            )

    def _lost_before(self, at_s: float) -> float:
        return sum(hole.until_s - hole.from_s for hole in self.holes if hole.until_s <= at_s)


def counts_of(lives: Sequence[Life]) -> tuple[Count, ...]:
    """How many of them there are, by time."""
    changes: dict[float, int] = {}
    for life in lives:
        changes[life.from_s] = changes.get(life.from_s, 0) + 1
        if life.is_taken:
            changes[life.until_s] = changes.get(life.until_s, 0) - 1
    nodes, counts = 0, []
    for at_s in sorted(changes):
        nodes += changes[at_s]
        counts.append(Count(at_s, nodes))
    return tuple(counts)


def _drawn_lives(
    counts: Sequence[Count], seconds: float, generator: random.Random
) -> tuple[Life, ...]:
    """Nodes that come and go as the counts do; which of them goes is drawn."""
    alive: list[float] = []
    lives = []
    for (_, before), (at_s, nodes) in pairwise([Count(0.0, 0), *counts]):
        for _ in range(before - nodes):
            from_s = alive.pop(generator.randrange(len(alive)))
            lives.append(Life(from_s, at_s, is_taken=True))
        alive += [at_s] * (nodes - before)
    lives += [Life(from_s, seconds, is_taken=False) for from_s in alive]
    return tuple(sorted(lives))


def _in_pool(
    lives: Sequence[Life], places: int, pool: int, generator: random.Random
) -> Iterator[Life]:
    """Those of them that come into a place of the pool's: each into one that is free, by chance."""
    free = list(range(places))
    taken: list[tuple[float, int]] = []
    for life in lives:
        while taken and taken[0][0] <= life.from_s:
            free.append(heapq.heappop(taken)[1])
        place = free.pop(generator.randrange(len(free)))
        heapq.heappush(taken, (life.until_s, place))
        if place < pool:
            yield life
