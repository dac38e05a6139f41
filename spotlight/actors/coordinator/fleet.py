"""The fleet: carries out what the table of nodes and workers says, for the coordinator and for its
tenants.

Reports come in, and plans go out: a plan is sent when it changes, and again until the node's report
agrees with it. A tenant asks for what its nodes are to do through its `TenantFleet`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable
from typing import Protocol

import msgspec
import structlog

from spotlight.actors.coordinator.key_ring import KeyRing
from spotlight.actors.protocol.delivery import try_tell
from spotlight.actors.protocol.down import (
    CheckpointSource,
    Demand,
    JobPlan,
    Keeping,
    Membership,
    NodePlan,
    NodeRefused,
    SickWorker,
    UserNotice,
    WeightsOffer,
)
from spotlight.actors.protocol.up import NodeReport, WorkerRefs
from spotlight.actors.protocol.users import Acknowledged
from spotlight.actors.runtime import Actor, ActorRef
from spotlight.jobs import WorkSpec
from spotlight.policies.fleet import fleet_events as fleet
from spotlight.policies.fleet import fleet_instructions as step
from spotlight.policies.fleet.fleet_rows import NodeRow, TenantRow
from spotlight.policies.fleet.table import FleetTable
from spotlight.policies.requests.instructions import EndWorker
from spotlight.timings import Timings
from spotlight.types import Record

log = structlog.get_logger(__name__)


class NodeTask(Record, frozen=True):
    """What a tenant has a node do."""

    job: JobPlan | None = None
    """The job with its spec; None until the node is prepared for it."""
    demand: Demand | None = None

    @property
    def job_id(self) -> str:
        """The job whose spec the node must have for it; empty if it needs none."""
        return self.job.job_id if self.job is not None else ""


Roster = TenantRow[NodeReport]
"""The nodes and workers of a job or session, as the table has them."""
Event = fleet.Event[NodeReport, NodeTask]
"""What the table is told."""


class Tenants(Protocol):
    """Who is told of nodes, and hears of it in turns of its own."""

    def node_reported(self, tenant: str, report: NodeReport) -> None:
        """A node that works for this tenant is there, with this."""

    def node_lost(self, tenant: str, name: str, reason: str, *, announced: bool) -> None:
        """A node that works for this tenant is gone; `announced`: it had notice."""


class Fleet:
    """See the module's docstring.

    Args:
        actor: the coordinator, which tells and watches nodes on behalf of this.
        tenants: are told of nodes.
    """

    def __init__(self, actor: Actor, tenants: Tenants, timings: Timings = Timings()) -> None:
        self._actor = actor
        self._tenants = tenants
        self.table: FleetTable[NodeReport, NodeTask] = FleetTable(
            actor.ref, timings.rejoin, timings.sharing
        )
        self._sending: asyncio.Task[None] | None = None
        """Tells those that the turn had no time for."""

    # --- nodes ---

    def present(self) -> tuple[NodeReport, ...]:
        """What the nodes say that have not left."""
        return tuple(self.table.present())

    def lent_to(self, tenant: str) -> tuple[NodeReport, ...]:
        """What those of them say that work for a tenant."""
        return tuple(self.table.lent_to(tenant))

    def reported(self, report: NodeReport) -> NodePlan | NodeRefused | Acknowledged:
        """What a node is answered."""
        answer: NodePlan | NodeRefused | Acknowledged = Acknowledged()
        for each in self.handle(fleet.Reported(report)):
            match each:
                case step.NameTaken(name, ActorRef() as there):
                    answer = NodeRefused(
                        f"a node `{name}` is already there, at {there.address}; give this one"
                        " another --name, or stop the other"
                    )
                case step.Watch(ActorRef() as address):
                    self._actor.watch(address)
                case step.NodeCame(name):
                    log.info("node_joined", node=name, pool=report.pool)
                case step.AnswerWithPlan(name):
                    answer = self._plan(self.table.nodes[name])
                case _:
                    self._carry_out(each)
        self._send_moves()
        return answer

    def out_of_reach(self, address: ActorRef, reason: str, keys: KeyRing) -> None:
        """A process is gone, or cannot be reached; its key is no node's any more."""
        for each in self.handle(fleet.OutOfReach(address, reason)):
            if isinstance(each, step.NodeGone):
                keys.gone(address.address)
                (log.info if each.had_left else log.warning)(
                    "node_lost", node=each.node, reason=reason
                )
                if not each.had_left:
                    announced = each.announced
                    self._tenants.node_lost(each.tenant, each.node, reason, announced=announced)
            else:
                self._carry_out(each)
        self._send_moves()

    def give_notice(self, name: str, notice_s: float, *, cancel: bool) -> bool:
        """A user gives a node notice, or takes it back; False if nothing can be sent to it."""
        given = fleet.NoticeGiven(name, self._now() + notice_s, cancel)
        return any(self._send(each) for each in self.handle(given))

    def drain(self, name: str, *, cancel: bool) -> None:
        """A user wants a node to work for nobody, also when it comes again, or takes it back."""
        self.carry_out(fleet.Drained(name, cancel))

    # --- tenants ---

    def begin(self, tenant: str, terms: fleet.Terms) -> TenantFleet:
        """A job or session begins: nodes are lent to it, and it says itself what each is to do."""
        self.carry_out(fleet.TenantBegan(tenant, terms))
        return TenantFleet(self, tenant)

    def carry_out(self, event: Event) -> None:
        """Tell the table, and do all that follows."""
        for each in self.handle(event):
            self._carry_out(each)
        self._send_moves()

    def _send_moves(self) -> None:
        """Tell nodes at once for whom they are to work."""
        if self.table.has_unsent and self._sending is None:
            self.send_plans()

    def _carry_out(self, instruction: step.Instruction) -> None:
        match instruction:
            case step.PassOn(name, tenant):
                self._tenants.node_reported(tenant, self.table.nodes[name].word)
            case step.NodeLeft(name, tenant, reason):
                log.info("node_left", node=name, reason=reason)
                self._tenants.node_lost(tenant, name, reason, announced=True)

    def handle(self, event: Event) -> list[step.Instruction]:
        """Tell the table; whoever tells it carries out what follows."""
        return self.table.handle(event, self._now())

    # --- plans ---

    def send_plans(self) -> None:
        """Tell the nodes whose plan has changed since; where these are many, most of them in later
        turns of the loop, so that workers get their grants in between.
        """
        self._send_some()
        if self.table.has_unsent and self._sending is None:
            self._sending = self._actor.run_task(self._send_others())

    async def _send_others(self) -> None:
        while self.table.has_unsent:
            await asyncio.sleep(0)
            self._send_some()
        self._sending = None

    def _send_some(self) -> None:
        for each in self.handle(fleet.PlansDue()):
            self._send(each)

    def _send(self, instruction: step.Instruction) -> bool:
        if not isinstance(instruction, step.SendPlan):
            return False
        row = self.table.nodes[instruction.node]
        return try_tell(self._actor, row.word.scheduler, self._plan(row))

    def _plan(self, row: NodeRow[NodeReport, NodeTask]) -> NodePlan:
        task = row.task or NodeTask()
        job = task.job
        if job is not None and job.job_id == row.word.job_id:
            job = msgspec.structs.replace(job, spec=None)
        notice = None
        if row.notice is not None:
            left_s = max(0.0, row.notice.deadline - self._now())
            notice = UserNotice(row.notice.number, round(left_s, 3), row.notice.cancel)
        sick = tuple(SickWorker(*process) for process in row.sick)
        give_back_in_s = None
        if row.next is not None:
            give_back_in_s = round(max(0.0, row.give_back_by - self._now()), 3)
        plan = row.plan, self._actor.ref, job, task.demand, row.over
        return NodePlan(*plan, notice, sick, give_back_in_s)

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()


