"""Requests that wait, most urgent first, in batches that may share a lease.

Every operation costs the logarithm of the number of batches, or less.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Hashable, Sequence
from dataclasses import dataclass, field
from itertools import islice

from spotlight.policies.requests.gathering import Gathering
from spotlight.policies.requests.rows import Row, WeightsKey, weights_of
from spotlight.types import Request, RequestId, RequestKind, SamplingSettings

_URGENCY: dict[RequestKind, int] = {
    "gradient": 0,
    "rollout": 0,
    "random": 1,
    "preview": 1,
    "evaluation": 2,
}
_IN_IDLE_TIME = 3
_EVALUATION_WAITS = 2
"""An evaluation that is more iterations old is as urgent as a rollout."""
_SUSPECT_AFTER = 2
"""A request that was held when so many nodes were lost is leased alone."""
_LOOK_AHEAD = 256
"""How many of a batch's oldest rows are looked through for a prompt."""


class Phases:
    """How urgent a request is, given what was submitted so far, and whether more is to come."""

    def __init__(self) -> None:
        self.begun = False
        """Whether anything was submitted: until then it is not settled from where a job goes on."""
        self._submitted: set[RequestKind] = set()
        self._iteration = -1
        """The latest iteration whose seeds are chosen."""

    def urgency(self, request: Request) -> tuple[int, ...]:
        """Smaller goes first. Rollouts hold training up, previews are worth something until
        training ends, evaluations wait, but not forever; probes go last among rollouts. Random
        seeds that do not wait for idle time are few, and go before previews of a later iteration.
        """
        urgency = _IN_IDLE_TIME if request.in_idle_time else _URGENCY[request.kind]
        if request.kind == "evaluation" and self._iteration - request.iteration > _EVALUATION_WAITS:
            urgency = 0
        return urgency, request.iteration, int(request.is_probe)

    def note(self, request: Request) -> bool:
        """A request was submitted; True if that changes the urgency of others."""
        self.begun = True
        if request.kind != "preview":  # those come bit by bit
            self._submitted.add(request.kind)
        if request.kind in ("evaluation", "random", "gradient"):
            return False
        return self.explored(request.iteration - (request.kind == "preview"))

    def explored(self, iteration: int) -> bool:
        """The seeds of an iteration are chosen; True if that changes the urgency of requests."""
        self.begun = True
        before, self._iteration = self._iteration, max(self._iteration, iteration)
        return self._iteration > before

    def may_come(self, request_id: str) -> bool:
        """Whether a request that is not known may yet be submitted."""
        known = RequestId.parse(request_id)
        if known is None:
            return False
        is_finished_ahead = known.kind == "rollout" and known.weights_version < known.iteration
        if known.kind == "preview" or is_finished_ahead:
            return known.iteration > self._iteration  # whose seeds are not chosen yet
        if known.kind in ("random", "gradient"):
            return False  # whoever asks for these does not wait for them
        if known.kind == "rollout" and known.iteration < self._iteration:
            return False  # where previews are trained on, none may ever be submitted
        return known.kind not in self._submitted


@dataclass(eq=False)
class Batch:
    """Rows that may share a lease: of one kind, weights version, settings and number of steps
    taken, and with the same failures, so that what cannot be done takes no others with it. Or those
    whose images are scored together.
    """

    rank: tuple[int, ...]
    key: Hashable
    failed_at: frozenset[str]
    is_denoised: bool
    is_random: bool
    """Whether its seeds are random ones, for which nothing waits, and which take all steps."""
    is_group: bool = False
    """Whether its rows are scored together: they are leased together."""
    rows: OrderedDict[str, Row] = field(default_factory=OrderedDict)

    def __lt__(self, other: Batch) -> bool:
        return self.rank < other.rank

    @property
    def first(self) -> Row:
        """The row that goes first."""
        return next(iter(self.rows.values()))

    @property
    def suits(self) -> tuple[frozenset[str], bool, bool]:
        """All that a worker which holds the weights is chosen by: batches of which this is equal
        suit the same workers."""
        return self.failed_at, self.is_denoised, self.is_random

    def take(self, most: int, prompts: Collection[str]) -> list[Row]:
        """Up to so many of its rows: those of such prompts, then the oldest. All of a group."""
        if self.is_group:
            return list(self.rows.values())
        if not prompts:
            return list(islice(self.rows.values(), most))
        near = list(islice(self.rows.values(), _LOOK_AHEAD))
        near.sort(key=lambda row: row.request.prompt not in prompts)
        return near[:most]


