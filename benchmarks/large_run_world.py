"""What happens in a run that was never made: when its iterations begin and end, which nodes come
and go, and what each worker does meanwhile. All of it follows from the size and the seed.

Every time is a whole number of milliseconds of run time, so that whatever is derived from it adds
up exactly.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import msgspec
import numpy as np
import numpy.typing as npt

from spotlight.record.ledger import Milliseconds, TimeState
from spotlight.types import Pool

LINE_MS = 10_000
"""What a line of the finest roll-up covers. Nodes come and go at the edges of lines."""
_VARIANTS = 7
"""There are so many ways of being a busy worker; two workers with the same do the same."""
_STARTING, _LOADING, _DRAINING, _LOST = 3, 2, 2, 1
"""How many lines of a stay these take."""
_SHORTEST = 12
"""Lines of the shortest stay, and of the shortest absence."""

Times = npt.NDArray[np.int64]

_PARTS: dict[Pool, tuple[tuple[TimeState, float], ...]] = {
    "reserved": (
        ("idle", 0.02),
        ("rollout", 0.36),
        ("score", 0.06),
        ("evaluate", 0.0),
        ("idle", 0.04),
        ("train", 0.48),
        ("idle", 0.04),
    ),
    "spot": (
        ("idle", 0.03),
        ("rollout", 0.35),
        ("score", 0.06),
        ("evaluate", 0.0),
        ("explore", 0.40),
        ("score", 0.06),
        ("idle", 0.10),
    ),
}
"""What a worker does in an iteration, one after the other, and for which share of it."""


class Size(msgspec.Struct, frozen=True, kw_only=True):
    """How large a run is."""

    reserved_nodes: int = 1
    spot_nodes: int = 2
    """How many there are at once."""
    workers: int = 1
    """The number of workers of each node."""
    hours: float = 1.0
    iterations: int = 60
    side: int = 64
    """The size of a picture, in pixels."""
    prompts: int = 8
    """How many validation pictures there are of a version."""
    validate_every: int = 10
    life_h: float = 6.0
    """How long a spot node is there on average."""
    seed: int = 0

    @property
    def all_workers(self) -> int:
        """How many there are at once."""
        return (self.reserved_nodes + self.spot_nodes) * self.workers

    @property
    def lines(self) -> int:
        """How many lines of the finest roll-up there are."""
        return max(2 * _SHORTEST, round(self.hours * 3_600_000 / LINE_MS))


SIZES = {
    "small": Size(),
    "long": Size(spot_nodes=6, workers=4, hours=44.0, iterations=2000, side=1280, prompts=16),
    "wide": Size(
        reserved_nodes=8,
        spot_nodes=117,
        workers=8,
        hours=56.0,
        iterations=10_000,
        side=512,
        validate_every=50,
        life_h=10.0,
    ),
}
"""3 workers for an hour; 28 for two days, with large pictures; 1,000 workers for 10,000
iterations."""


class Stay(msgspec.Struct, frozen=True):
    """One process of a node, from the start of its machine until nobody pays for it any more; its
    times are numbers of lines."""

    node: str
    pool: Pool
    process: str
    workers: tuple[str, ...]
    begin: int
    end: int
    had_notice: bool
    is_lost: bool
    """Whether it was lost before the run ended."""

    @property
    def serves(self) -> int:
        """From then on its workers work."""
        return self.begin + _STARTING + _LOADING

    @property
    def loads(self) -> int:
        """From then on its workers are there, and load."""
        return self.begin + _STARTING

    @property
    def lost(self) -> int:
        """From then on its workers are gone; the end of the run if they stay."""
        return self.end - _LOST if self.is_lost else self.end

    @property
    def drains(self) -> int:
        """From then on its workers take nothing more."""
        return self.lost - _DRAINING if self.had_notice else self.lost

    def state(self, line: int) -> TimeState | None:
        """What its workers do all through a line; None while they work."""
        if line < self.loads:
            return "starting"
        if line < self.serves:
            return "loading"
        if line < self.drains:
            return None
        return "draining" if line < self.lost else "lost"


@dataclass(frozen=True)
class Variant:
    """A way of being a busy worker, for the whole run."""

    edges: Times
    """When each of its states begins, and the end."""
    states: Sequence[TimeState]

    @cached_property
    def by_line(self) -> dict[TimeState, Times]:
        """Its time in each state, by line."""
        lines = np.arange(0, int(self.edges[-1]) + 1, LINE_MS)
        widths = np.diff(self.edges)
        found: dict[TimeState, Times] = {}
        for state in dict.fromkeys(self.states):
            took = np.where([each == state for each in self.states], widths, 0)
            so_far = np.concatenate(([0], np.cumsum(took)))
            until = np.rint(np.interp(lines, self.edges, so_far)).astype(np.int64)
            found[state] = until[1:] - until[:-1]
        return found

    @cached_property
    def lines(self) -> list[Milliseconds]:
        """The same as records."""
        states = list(self.by_line)
        rows = zip(*(self.by_line[state].tolist() for state in states), strict=True)
        return [
            {state: took for state, took in zip(states, row, strict=True) if took} for row in rows
        ]


class World:
    """See the module's docstring."""

    def __init__(self, size: Size) -> None:
        self.size = size
        self._rng = random.Random(f"{size.seed} nodes")
        self._numbers = np.random.default_rng(size.seed)
        self.end_ms = size.lines * LINE_MS
        self.iterations = self._iterations()
        self.validated = np.arange(size.iterations) % size.validate_every == 0
        """Whether the weights with which each iteration begins are validated in it."""
        self.variants: dict[Pool, list[Variant]] = {
            pool: [self._variant(pool) for _ in range(_VARIANTS)] for pool in _PARTS
        }
        self.stays = sorted(self._stays(), key=lambda stay: (stay.begin, stay.node))

    def variant(self, stay: Stay, worker: int) -> Variant:
        """That of the worker with this number in its node."""
        number = int(stay.node.rpartition("-")[2])
        return self.variants[stay.pool][(number * self.size.workers + worker) % _VARIANTS]

    def phase_edges(self) -> dict[str, Times]:
        """When each phase begins in each iteration."""
        begin, took = self.iterations[:-1], np.diff(self.iterations)
        return {
            "publish": begin,
            "rollout": begin + took * 2 // 100,
            "train": begin + took * 48 // 100,
        }

    def _iterations(self) -> Times:
        """When each begins, and the end of the last; the nodes come first."""
        first = (_STARTING + _LOADING) * LINE_MS
        took = self._numbers.lognormal(0.0, 0.12, self.size.iterations)
        so_far = np.concatenate(([0.0], np.cumsum(took)))
        span = self.end_ms - first
        ends: Times = (first + np.rint(so_far / so_far[-1] * span)).astype(np.int64)
        return ends

    def _variant(self, pool: Pool) -> Variant:
        parts = _PARTS[pool]
        shares = np.array([share for _, share in parts])
        jitter = self._numbers.uniform(0.8, 1.2, (self.size.iterations, len(parts)))
        widths = shares * jitter
        widths[self.validated, 3] = 0.1  # evaluation
        ends = np.cumsum(widths, axis=1)
        ends /= ends[:, -1:]
        begin, took = self.iterations[:-1, None], np.diff(self.iterations)[:, None]
        begins = np.rint(begin + took * np.hstack([np.zeros((len(ends), 1)), ends[:, :-1]]))
        edges = np.concatenate(([0], begins.astype(np.int64).ravel(), [self.end_ms]))
        return Variant(edges, ["idle", *([state for state, _ in parts] * self.size.iterations)])

    def _stays(self) -> Iterator[Stay]:
        size = self.size
        for number in range(size.reserved_nodes):
            yield self._stay("reserved", number, 0, size.lines, is_lost=False)
        for number in range(size.spot_nodes):
            begin = self._rng.randrange(_SHORTEST // 2)
            while begin < size.lines - _SHORTEST:
                lines = size.life_h * 3_600_000 / LINE_MS
                end = begin + _SHORTEST + round(self._rng.expovariate(1 / lines))
                is_lost = end < size.lines
                yield self._stay("spot", number, begin, min(end, size.lines), is_lost=is_lost)
                begin = end + _SHORTEST + self._rng.randrange(10 * _SHORTEST)

    def _stay(self, pool: Pool, number: int, begin: int, end: int, *, is_lost: bool) -> Stay:
        node = f"{pool}-{number}"
        return Stay(
            node=node,
            pool=pool,
            process=f"{self._rng.getrandbits(48):012x}",
            workers=tuple(f"{node}/{index}" for index in range(self.size.workers)),
            begin=begin,
            end=end,
            had_notice=is_lost and self._rng.random() < 0.8,
            is_lost=is_lost,
        )
