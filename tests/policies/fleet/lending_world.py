"""A fleet with jobs that begin and end, nodes that come, go, get notice and take their time, and a
coordinator that is restarted; and what must be so of everything that `Allocation` decides.
"""

from __future__ import annotations

import random
from collections import Counter

from spotlight.policies.fleet.allocation import (
    LOADS_PER_QUANTUM,
    Allocation,
    Borrower,
    Lend,
    Lendable,
    Recall,
)
from spotlight.timings import SharingTimings
from spotlight_simulation.lent_fleet import LentFleet, SimulatedNode

TIMINGS = SharingTimings(quantum_s=100.0)
IDS = "abcd"


class LendingWorld:
    """See the module's docstring.

    Args:
        seed: what happens follows from it.
    """

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        spot = [SimulatedNode(f"s{each}", "spot", self.rng.choice((1, 1, 2))) for each in range(4)]
        reserved = [SimulatedNode(f"r{each}", "reserved") for each in range(3)]
        self.fleet = LentFleet(Allocation(TIMINGS), spot + reserved, self.rng, away_s=20.0)
        self.begun = 0
        self.since: dict[str, tuple[str, float]] = {}
        """Since when each node has worked for whom, as seen from outside."""

    def happen(self) -> None:
        """One thing, by chance, and then a decision."""
        what = self.rng.choice(
            (self.wait, self.wait, self.wait_long, self.begin, self.end, self.lose, self.notice)
            + (self.settle, self.settle, self.appoint, self.appoint)
            + (self.restart,) * (self.rng.random() < 0.1)
        )
        what()
        self.look()
        self.decide()

    # --- what may happen ---

    def wait(self) -> None:
        self.fleet.now += self.rng.uniform(0.0, 10.0)

    def wait_long(self) -> None:
        self.fleet.now += self.rng.uniform(0.0, 300.0)

    def begin(self) -> None:
        free = [each for each in IDS if each not in self.fleet.borrowers]
        if free:
            self.begun += 1
            borrower = Borrower(
                self.rng.choice(free),
                self.rng.choice((0.0, 0.5, 1.0, 1.0, 3.0)),
                self.rng.choice((0, 0, 1)),
                self.begun,
                self.rng.choice((0, 1, 1, 2)),
                frozenset(),
                self.rng.choice((0.0, 5.0, 30.0)),
            )
            self.fleet.begin([borrower])

    def end(self) -> None:
        if self.fleet.borrowers:
            self.fleet.end(self.rng.choice(sorted(self.fleet.borrowers)))

    def lose(self) -> None:
        node = self.rng.choice(self.fleet.nodes)
        self.fleet.lose(node)
        for name, borrower in self.fleet.borrowers.items():
            self.fleet.borrowers[name] = trains_on(borrower, borrower.trains_on - {node.name})

    def notice(self) -> None:
        node = self.rng.choice(self.fleet.nodes)
        node.may_be_lent = not node.may_be_lent

    def settle(self) -> None:
        for node in self.fleet.there():
            if node.next is not None and self.rng.random() < 0.5:
                self.fleet.settle(node)

    def appoint(self) -> None:
        """A job appoints its trainers among the reserved nodes that it has."""
        for name, borrower in self.fleet.borrowers.items():
            its = [node.name for node in self.reserved_of(name) if node.may_be_lent]
            kept = [each for each in its if each in borrower.trains_on]
            wanted = (kept + [each for each in its if each not in kept])[: borrower.ranks]
            self.fleet.borrowers[name] = trains_on(borrower, frozenset(wanted))

    def restart(self) -> None:
        """Another coordinator: nodes are free until they are told, and have their models."""
        self.fleet.allocation = Allocation(TIMINGS)
        for node in self.fleet.nodes:
            node.tenant, node.next = "", None
        for name, borrower in self.fleet.borrowers.items():
            self.fleet.borrowers[name] = trains_on(borrower, frozenset())

    # --- what must be so ---

    def look(self) -> None:
        """Take note of what nodes work for whom."""
        before, self.since = self.since, {}
        for node in self.fleet.there():
            owner, since = before.get(node.name, ("", 0.0))
            its = owner_of(node)
            self.since[node.name] = (its, since if owner == its else self.fleet.now)

    def decide(self) -> None:
        """Decide until nothing is left to decide, and check it all."""
        for _ in range(3):
            before = {node.name: node.lendable() for node in self.fleet.there()}
            steps = self.fleet.decide()
            assert len({step.node for step in steps}) == len(steps)
            for step in steps:
                self.check(step, before[step.node], before)
            self.look()
            self.check_result()
            if not steps:
                return
        raise AssertionError("nodes are moved without an end")

    def check(self, step: Lend | Recall, node: Lendable, nodes: dict[str, Lendable]) -> None:
        borrowers = self.fleet.borrowers
        assert node.may_be_lent and owner_of(self.node(node.name)) in borrowers
        if node.tenant:
            assert node.tenant in borrowers
            assert node.name not in borrowers[node.tenant].trains_on or node.next is not None
        if isinstance(step, Recall) and node.next is None:
            self.check_recall(borrowers[step.next], node, nodes)

    def check_recall(self, receiver: Borrower, node: Lendable, nodes: dict[str, Lendable]) -> None:
        """A node that works is recalled for one that trains; from one of weight 0; for one that has
        nothing; or after a quantum."""
        stay = [each for each in nodes.values() if each.may_be_lent]
        had = [each for each in stay if owner_of(each) == receiver.id]
        trained = sum(each.workers for each in had if each.pool == "reserved")
        is_for_training = node.pool == "reserved" and trained < receiver.ranks
        if is_for_training or not self.fleet.borrowers[node.tenant].weight:
            return
        kept = [each for each in had if owner_of(self.node(each.name)) == receiver.id]
        if not kept and self.fleet.allocation.owed(receiver.id) >= 0:
            return
        quantum_s = max(TIMINGS.quantum_s, LOADS_PER_QUANTUM * receiver.load_s)
        assert self.fleet.now - self.since[node.name][1] >= quantum_s
        assert self.fleet.allocation.owed(receiver.id) > quantum_s / 2 * node.workers
        assert self.fleet.allocation.owed(node.tenant) < 0

    def check_result(self) -> None:
        borrowers = self.fleet.borrowers
        weighted = {name for name, each in borrowers.items() if each.weight} or set(borrowers)
        lent = [
            node
            for node in self.fleet.there()
            if node.may_be_lent and node.tenant in ("", *borrowers)
        ]
        if borrowers:
            for node in lent:
                holds = node.pool == "reserved" and borrowers[owner_of(node)].ranks > 0
                assert owner_of(node) in weighted or holds, "who has a share gets every node"
        self.check_reserved()
        owed = [self.fleet.allocation.owed(name) for name in borrowers]
        assert abs(sum(owed)) < 1e-6, "what one has had too little another has had too much"

    def check_reserved(self) -> None:
        """Nobody has a reserved node that it does not need, as long as somebody needs one."""
        spare: Counter[str] = Counter()
        for name, borrower in self.fleet.borrowers.items():
            its = [node for node in self.reserved_of(name) if node.may_be_lent]
            spare[name] = sum(node.workers for node in its) - borrower.ranks
        if any(count < 0 for count in spare.values()):
            assert all(count <= 0 for count in spare.values()), spare

    def node(self, name: str) -> SimulatedNode:
        return next(node for node in self.fleet.nodes if node.name == name)

    def reserved_of(self, borrower: str) -> list[SimulatedNode]:
        there = self.fleet.there()
        return [each for each in there if each.pool == "reserved" and owner_of(each) == borrower]


def owner_of(node: SimulatedNode | Lendable) -> str:
    """Whom it works for, or will when it has given its work back."""
    return node.tenant if node.next is None else node.next


def trains_on(borrower: Borrower, nodes: frozenset[str]) -> Borrower:
    return borrower._replace(trains_on=nodes)