class _Queue:
    """Batches that need the same weights.

    Most batches suit the same workers: where nobody can take the first of these, nobody can take
    any, so only the `firsts` need be looked at. Requests that were lost with several nodes make a
    batch each: there are as many of these as there were workers.
    """

    def __init__(self) -> None:
        self.firsts: list[Batch] = []
        """The most urgent of those that suit the same workers, most urgent first."""
        self.rows = 0
        """How many rows are in all of them."""
        self._by_suits: dict[Hashable, list[Batch]] = {}
        """All batches by whom they suit, most urgent first; no two have the same rank."""

    def add(self, batch: Batch) -> None:
        """It waits from now on."""
        batches = self._by_suits.setdefault(batch.suits, [])
        insort(batches, batch)
        if batches[0] is batch:
            if len(batches) > 1:
                _take_out(self.firsts, batches[1])
            insort(self.firsts, batch)

    def remove(self, batch: Batch) -> None:
        """It waits no more."""
        batches = self._by_suits[batch.suits]
        if batches[0] is batch:
            _take_out(self.firsts, batch)
            if len(batches) > 1:
                insort(self.firsts, batches[1])
        _take_out(batches, batch)
        if not batches:
            del self._by_suits[batch.suits]

    def reorder(self, rank: Callable[[Batch], tuple[int, ...]]) -> None:
        """All have another rank."""
        for batches in self._by_suits.values():
            for batch in batches:
                batch.rank = rank(batch)
            batches.sort()
        self.firsts = sorted(batches[0] for batches in self._by_suits.values())


def _take_out(ranked: list[Batch], batch: Batch) -> None:
    del ranked[bisect_left(ranked, batch)]


