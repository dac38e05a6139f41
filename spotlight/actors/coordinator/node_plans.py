"""The plan of every node: sent when it changes, and again until the node's report agrees.

The coordinator keeps it for as long as a node is in reach; the job runner says what the job needs.
Every plan has a number, and all plans of a coordinator grow, so an old one changes nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from itertools import count, islice

import msgspec

from spotlight.actors.protocol import (
    Acknowledged,
    CheckpointSource,
    Demand,
    JobPlan,
    Membership,
    NodePlan,
    NodeReport,
    SickWorker,
    UserNotice,
    WeightsOffer,
)
from spotlight.actors.protocol.delivery import try_tell
from spotlight.actors.runtime import Actor, ActorRef
from spotlight.jobs import WorkSpec
from spotlight.policies.requests.instructions import EndWorker

SENT_AT_ONCE = 64
"""So many plans are sent in one turn of the loop: 3 ms."""


@dataclass
class _Notice:
    number: int
    deadline: float
    """On the loop's clock."""
    cancel: bool


@dataclass
class _Node:
    scheduler: ActorRef
    number: int
    """Of its latest plan."""
    has_spec_of: str = ""
    """The job whose spec it has."""
    job: JobPlan | None = None
    """With its spec, and without what is told beside it."""
    weights: dict[int, WeightsOffer] = field(default_factory=dict)
    checkpoint: CheckpointSource | None = None
    demand: Demand | None = None
    notice: _Notice | None = None
    sick: tuple[SickWorker, ...] = ()


