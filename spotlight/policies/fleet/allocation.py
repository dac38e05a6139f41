"""Which job or session each node of the fleet works for. Pure: times, in seconds, are handed in.

A node works for one tenant at a time. What holds:

- Who borrows alone gets every node at once.
- A borrower holds reserved nodes with the workers that it trains on. Nobody else gets those while
  it runs, and one that is lost is replaced at once by one that nobody holds.
- All other nodes are shared in proportion to the borrowers' weights, spot and reserved ones alike.
  What a borrower has had too little of them is *owed* to it, in worker-seconds; debts add up to 0,
  as what one has too little another has too much. Who ends leaves its debt to those that go on, by
  their weights.
- A free node goes to the borrower to which most will be owed.
- Moving a node costs the time to load a model. So one that works moves only after a quantum, only
  for a large debt, and only where it can stay for a quantum before that debt is paid.
- A borrower of weight 0 has nodes only while nobody borrows with a weight.

A node that is being given back counts for whoever gets it next.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from spotlight.timings import SharingTimings
from spotlight.types import Pool

LOADS_PER_QUANTUM = 10
"""A quantum is at least as long as so many loads: moves cost a tenth of the time at most."""


class Borrower(NamedTuple):
    """A job or a session that runs, and works with nodes of the fleet."""

    id: str
    weight: float
    """Its share of the nodes is in proportion to this; 0 is for what nobody else wants."""
    priority: int
    order: int
    """Whoever began earlier has a smaller one."""
    ranks: int
    """How many workers of reserved nodes train; 0 for a session."""
    trains_on: frozenset[str]
    """The nodes on which its trainers are now."""
    load_s: float
    """The longest that a node of it has taken from being lent until a worker was ready; 0 as long
    as that is not known."""


class Lendable(NamedTuple):
    """A node of the fleet, as far as lending it goes."""

    name: str
    pool: Pool
    workers: int
    tenant: str
    """Whom it works for; empty for nobody."""
    next: str | None
    """Whom it is to work for when it has given its work back, empty for nobody; None if it is not
    giving it back."""
    may_be_lent: bool
    """Whether it stays: it has no notice, no user drains it, and it has not left."""
    model_of: str
    """Whose model its workers have; empty for nobody's."""


@dataclass(frozen=True)
class Lend:
    """From now on a free node works for a tenant. One that is being given back by that same tenant
    is taken back by it."""

    node: str
    tenant: str


@dataclass(frozen=True)
class Recall:
    """A busy node gives its work back, and then works for another tenant. If it is giving its work
    back already, this says anew for whom it works then."""

    node: str
    next: str


