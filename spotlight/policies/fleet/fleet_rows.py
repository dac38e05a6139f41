"""The rows of the table of the fleet: nodes, workers, and tenants with what they have heard.

Whoever reads them may keep them; the table alone changes them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, Literal, NamedTuple

from spotlight.policies.departure import SHARING
from spotlight.policies.fleet.fleet_events import TaskT, Terms, WordT
from spotlight.policies.fleet.node_words import TroubleWord, WorkerWord
from spotlight.policies.fleet.rejoin import JoinBackoff
from spotlight.timings import RejoinTimings
from spotlight.types import NodeState, WorkerState


class UserNotice(NamedTuple):
    """The latest notice that a user gave a node, or took back."""

    number: int
    """It grows with every notice."""
    deadline: float
    """When the node will be taken, on the table's clock."""
    cancel: bool


class SickProcess(NamedTuple):
    """A worker's process that its node is to end."""

    worker: str
    epoch: int
    reason: str


class Trouble(NamedTuple):
    """What is wrong with a worker that says so itself."""

    worker: str
    reason: str
    tries: int = 0
    given_up: bool = False


@dataclass
class NodeRow(Generic[WordT, TaskT]):
    """A node, as the coordinator knows it: from its first word until its process is gone."""

    word: WordT
    """The latest; `left` in it if there is nothing to lose there any more."""
    plan: int
    """The number of the node's latest plan."""
    over: bool
    """Whether no tenant runs that it could do anything for: it drops what belongs to one."""
    tenant: str = ""
    """It works for this one, and hears from no other; empty for none."""
    task: TaskT | None = None
    """What that tenant has it do; None until it says so."""
    lent_at: float = 0.0
    """When it began to work for its tenant, on the table's clock."""
    is_ready: bool = False
    """Whether a worker of it could do something for its tenant since then."""
    next: str | None = None
    """It gives its work back, and then works for this one; empty for none. None: it does not."""
    give_back_by: float = 0.0
    """The time by which it gives its work back, if it does, on the table's clock."""
    is_drained: bool = False
    """Whether a user wants it to work for nobody."""
    notice: UserNotice | None = None
    sick: tuple[SickProcess, ...] = ()
    """Those of its processes that are still there."""
    came_at: float = 0.0
    """When its process came."""
    noticed_at: float = 0.0
    """When it first said that it has the notice that it has, or none."""

    @property
    def state(self) -> NodeState:
        """How it is with the node, a notice that it has not heard of yet included."""
        given = self.notice
        is_told = given is not None and not given.cancel and self.word.plan < given.number
        notice = self.word.notice
        if self.is_drained:
            return "drained"
        if self.next is not None or (notice is not None and notice.source == SHARING):
            return "moves"
        if self.word.left:
            return "leaving"
        return "has notice" if is_told or self.word.notice is not None else "there"


@dataclass(frozen=True)
class GoneNode:
    """A node whose process is gone, until another comes under its name."""

    pool: str
    workers: int
    """How many it had last."""
    state: Literal["left", "lost"]
    reason: str
    at: float
    """When it went."""


@dataclass
class WorkerRow:
    """A worker process, as the tenant knows it whose it is."""

    name: str
    node: str
    pool: str
    epoch: int
    leader: Hashable
    """Who speaks for it."""
    since: float
    """When it entered the state that it is in."""
    state: WorkerState = "starting"
    detail: str = ""
    """The state in more words."""
    problem: str = ""
    """Why it cannot serve; empty if nothing is known against it."""
    ends: bool = False
    """Whether its process ends for that reason."""