class NodePlans:
    """See the module's docstring. `actor` is the coordinator, which tells on its behalf."""

    def __init__(self, actor: Actor) -> None:
        self._actor = actor
        self._numbers = count(1)
        self._nodes: dict[str, _Node] = {}
        self._over = True
        """No job runs."""
        self._versions: tuple[int, ...] = ()
        """Of the weights that nodes may still need."""
        self._trainers_term = 0
        """Trainer ranks of earlier terms are no longer needed."""
        self._changed: dict[str, None] = {}
        """Nodes whose plan is another one since it was sent last."""
        self._sending: asyncio.Task[None] | None = None
        """Tells those that the turn had no time for."""

    # --- nodes, as the coordinator knows them ---

    def answer(self, report: NodeReport) -> NodePlan | Acknowledged:
        """What to say to a report: the plan, unless it agrees with that."""
        node = self._nodes.get(report.node)
        if node is None or node.scheduler != report.scheduler:
            node = self._nodes[report.node] = _Node(report.scheduler, next(self._numbers))
        node.has_spec_of = report.job_id
        epochs = {worker.epoch for worker in report.workers}
        node.sick = tuple(worker for worker in node.sick if worker.epoch in epochs)
        knows_job = self._over or node.job is None or node.job.job_id == report.job_id
        if report.coordinator == self._actor.ref and report.plan == node.number and knows_job:
            return Acknowledged()
        return self._plan(node)

    def agrees(self, report: NodeReport) -> bool:
        """Whether a report is that of a node which knows its latest plan."""
        node = self._nodes.get(report.node)
        return node is not None and report.plan == node.number

    def forget(self, scheduler: ActorRef) -> None:
        """That node is gone."""
        self._nodes = {n: it for n, it in self._nodes.items() if it.scheduler != scheduler}

    def give_notice(self, name: str, notice_s: float, *, cancel: bool) -> bool:
        """A user gives a node notice, or takes it back; False if nothing can be sent to it."""
        node = self._nodes.get(name)
        if node is None:
            return False
        number = next(self._numbers)
        node.notice = _Notice(number, asyncio.get_running_loop().time() + notice_s, cancel)
        node.number = number
        return try_tell(self._actor, node.scheduler, self._plan(node))

    # --- the job ---

    def begin_job(self) -> None:
        """A job runner starts: it says itself what each node is to do."""
        self._over = False
        self._versions = ()
        self._trainers_term = 0
        for node in self._nodes.values():
            node.job = node.demand = node.checkpoint = None
            node.weights.clear()

    def end_job(self) -> None:
        """No job runs: tell all nodes."""
        if not self._over:
            self._over = True
            self._changed |= dict.fromkeys(self._nodes)
            self.send()

    def prepare(self, name: str, job_id: str, spec: WorkSpec, membership: Membership) -> None:
        """A node takes part in the job."""
        node = self._nodes.get(name)
        if node is None:
            return
        job = JobPlan(job_id, membership, spec=spec)
        if job != node.job:
            node.job = job
            self._changed[name] = None

    def hold(self, name: str, offer: WeightsOffer) -> None:
        """Where a node pulls a weights version from now on; it tries again, if it failed."""
        if name in self._nodes:
            self._nodes[name].weights[offer.version] = offer
            self._changed[name] = None

    def take_checkpoint(self, name: str, source: CheckpointSource | None) -> None:
        """Where a node takes the checkpoint of the job from."""
        node = self._nodes.get(name)
        if node is not None and node.checkpoint != source:
            node.checkpoint = source
            self._changed[name] = None

    def keep(self, versions: Iterable[int]) -> None:
        """Which weights versions nodes may still need."""
        if (wanted := tuple(versions)) != self._versions:
            self._versions = wanted
            for name, node in self._nodes.items():
                node.weights = {v: offer for v, offer in node.weights.items() if v in wanted}
                if node.job is not None:
                    self._changed[name] = None

    def replace_trainers(self, term: int) -> None:
        """Trainer ranks of earlier terms than this one are no longer needed."""
        if term != self._trainers_term:
            self._trainers_term = term
            self._changed |= dict.fromkeys(n for n, node in self._nodes.items() if node.job)

    def end_worker(self, end: EndWorker) -> None:
        """Have the process of a worker ended that fails what others can do."""
        node = self._nodes.get(end.node)
        if node is not None:
            node.sick += (SickWorker(end.worker, end.epoch, end.reason),)
            self._changed[end.node] = None
            self.send()

    def demand(self, name: str, demand: Demand) -> None:
        """What a node's SP groups should be good for."""
        node = self._nodes.get(name)
        if node is not None and node.demand != demand:
            node.demand = demand
            self._changed[name] = None

    def send(self) -> None:
        """Tell the nodes whose plan has changed since; where these are many, most of them in later
        turns of the loop, so that workers get their grants in between.
        """
        self._send_some()
        if self._changed and self._sending is None:
            self._sending = self._actor.run_task(self._send_others())

    async def _send_others(self) -> None:
        while self._changed:
            await asyncio.sleep(0)
            self._send_some()
        self._sending = None

    def _send_some(self) -> None:
        for name in list(islice(self._changed, SENT_AT_ONCE)):
            del self._changed[name]
            node = self._nodes.get(name)
            if node is not None:
                node.number = next(self._numbers)
                try_tell(self._actor, node.scheduler, self._plan(node))

    def _plan(self, node: _Node) -> NodePlan:
        job, demand = (None, None) if self._over else (node.job, node.demand)
        if job is not None:
            job = msgspec.structs.replace(
                job,
                weights=_in_order(node.weights.values()),
                versions=self._versions,
                trainers_term=self._trainers_term,
                checkpoint=node.checkpoint,
                spec=None if node.has_spec_of == job.job_id else job.spec,
            )
        notice = None
        if node.notice is not None:
            left_s = max(0.0, node.notice.deadline - asyncio.get_running_loop().time())
            notice = UserNotice(node.notice.number, round(left_s, 3), node.notice.cancel)
        return NodePlan(node.number, self._actor.ref, job, demand, self._over, notice, node.sick)


def _in_order(offers: Collection[WeightsOffer]) -> tuple[WeightsOffer, ...]:
    return tuple(sorted(offers, key=lambda offer: offer.version))