class Allocation:
    """See the module's docstring. It is asked at every change, and now and then.

    Args:
        timings: how long a node stays with a borrower.
    """

    def __init__(self, timings: SharingTimings) -> None:
        self._timings = timings
        self._owed: dict[str, float] = {}
        """Worker-seconds, by borrower with a share."""
        self._growth: dict[str, float] = {}
        """Each debt has grown by this per second since the last decision."""
        self._at = 0.0
        """When that was."""
        self._held: dict[str, str] = {}
        """The borrower that holds each reserved node that is held."""
        self._since: dict[str, tuple[str, float]] = {}
        """The tenant of each node, and since when it works for it."""
        self._without: dict[str, float] = {}
        """The borrowers that have no node, and since when."""

    def owed(self, tenant: str) -> float:
        """Worker-seconds that a borrower has had too little as of the last decision; negative if it
        has had too much, and 0 for one that has no share."""
        return self._owed.get(tenant, 0.0)

    def decide(
        self, now: float, borrowers: Sequence[Borrower], nodes: Sequence[Lendable]
    ) -> list[Lend | Recall]:
        """What changes now. Nodes that may not be lent, or whose tenant borrows no more, are left
        alone: they become free, or go, by themselves."""
        tenants = {"", *(borrower.id for borrower in borrowers)}
        lendable = [node for node in nodes if node.may_be_lent and node.tenant in tenants]
        self._held = hold(self._held, borrowers, lendable)
        self._note_owners(now, nodes)
        shared = _Shared(borrowers, lendable, self._held, self._since)
        self._settle(now, shared.weights)
        steps = list(self._hand_out(shared, lendable)) if borrowers else []
        steps += self._give_firsts(now, shared)
        steps += self._move(now, shared)
        for step in steps:
            self._since[step.node] = (shared.owners[step.node], now)
        self._growth = {each: shared.share(each) - shared.has[each] for each in shared.weights}
        return steps

    def _settle(self, now: float, weights: Mapping[str, float]) -> None:
        """Bring the debts up to now. Those who end leave theirs to those who go on."""
        seconds, self._at = now - self._at, now
        grown = {each: debt + self._growth[each] * seconds for each, debt in self._owed.items()}
        going_on = {each: weights[each] for each in grown if each in weights}
        surplus, total = sum(grown[each] for each in going_on), sum(going_on.values())
        self._owed = dict.fromkeys(weights, 0.0) | {
            each: grown[each] - surplus * weight / total for each, weight in going_on.items()
        }

    def _note_owners(self, now: float, nodes: Iterable[Lendable]) -> None:
        before, self._since = self._since, {}
        for node in nodes:
            owner, since = before.get(node.name, ("", now))
            self._since[node.name] = (_owner(node), since if owner == _owner(node) else now)

    def _hand_out(self, shared: _Shared, lendable: Iterable[Lendable]) -> Iterator[Lend | Recall]:
        """The nodes that are held go to those who hold them, and the others that nobody has who has
        a share to whom most will be owed."""
        for node in lendable:
            to = self._held.get(node.name, _owner(node))
            if node.name not in self._held and to not in shared.weights:
                to = self._best(node, shared)
            if to != _owner(node):
                yield shared.give(node, to)

    def _best(self, node: Lendable, shared: _Shared) -> str:
        """Whoever has its model loaded, unless others are owed much more; else whoever will have
        most owed to them after a quantum if nothing else changes."""
        quantum_s = self._timings.quantum_s
        warm = node.tenant or node.model_of
        if warm in shared.weights:
            most = max(self._owed[each] for each in shared.weights)
            if most - self._owed[warm] <= quantum_s / 2 * node.workers:
                return warm

        def claim(each: str) -> tuple[float, float]:
            missing = shared.share(each) - shared.has[each]
            return (
                self._owed[each] + missing * quantum_s,
                -shared.has[each] / shared.weights[each],
            )

        return max(shared.weights, key=claim)

    def _give_firsts(self, now: float, shared: _Shared) -> Iterator[Lend | Recall]:
        """Who has had no node for a while, and has not had too much, gets one without waiting for a
        quantum to end: from whoever has most above its share, and keeps another one."""
        without = [each for each in shared.weights if not shared.nodes[each]]
        self._without = {each: self._without.get(each, now) for each in without}
        for receiver in without:
            waits_s = now - self._without[receiver]
            if waits_s < self._timings.first_after_s or self._owed[receiver] < 0:
                continue
            over = {each: shared.has[each] - shared.share(each) for each in shared.weights}
            for giver in sorted(over, key=over.__getitem__, reverse=True):
                if shared.busy[giver] and shared.nodes[giver] > 1 and over[giver] > 0:
                    yield shared.give(shared.busy[giver][0], receiver)
                    break

    def _move(self, now: float, shared: _Shared) -> Iterator[Lend | Recall]:
        """Nodes that go from those who have had too much to those who have had too little."""
        for receiver in sorted(shared.weights, key=self.owed, reverse=True):
            while (node := self._find(now, shared, receiver)) is not None:
                yield shared.give(node, receiver)

    def _find(self, now: float, shared: _Shared, receiver: str) -> Lendable | None:
        """A node that may move to a borrower now."""
        quantum_s = max(self._timings.quantum_s, LOADS_PER_QUANTUM * shared.loads_s[receiver])
        for giver in sorted(shared.weights, key=self.owed):
            if self._owed[giver] >= 0 or shared.has[giver] < shared.share(giver):
                continue
            for node in shared.busy[giver]:
                over = shared.has[receiver] + node.workers - shared.share(receiver)
                is_due = self._owed[receiver] > quantum_s * max(node.workers / 2, over)
                if is_due and now - self._since[node.name][1] >= quantum_s:
                    return node
        return None