class TenantFleet:
    """The fleet, as one tenant asks of it.

    Args:
        tenant: its id.
    """

    def __init__(self, fleet: Fleet, tenant: str) -> None:
        self._fleet = fleet
        self._tenant = tenant
        self.roster: Roster = fleet.table.tenants[tenant]
        self._versions: tuple[int, ...] = ()
        """The versions of the weights that nodes may still need."""
        self._lent: frozenset[int] = frozenset()
        """Those of what trainer ranks lend."""
        self._trainers_term = 0
        """Trainer ranks of earlier terms are no longer needed."""

    def handle(self, event: Event) -> list[step.Instruction]:
        """Tell the table; whoever tells it carries out what follows."""
        return self._fleet.handle(event)

    def agrees(self, report: NodeReport) -> bool:
        """Whether a report is that of a node which knows its latest plan."""
        return self._fleet.table.agrees(report)

    def why_nobody_can_train(self, ranks: int) -> str:
        """Why no reserved worker can work; empty while one may, or others are still to come."""
        return self._fleet.table.why_nobody_can_train(self.roster, ranks)

    def prepare(self, node: str, spec: WorkSpec, membership: Membership) -> None:
        """A node takes part in the job."""
        job = self._task(node).job
        if job is None:
            versions, term = self._versions, self._trainers_term
            job = JobPlan(self._tenant, membership, versions=versions, trainers_term=term)
        self._assign(node, job=msgspec.structs.replace(job, membership=membership, spec=spec))

    def hold(self, node: str, offer: WeightsOffer) -> None:
        """Where a node pulls a weights version from now on; it tries again, if it failed."""
        if (job := self._task(node).job) is not None:
            job = msgspec.structs.replace(job, weights=_with(job.weights, offer))
            self._assign(node, job=job, again=True)

    def hold_lent(self, node: str, offer: WeightsOffer) -> None:
        """The same of what trainer ranks lend."""
        if (job := self._task(node).job) is not None:
            job = msgspec.structs.replace(job, lent=_with(job.lent, offer))
            self._assign(node, job=job, again=True)

    def take_checkpoint(self, node: str, source: CheckpointSource | None) -> None:
        """Where a node takes the checkpoint of the job from."""
        if (job := self._task(node).job) is not None:
            self._assign(node, job=msgspec.structs.replace(job, checkpoint=source))

    def keep_bundles(self, node: str, keeping: Keeping | None) -> None:
        """What a node is to know of the samples and commits that it keeps."""
        if (job := self._task(node).job) is not None:
            self._assign(node, job=msgspec.structs.replace(job, keeping=keeping))

    def keep(self, versions: Iterable[int]) -> None:
        """Which weights versions nodes may still need."""
        if (wanted := tuple(versions)) != self._versions:
            self._versions = wanted
            for node, job in self._jobs():
                weights = tuple(offer for offer in job.weights if offer.version in wanted)
                job = msgspec.structs.replace(job, weights=weights, versions=wanted)
                self._assign(node, job=job)

    def keep_lent(self, versions: frozenset[int]) -> None:
        """Which of what trainer ranks lend nodes may still need."""
        if versions != self._lent:
            self._lent = versions
            for node, job in self._jobs():
                lent = tuple(offer for offer in job.lent if offer.version in versions)
                self._assign(node, job=msgspec.structs.replace(job, lent=lent))

    def replace_trainers(self, term: int) -> None:
        """Trainer ranks of earlier terms than this one are no longer needed."""
        if term != self._trainers_term:
            self._trainers_term = term
            for node, job in self._jobs():
                self._assign(node, job=msgspec.structs.replace(job, trainers_term=term))

    def train_on(self, workers: frozenset[str]) -> None:
        """These workers are its trainers: their nodes stay with it."""
        self.handle(fleet.Trains(self._tenant, workers))

    def demand(self, node: str, demand: Demand) -> None:
        """What a node's SP groups should be good for."""
        self._assign(node, demand=demand)

    def end_worker(self, end: EndWorker) -> None:
        """Have the process of a worker ended that fails what others can do."""
        self.handle(fleet.FoundSick(end.node, end.worker, end.epoch, end.reason))
        self.send()

    def send(self) -> None:
        """Tell the nodes whose plan has changed."""
        self._fleet.send_plans()

    def end(self) -> None:
        """The tenant wants nothing more: tell all its nodes."""
        if self._is_there:
            self._fleet.carry_out(fleet.TenantOver(self._tenant))
            self.send()

    def forget(self) -> None:
        """Nothing of it is wanted any more."""
        if self._is_there:
            self._fleet.carry_out(fleet.TenantGone(self._tenant))
            self.send()

    @property
    def _is_there(self) -> bool:
        """Whether no other one of that id has begun since."""
        return self._fleet.table.tenants.get(self._tenant) is self.roster

    def _task(self, node: str) -> NodeTask:
        row = self._fleet.table.nodes.get(node)
        if row is None or row.task is None or row.tenant != self._tenant:
            return NodeTask()
        return row.task

    def _jobs(self) -> list[tuple[str, JobPlan]]:
        jobs = [(node, self._task(node).job) for node in self._fleet.table.nodes]
        return [(node, job) for node, job in jobs if job is not None]

    def _assign(
        self,
        node: str,
        *,
        job: JobPlan | None = None,
        demand: Demand | None = None,
        again: bool = False,
    ) -> None:
        """Change what is not None of a node's task."""
        before = self._task(node)
        task = NodeTask(job or before.job, demand or before.demand)
        self.handle(fleet.Assigned(self._tenant, node, task, again))


def workers_of(report: NodeReport, epochs: Collection[int]) -> list[WorkerRefs]:
    """The processes of a node that these are, in the order of the epochs."""
    by_epoch = {worker.epoch: worker for worker in report.workers}
    return [by_epoch[epoch] for epoch in epochs]


def _with(offers: Collection[WeightsOffer], new: WeightsOffer) -> tuple[WeightsOffer, ...]:
    """These, by version, with another one in place of the last of its version."""
    others = (offer for offer in offers if offer.version != new.version)
    return tuple(sorted((*others, new), key=lambda offer: offer.version))