class Waiting:
    """See the module's docstring.

    Args:
        phases: says how urgent a request is. Call `reorder` when that has changed.
        gathering: where those wait that are scored together, until all of them do.
    """

    def __init__(self, phases: Phases, gathering: Gathering) -> None:
        self._phases = phases
        self._gathering = gathering
        self._batches: dict[Hashable, Batch] = {}
        self._queues: dict[WeightsKey, _Queue] = {}
        """What waits, by the weights that it needs; no queue is empty."""
        self._batch_of: dict[str, Batch] = {}
        self._made = 0
        self._urgent: Counter[tuple[int, ...]] = Counter()
        """How many rows are so urgent."""
        self.undenoised: Counter[tuple[RequestKind, SamplingSettings]] = Counter()
        """How many rows are yet to be denoised, by kind and settings."""

    def __len__(self) -> int:
        return len(self._batch_of)

    def holds(self, row: Row) -> bool:
        """Whether this very row waits."""
        batch = self._batch_of.get(row.request.id)
        return batch is not None and batch.rows[row.request.id] is row

    def add(self, row: Row, *, ahead: bool) -> None:
        """At the end of its equals, or `ahead` of them: it has waited longest."""
        request = row.request
        if request.scored_with and row.is_denoised:
            self._gathering.put(row)
            return
        alone = request.id if len(row.lost_with) >= _SUSPECT_AFTER else ""
        failures = row.failures, row.score_failures, row.failed_at
        settings = (
            request.kind,
            request.iteration,
            request.weights_version,
            request.settings,
            request.is_probe,
            request.in_idle_time,
        )
        key = (settings, row.steps_done, failures, alone)
        batch = self._batches.get(key)
        if batch is None:
            batch = self._open(row, key, row.failed_at, ahead=ahead)
        self._enter(batch, row)
        if ahead:
            batch.rows.move_to_end(request.id, last=False)

    def gather(self) -> list[Row]:
        """Those that are scored together and all wait make a batch from now on; returns those that
        are left alone, which wait no more."""
        lone = []
        for rows in self._gathering.whole():
            if len(rows) == 1:
                lone += rows
                continue
            failed_at = frozenset[str]().union(*(row.failed_at for row in rows))
            batch = self._open(rows[0], rows[0].request.id, failed_at, ahead=True)
            batch.is_group = True
            for row in rows:
                self._enter(batch, row)
        return lone

    def remove(self, row: Row) -> None:
        """It waits no more; others that are scored with it are no batch without it."""
        batch = self._batch_of.get(row.request.id)
        if batch is None:
            self._gathering.take(row)
            return
        self._leave(batch, row)
        if batch.is_group:
            for other in list(batch.rows.values()):
                self._leave(batch, other)
                self._gathering.put(other)

    def _open(self, row: Row, key: Hashable, failed_at: frozenset[str], *, ahead: bool) -> Batch:
        """A batch for a row, which is to enter it."""
        self._made += 1
        rank = self._rank(row, -self._made if ahead else self._made)
        batch = Batch(rank, key, failed_at, row.is_denoised, row.request.kind == "random")
        self._batches[key] = batch
        self._queues.setdefault(weights_of(row.request), _Queue()).add(batch)
        return batch

    def _enter(self, batch: Batch, row: Row) -> None:
        batch.rows[row.request.id] = row
        self._batch_of[row.request.id] = batch
        self._count(row, 1)

    def _leave(self, batch: Batch, row: Row) -> None:
        del self._batch_of[row.request.id], batch.rows[row.request.id]
        if not batch.rows:
            del self._batches[batch.key]
            self._queues[weights_of(row.request)].remove(batch)
        self._count(row, -1)

    def reorder(self) -> None:
        """Urgency has changed for some."""
        for queue in self._queues.values():
            queue.reorder(lambda batch: self._rank(batch.first, batch.rank[-1]))
        self._urgent.clear()
        for batch in self._batches.values():
            self._urgent[self._phases.urgency(batch.first.request)] += len(batch.rows)

    def weights(self) -> list[WeightsKey]:
        """The weights that something waits for; those of the most urgent batch first."""
        return sorted(self._queues, key=lambda key: self._queues[key].firsts[0].rank)

    def firsts(self, key: WeightsKey) -> Sequence[Batch]:
        """The most urgent batch of all those that need such weights and suit the same workers; most
        urgent first."""
        queue = self._queues.get(key)
        return queue.firsts if queue is not None else ()

    def rows(self, key: WeightsKey) -> int:
        """How many wait for such weights."""
        queue = self._queues.get(key)
        return queue.rows if queue is not None else 0

    @property
    def most_urgent(self) -> int:
        """How many rows are as urgent as any that wait."""
        return self._urgent[min(self._urgent)] if self._urgent else 0

    def _rank(self, row: Row, turn: int) -> tuple[int, ...]:
        request = row.request
        return (*self._phases.urgency(request), int(not row.steps_done), -_work(request), turn)

    def _count(self, row: Row, by: int) -> None:
        urgency = self._phases.urgency(row.request)
        self._urgent[urgency] += by
        if not self._urgent[urgency]:
            del self._urgent[urgency]
        key = weights_of(row.request)
        self._queues[key].rows += by
        if not self._queues[key].rows:
            del self._queues[key]
        if not (row.is_denoised or row.is_gradient):
            kind = row.request.kind, row.request.settings
            self.undenoised[kind] += by
            if not self.undenoised[kind]:
                del self.undenoised[kind]


def _work(request: Request) -> int:
    settings = request.settings
    passes = 2 if settings.guidance > 1 else 1
    return settings.steps * settings.height * settings.width * settings.frames * passes