class TenantRow(Generic[WordT]):
    """A job or a session, and the nodes that it has: it hears of them in its own turns, so it may
    be a word behind.

    Args:
        tenant: the id.
        terms: on which nodes are lent to it.
        order: it grows with every tenant that begins.
        timings: how long nodes wait that come and go.
    """

    def __init__(self, tenant: str, terms: Terms, order: int, timings: RejoinTimings) -> None:
        self.tenant, self.terms, self.order = tenant, terms, order
        self.load_s = 0.0
        """It took a node this long at most from being lent to it until a worker was ready."""
        self.over = False
        """Whether it wants nothing more."""
        self.nodes: dict[str, WordT] = {}
        """What each node said that has joined, in the order in which they did."""
        self.workers: dict[str, WorkerRow] = {}
        """Those of its nodes, by name."""
        self.leaving: set[str] = set()
        """Those of its nodes that have notice."""
        self.barred: frozenset[str] = frozenset()
        """Workers that compute an update, whether or not they are there."""
        self.trainers: frozenset[str] = frozenset()
        """Workers that are its trainers, also while they do something else."""
        self.processes: dict[str, Hashable] = {}
        """The addresses of all nodes that ever joined; one that was out of reach comes back with
        the same."""
        self.backoff = JoinBackoff(timings)
        self.must_wait: set[str] = set()
        """Nodes that come and go too often to join now."""
        self.troubles_told: dict[str, TroubleWord] = {}
        """The latest that was said of each worker and is written down."""
        self.spent: defaultdict[tuple[str, WorkerState], float] = defaultdict(float)
        """Seconds that workers spent in states that have ended, by pool and state."""

    def may_report(self, worker: str, sender: Hashable) -> bool:
        """Whether the sender may say what a worker does: its leader may. Of one that is gone
        nothing is written down, whoever speaks.
        """
        row = self.workers.get(worker)
        return row is None or row.leader == sender

    def reserved_nodes(self) -> list[WordT]:
        """Nodes whose workers can train."""
        return [
            node
            for node in self.nodes.values()
            if node.pool == "reserved" and node.node not in self.leaving
        ]

    def nodes_that_train(self) -> frozenset[str]:
        """Those of its nodes on which its trainers are, by name."""
        return frozenset(self.workers[name].node for name in self.trainers if name in self.workers)

    def free_workers_of(self, node: str) -> list[str]:
        """Workers of a node that may be given requests now."""
        if node in self.leaving:
            return []
        names = (each.worker for each in self.nodes[node].workers)
        return [name for name in names if name not in self.barred]

    def free_workers(self) -> int:
        """How many workers may be given requests now."""
        return sum(len(self.free_workers_of(node)) for node in self.nodes)

    def troubles(self) -> list[TroubleWord]:
        """Every trouble that there is now, by worker."""
        of_nodes = [trouble for node in self.nodes.values() for trouble in node.troubles]
        own = [Trouble(row.name, row.problem) for row in self._hopeless()]
        return sorted((*of_nodes, *own), key=lambda trouble: trouble.worker)

    def seconds_spent(self, now: float) -> dict[str, dict[str, float]]:
        """What all workers did until now, by pool and state: it adds up to the time for which they
        were there."""
        until_now = self.spent.copy()
        for row in self.workers.values():
            until_now[row.pool, row.state] += now - row.since
        spent: defaultdict[str, dict[str, float]] = defaultdict(dict)
        for (pool, state), seconds in until_now.items():
            spent[pool][state] = seconds
        return dict(spent)

    def hopeless_of(self, node: WordT) -> dict[str, TroubleWord]:
        """Workers of a node that cannot work and will not be replaced, and why."""
        found: dict[str, TroubleWord] = {
            each.worker: each for each in node.troubles if each.given_up
        }
        own = {row.name: row for row in self._hopeless()}
        for worker in node.workers:
            if worker.worker in own:
                found[worker.worker] = Trouble(worker.worker, own[worker.worker].problem)
        return found

    def _hopeless(self) -> Iterator[WorkerRow]:
        """Workers that cannot serve, and stay."""
        return (row for row in self.workers.values() if row.problem and not row.ends)


def describe(trouble: TroubleWord) -> str:
    """A trouble in words."""
    worker, reason = trouble.worker, trouble.reason
    if trouble.given_up:
        after = f" after {trouble.tries} tries" if trouble.tries else ""
        return f"{worker} is given up{after}: {reason}"
    if trouble.tries:
        return f"{worker} failed {trouble.tries} times and is started again: {reason}"
    return f"{worker}: {reason}"


def others(these: Sequence[WorkerWord], than: Sequence[WorkerWord]) -> list[WorkerWord]:
    """Those of the processes that are not among the others; each once."""
    known = {each.epoch for each in than}
    return [each for epoch, each in {e.epoch: e for e in these}.items() if epoch not in known]
