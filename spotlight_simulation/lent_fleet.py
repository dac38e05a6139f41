"""A fleet on virtual time, without actors, whose nodes work for whom `Allocation` says: what shares
come to over hours, in a second.

Nodes are lost by chance and come back after a while; a node that changes its tenant takes some time
to give its work back, and then to load a model.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from spotlight.policies.fleet.allocation import Allocation, Borrower, Lend, Lendable, Recall
from spotlight.types import Pool


@dataclass
class SimulatedNode:
    """A node of the fleet."""

    name: str
    pool: Pool
    workers: int = 1
    tenant: str = ""
    next: str | None = None
    model_of: str = ""
    busy_until: float = 0.0
    """When it has given its work back, or has loaded its model."""
    away_until: float = 0.0
    """When it is there again."""
    may_be_lent: bool = True

    def lendable(self) -> Lendable:
        """What the policy sees of it."""
        return Lendable(
            self.name,
            self.pool,
            self.workers,
            self.tenant,
            self.next,
            self.may_be_lent,
            self.model_of,
        )


@dataclass
class LentFleet:
    """See the module's docstring."""

    allocation: Allocation
    nodes: list[SimulatedNode]
    rng: random.Random
    losses_per_hour: float = 0.0
    """The rate for every spot node."""
    away_s: float = 300.0
    """A node that was lost is gone for so long."""
    give_back_s: float = 10.0
    """How long a node takes to give its work back."""
    load_s: float = 60.0
    """How long it takes to load a model."""
    borrowers: dict[str, Borrower] = field(default_factory=dict)
    now: float = 0.0
    had: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    """Worker-seconds that nodes were lent to each borrower."""
    moves: int = 0
    """How often a node that worked was recalled."""
    lost_to_moves: float = 0.0
    """Worker-seconds that nodes took for it, and then to load."""

    def pass_time(self, seconds: float) -> None:
        """Whatever happens by chance in so many seconds; nobody decides anything meanwhile."""
        self.now += seconds
        for node in self.there():
            self.had[node.tenant if node.next is None else node.next] += node.workers * seconds
            chance = self.losses_per_hour / 3600 * seconds
            if node.pool == "spot" and self.rng.random() < chance:
                self.lose(node)
            elif node.next is not None and node.busy_until <= self.now:
                self.settle(node)

    def there(self) -> list[SimulatedNode]:
        """The nodes that are not away."""
        return [node for node in self.nodes if node.away_until <= self.now]

    def decide(self) -> list[Lend | Recall]:
        """Ask the policy once, and do what it says."""
        lendable = [node.lendable() for node in self.there()]
        steps = self.allocation.decide(self.now, list(self.borrowers.values()), lendable)
        for step in steps:
            self._do(step)
        return steps

    def run(self, seconds: float, period_s: float = 5.0) -> None:
        """Decide so often until so much time has passed."""
        for _ in range(round(seconds / period_s)):
            self.decide()
            self.pass_time(period_s)

    def begin(self, borrowers: Iterable[Borrower]) -> None:
        """From now on these borrow, too."""
        self.borrowers |= {borrower.id: borrower for borrower in borrowers}

    def end(self, borrower: str) -> None:
        """One borrows no more; its nodes are free at once."""
        del self.borrowers[borrower]
        for node in self.nodes:
            if node.tenant == borrower:
                node.tenant, node.next = "", None

    def lose(self, node: SimulatedNode) -> None:
        """A node's process ends; another one comes back later under its name."""
        node.tenant, node.next, node.model_of = "", None, ""
        node.away_until = self.now + self.away_s

    def settle(self, node: SimulatedNode) -> None:
        """A node has given its work back, and goes to the next tenant if that still borrows."""
        to, node.next = node.next, None
        node.tenant = to if to in self.borrowers else ""
        self._load(node)

    def _load(self, node: SimulatedNode) -> None:
        if node.tenant and node.model_of != node.tenant:
            node.model_of, node.busy_until = node.tenant, self.now + self.load_s

    def _do(self, step: Lend | Recall) -> None:
        node = next(each for each in self.there() if each.name == step.node)
        if isinstance(step, Lend):
            assert node.tenant in ("", step.tenant), f"{node} works for another than {step}"
            node.tenant, node.next = step.tenant, None
            self._load(node)
        else:
            assert node.tenant not in ("", step.next), f"{node} is not to be recalled by {step}"
            if node.next is None:
                self.moves += 1
                self.lost_to_moves += node.workers * (self.give_back_s + self.load_s)
                node.busy_until = self.now + self.give_back_s
            node.next = step.next