class _Shared:
    """The nodes that nobody holds, and what each borrower has of them while it is decided."""

    def __init__(
        self,
        borrowers: Sequence[Borrower],
        nodes: Sequence[Lendable],
        held: Mapping[str, str],
        since: Mapping[str, tuple[str, float]],
    ) -> None:
        self.weights = _weights(borrowers)
        """The weights of the borrowers that have a share; those who began first come first."""
        self.loads_s = {borrower.id: borrower.load_s for borrower in borrowers}
        self.owners = {node.name: _owner(node) for node in nodes}
        """Whom each node works for, or will when it has given its work back."""
        self.nodes = Counter(self.owners.values())
        """How many nodes each borrower has, with those that are held."""
        self.has: Counter[str] = Counter()
        """How many workers of nodes that nobody holds each borrower has."""
        self.busy: defaultdict[str, list[Lendable]] = defaultdict(list)
        """Those nodes that could move, by whom they work for, the one first that has longest."""
        self._held = held
        pool = [node for node in nodes if node.name not in held]
        for node in sorted(pool, key=lambda node: since[node.name][1]):
            self.has[_owner(node)] += node.workers
            if node.next is None:
                self.busy[node.tenant].append(node)
        self._workers = self.has.total()
        self._total = sum(self.weights.values())

    def share(self, borrower: str) -> float:
        """How many workers are in proportion to its weight."""
        return self._workers * self.weights[borrower] / self._total

    def give(self, node: Lendable, to: str) -> Lend | Recall:
        """A node changes its owner."""
        owner, self.owners[node.name] = self.owners[node.name], to
        self.nodes[owner] -= 1
        self.nodes[to] += 1
        if node.name not in self._held:
            self.has[owner] -= node.workers
            self.has[to] += node.workers
        if node in self.busy[owner]:
            self.busy[owner].remove(node)
        return Lend(node.name, to) if node.tenant in ("", to) else Recall(node.name, to)


def hold(
    before: Mapping[str, str], borrowers: Iterable[Borrower], nodes: Iterable[Lendable]
) -> dict[str, str]:
    """By whom each reserved node is held, of those that may be lent. What a borrower trains on, and
    what it held before and still has, comes first; what it then lacks is filled up by priority and
    by order: from its own nodes, from free ones, and last from those that work for others."""
    ranked = sorted(borrowers, key=lambda each: (-each.priority, each.order))
    holds = _Holds([node for node in nodes if node.pool == "reserved" and node.may_be_lent])
    for borrower in ranked:
        for node in holds.open_to(borrower):
            if node.name in borrower.trains_on:
                holds.held[node.name] = borrower.id
    for borrower in ranked:
        for node in holds.open_to(borrower):
            had = before.get(node.name) if node.name in before or node.tenant else node.model_of
            if had == borrower.id and holds.lack(borrower) > 0:
                holds.held[node.name] = borrower.id
    for borrower in ranked:
        while (lack := holds.lack(borrower)) > 0 and (unheld := holds.unheld()):
            found = min(unheld, key=lambda node: _distance(borrower, node, lack))
            holds.held[found.name] = borrower.id
    return holds.held


class _Holds:
    """Who holds which of the reserved nodes, while that is decided."""

    def __init__(self, reserved: Sequence[Lendable]) -> None:
        self._reserved = reserved
        self.held: dict[str, str] = {}

    def unheld(self) -> list[Lendable]:
        """What nobody holds yet."""
        return [node for node in self._reserved if node.name not in self.held]

    def open_to(self, borrower: Borrower) -> list[Lendable]:
        """What nobody holds yet and no other works with."""
        return [node for node in self.unheld() if _owner(node) in ("", borrower.id)]

    def lack(self, borrower: Borrower) -> int:
        """How many workers of nodes a borrower has yet to hold."""
        has = (node.workers for node in self._reserved if self.held.get(node.name) == borrower.id)
        return borrower.ranks - sum(has)


def _distance(borrower: Borrower, node: Lendable, lack: int) -> tuple[bool, bool, bool, int]:
    """Sorts nodes by how well they serve a borrower: those come first that it has, then free ones,
    and of those the smallest that is enough, or else the largest."""
    owner = _owner(node)
    return owner != borrower.id, owner != "", node.workers < lack, abs(node.workers - lack)


def _owner(node: Lendable) -> str:
    """Whom a node works for, or will when it has given its work back."""
    return node.tenant if node.next is None else node.next


def _weights(borrowers: Iterable[Borrower]) -> dict[str, float]:
    """By borrower that has a share, in their order: of those without a weight each has the same,
    and none if anybody has a weight."""
    ordered = sorted(borrowers, key=lambda each: each.order)
    weights = {each.id: each.weight for each in ordered if each.weight > 0}
    return weights or {each.id: 1.0 for each in ordered}
