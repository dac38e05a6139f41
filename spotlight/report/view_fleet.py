"""Which nodes and workers a run has, and what they do, as its events, states and ledger tell."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from spotlight.record.ledger import Ledger, Milliseconds
from spotlight.record.run_events import (
    NodeJoined,
    NodeLost,
    NoticeReceived,
    NoticeWithdrawn,
    RunEvent,
    WorkerJoined,
    WorkerLost,
    WorkerStateBegan,
)
from spotlight.report.formatting import duration, natural_order
from spotlight.report.run_view import NodePart

MOST_NODES = 256
"""How many nodes are shown: those that are there, then those that went last."""
_MOST_KEPT = 4 * MOST_NODES
_WORDS = {
    "rollout": "rolls out",
    "explore": "explores",
    "train": "trains",
    "score": "scores",
    "evaluate": "validates",
    "idle": "idle",
    "loading": "loads",
    "starting": "starts",
}


@dataclass
class _Node:
    name: str
    pool: str = ""
    workers: dict[str, str] = field(default_factory=dict)
    """What each does; empty if that is not known."""
    is_there: bool = True
    latest_s: float = 0.0
    notice_at_s: float | None = None
    """When it received a notice, in run time."""
    lead_s: float | None = None
    gone: str = ""
    """Why it is gone."""
    count: int = 0
    """The most workers that it had at once."""
    usd_per_hour: float | None = None
    usd: float | None = None


class ViewFleet:
    """See the module's docstring."""

    def __init__(self) -> None:
        self._nodes: dict[str, _Node] = {}
        self._most: Counter[str] = Counter()
        """The most workers that were there at once, by pool."""

    def event(self, event: RunEvent) -> None:
        """Something happened; what is not about nodes and workers changes nothing."""
        match event:
            case NodeJoined(node=name, pool=pool, workers=workers):
                node = self._there(name, pool, event.time_s)
                node.gone, node.notice_at_s = "", None
                node.workers = {worker: node.workers.get(worker, "") for worker in workers}
            case WorkerJoined(worker=worker, node=name, pool=pool):
                self._there(name, pool, event.time_s).workers.setdefault(worker, "")
            case WorkerStateBegan(state="gone", worker=worker):
                self._drop(worker)
            case WorkerStateBegan(worker=worker, state=state):
                node = self._there(event.node or node_of(worker), event.pool, event.time_s)
                was_there = worker in node.workers
                node.workers[worker] = state
                if was_there:
                    return
            case WorkerLost(worker=worker):
                self._drop(worker)
            case NodeLost(node=name, pool=pool, reason=reason):
                node = self._there(name, pool, event.time_s)
                node.is_there, node.gone = False, f"lost: {reason}" if reason else "lost"
                node.workers = {}
            case NoticeReceived(node=name, lead_s=lead_s):
                node = self._there(name, "", event.time_s)
                node.notice_at_s, node.lead_s = event.time_s, lead_s
            case NoticeWithdrawn(node=name):
                self._there(name, "", event.time_s).notice_at_s = None
            case _:
                return
        self._count()

    def ledger(self, ledger: Ledger) -> None:
        """What its nodes cost and whether they are there."""
        bills = sorted(ledger.bills, key=lambda bill: bill.to_at)
        spent: dict[str, float] = {}
        there = {bill.node for bill in bills if bill.is_there}
        for bill in bills:
            node = self._there(bill.node, bill.pool, ledger.time_s)
            node.is_there = bill.node in there
            node.count = max(node.count, bill.workers)
            for worker in bill.times if bill.is_there else ():
                node.workers.setdefault(worker, "")
            node.usd_per_hour = None
            if bill.price is not None:
                price = bill.price.usd_per_gpu_hour
                node.usd_per_hour = price * bill.workers
                hours = sum(map(_total, bill.times.values())) / 3.6e6
                spent[bill.node] = spent.get(bill.node, 0.0) + price * hours
        for name, usd in spent.items():
            self._nodes[name].usd = usd
        self._count()

    def restarted(self) -> None:
        """Another coordinator goes on: what the workers do is not known yet."""
        for node in self._nodes.values():
            node.workers = dict.fromkeys(node.workers, "")

    def is_gone(self, node: str) -> bool:
        """Whether a node was there and is no more."""
        known = self._nodes.get(node)
        return known is not None and not known.is_there

    def pool_of(self, worker: str, node: str = "") -> str:
        """Its pool, as far as it is known."""
        known = self._nodes.get(node or node_of(worker))
        return known.pool if known and known.pool else "unknown"

    def workers(self, *, has_ended: bool) -> dict[str, int]:
        """How many are there by pool; when the run has ended, the most that were at once."""
        counted = self._most if has_ended else self._now()
        return {pool: counted[pool] for pool in sorted(counted)}

    def nodes(self, now_s: float, *, has_ended: bool) -> tuple[NodePart, ...]:
        """At most `MOST_NODES`, those that are there first."""
        latest = sorted(self._nodes.values(), key=lambda one: (not one.is_there, -one.latest_s))
        shown = sorted(latest[:MOST_NODES], key=_in_order)
        return tuple(
            NodePart(
                name=node.name,
                pool=node.pool,
                workers=node.count if has_ended else len(node.workers),
                says=_says(node, now_s, has_ended=has_ended),
                usd_per_hour=node.usd_per_hour,
                usd=None if node.usd is None else round(node.usd, 6),
                is_there=node.is_there,
            )
            for node in shown
        )

    def not_shown(self) -> int:
        """How many nodes are known and not shown."""
        return max(0, len(self._nodes) - MOST_NODES)

    def _there(self, name: str, pool: str, time_s: float) -> _Node:
        node = self._nodes.get(name)
        if node is None:
            node = self._nodes[name] = _Node(name)
            if len(self._nodes) > _MOST_KEPT:
                self._forget()
        node.pool, node.is_there = pool or node.pool, True
        node.latest_s = max(node.latest_s, time_s)
        return node

    def _drop(self, worker: str) -> None:
        node = self._nodes.get(node_of(worker))
        if node is not None:
            node.workers.pop(worker, None)

    def _forget(self) -> None:
        """Those that went first."""
        gone = sorted(
            (one for one in self._nodes.values() if not one.is_there), key=lambda one: one.latest_s
        )
        for node in gone[: _MOST_KEPT // 4]:
            del self._nodes[node.name]

    def _now(self) -> Counter[str]:
        there = (node for node in self._nodes.values() if node.is_there)
        return Counter({p: n for p, n in _by_pool(there).items() if n})

    def _count(self) -> None:
        for node in self._nodes.values():
            node.count = max(node.count, len(node.workers))
        self._most |= self._now()


def node_of(worker: str) -> str:
    """The node of a worker by its name, which is `NODE/NUMBER`."""
    return worker.rpartition("/")[0]


def _by_pool(nodes: Iterable[_Node]) -> Counter[str]:
    counted: Counter[str] = Counter()
    for node in nodes:
        counted[node.pool or "unknown"] += len(node.workers)
    return counted


def _total(times: Milliseconds) -> int:
    return sum(times.values())


def _in_order(node: _Node) -> tuple[bool, bool, tuple[str | int, ...]]:
    return not node.is_there, node.pool != "reserved", natural_order(node.name)


def _says(node: _Node, now_s: float, *, has_ended: bool) -> str:
    if not node.is_there:
        return node.gone or "left"
    if has_ended:
        return ""
    if node.notice_at_s is not None:
        if node.lead_s is None:
            return "notice"
        return f"notice: {duration(max(0.0, node.notice_at_s + node.lead_s - now_s))} left"
    states = Counter(state for state in node.workers.values() if state)
    return _WORDS.get(states.most_common(1)[0][0], "") if states else ""
