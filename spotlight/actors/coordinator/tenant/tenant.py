"""A tenant of the coordinator: a job, or the loop of another program. It has requests denoised and
scored by the nodes that are there, with the weights that it publishes.

Messages in: NodeReport, CancelJob (coordinator); WorkerReport (group leaders).
What nodes are to do goes into their plans. The coordinator, in the same process, is called.

What is the same for every tenant is here: its nodes and workers, its table of requests with the
dispatcher, its journal and its published weights. Which requests there are, what becomes of their
results and where weights come from is for `JobRunner` and `SessionRunner` to say.
"""

from __future__ import annotations

import asyncio
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Literal, Protocol, get_args

from spotlight.actors.coordinator.fleet import TenantFleet
from spotlight.actors.coordinator.key_ring import OPERATOR
from spotlight.actors.coordinator.tenant.backlog_shares import BacklogShares
from spotlight.actors.coordinator.tenant.dispatcher import Dispatcher
from spotlight.actors.coordinator.tenant.job_journal import JobJournal
from spotlight.actors.coordinator.tenant.keepers import Keepers
from spotlight.actors.coordinator.tenant.membership import NodeMembership
from spotlight.actors.coordinator.tenant.node_briefing import NodeBriefing
from spotlight.actors.coordinator.tenant.publications import Publications
from spotlight.actors.coordinator.tenant.request_queue import Ended
from spotlight.actors.coordinator.tenant.step_profile import StepProfile
from spotlight.actors.coordinator.tenant.tenant_log import TenantLog
from spotlight.actors.protocol.gradients import SliceOrder
from spotlight.actors.protocol.up import MissedWeights, NodeReport, WorkerReport
from spotlight.actors.protocol.users import CancelJob, JobStatus, Outcome
from spotlight.actors.runtime import Actor, ActorRef, Message, from_this_process, handles
from spotlight.condition_images import pack
from spotlight.jobs import ScoringSpec, WorkSpec
from spotlight.jobs.hub_names import HubFile
from spotlight.policies.money.prices import Prices
from spotlight.policies.requests.instructions import EndWorker
from spotlight.policies.requests.pace import Pace
from spotlight.policies.requests.table import RequestTable
from spotlight.preflight.checkpoint_facts import CheckpointInfo
from spotlight.record.run_events import RunEvent, WeightsNotFetched
from spotlight.timings import Timings
from spotlight.transport.tensors import ArtifactStore
from spotlight.types import BundleOffer, Request, RequestKind

_MOST_REPORTS = 32_768
"""Most reports that wait at the dispatcher: thousands of workers may speak while it writes its
journal."""
_STATUS_LINES_PER_S = 2000
IMAGES = "images"
"""The key of the bundle of images that prompts come with."""


class Landlord(Protocol):
    """The coordinator, as its tenants see it."""

    ref: ActorRef
    """Who may cancel them."""

    def tenant_ended(self, tenant: Tenant) -> None:
        """It has its last status, and is to be stopped."""

    def run_again(self, tenant: Tenant) -> None:
        """It is to be stopped, and another is to go on from what is on record; when the disk has
        room again, if it was full."""


@dataclass(frozen=True)
class Surroundings:
    """What the coordinator gives every tenant."""

    coordinator: Landlord
    store: ArtifactStore
    """This is the store in its folder, and it is started."""
    fleet: TenantFleet
    """The nodes, as the tenant asks of them."""
    nodes: tuple[NodeReport, ...]
    """These nodes are there already."""
    timings: Timings
    prices: Prices = field(default_factory=Prices)
    """Those that are the same for all jobs."""


@dataclass(frozen=True, kw_only=True)
class Service:
    """What a tenant wants of the nodes, and whose it is."""

    id: str
    title: str
    """People know it by this name."""
    owner: str = OPERATOR
    """This is the id of a submitter's join token, or the operators'."""
    work: WorkSpec
    checkpoint: CheckpointInfo
    hub_files: tuple[HubFile, ...] = ()
    """The checkpoint has these files, if it is one of the hub."""
    metadata: Mapping[str, str] = field(default_factory=dict)
    """What is known of prompts, by their text, goes along with their requests."""
    images: Mapping[str, bytes] = field(default_factory=dict)
    """The files of images that prompts come with are named by their digests."""
    degree: Literal["auto"] | int
    score_attempts: int = ScoringSpec().attempts
    trained_on: tuple[RequestKind, ...] = ("rollout",)
    """The samples of these kinds of requests are needed when they are done."""

    def log(self) -> TenantLog:
        """A log whose lines say whose they are."""
        return TenantLog(self.id, self.title, self.owner)


class Tenant(Actor, ABC):
    """See the module's docstring.

    Args:
        around: what the coordinator gives it.
        service: what it wants.
        log: tells operators of it.
        journal: of its folder.
        profile: how long the steps of its model take.
        came_back: an earlier one was ended in the middle, and its nodes may be there.
        listen_s: so long nothing is granted, as nodes tell what they still do.
    """

    def __init__(
        self,
        around: Surroundings,
        service: Service,
        log: TenantLog,
        *,
        journal: JobJournal,
        profile: StepProfile,
        came_back: bool,
        listen_s: float,
    ) -> None:
        self.around, self.service, self.log = around, service, log
        self.store, self.nodes, self.timings = around.store, around.fleet, around.timings
        self.journal, self.profile, self.came_back = journal, profile, came_back
        self.status = JobStatus(job=service.title, phase="preparing")
        """The status as it was told last."""
        self.ended: JobStatus | None = None
        """Its last status."""
        self.images: BundleOffer | None = None
        """The images that prompts come with, as workers fetch them."""
        self.has_begun = came_back
        """Whether there is something that whoever takes its place goes on with."""
        self.full = ""
        """Why the disk refused what it wrote, where it is to be replaced for that."""
        self.listens_until = self.now() + listen_s
        self._made_at = self.now()
        published = journal.publications() if came_back else {}
        self.roster = self.nodes.roster
        self.publications = Publications(published, self.roster, self.timings.weights)
        self.lent = Publications({}, self.roster, self.timings.weights)
        """What trainer ranks lend, by how many updates were taken before."""
        self.table = self._new_table()
        self.dispatcher = Dispatcher(
            self, self.table, journal, service.metadata, self.timings.dispatch
        )
        self.requests = self.dispatcher.queue
        self.shares = BacklogShares(
            service.degree,
            service.id,
            service.checkpoint,
            roster=self.roster,
            table=self.table,
            profile=profile,
        )
        self.keepers = Keepers(self)
        self.membership = NodeMembership(self)
        self.briefing = NodeBriefing(self)

    def _new_table(self) -> RequestTable:
        service, work = self.service, self.service.work
        limits = {
            kind: tuple(reward.limits for reward in work.rewards_of(kind) or work.rewards)
            for kind in get_args(RequestKind)
        } | {"gradient": ()}
        return RequestTable(
            pace=Pace(self.profile),
            first_lease=self.journal.first_lease,
            score_attempts=service.score_attempts,
            reward_limits=limits,
            trained_on=service.trained_on,
            grants_from=self.listens_until,
            timings=self.timings.dispatch,
        )

    # --- what each tenant says itself ---

    @property
    @abstractmethod
    def is_over(self) -> bool:
        """Whether it has nothing more to do."""

    @abstractmethod
    def event(self, event: RunEvent) -> None:
        """Something happened: write it down."""

    @abstractmethod
    def report(self) -> JobStatus:
        """How it is now, for its users."""

    @abstractmethod
    def end(self, outcome: Outcome, reason: str) -> None:
        """Nothing more is wanted; the first call counts."""

    @abstractmethod
    async def end_requests(self, ended: Ended) -> None:
        """Requests are finished, in any order and each once, or given up."""

    @abstractmethod
    def remind(self, *, everything: bool) -> None:
        """Repeat what may have been lost; `everything`: also what must be told again and again."""

    @property
    def prices(self) -> Prices:
        """What its nodes cost."""
        return self.around.prices

    def run_time_s(self) -> float:
        """Run time now."""
        return self.now() - self._made_at

    def spent(self, money: float | None, time_s: float) -> None:
        """What it has cost until now, None if nothing of it is priced, and its run time."""

    @property
    def trainers(self) -> frozenset[str]:
        """The workers that train, by name."""
        return frozenset()

    @property
    def apart(self) -> frozenset[str]:
        """The workers that are in no SP group with others: those that train or compute
        gradients."""
        return self.trainers

    @property
    def seconds_left(self) -> float | None:
        """Until previews are worth nothing any more, where that is known."""
        return None

    def node_came(self, node: NodeReport) -> None:
        """A node is there for the first time, or others of its workers, or it leaves."""

    async def nodes_changed(self) -> None:
        """The same, when the node was told what it is to do."""

    def node_gone(self, name: str, reason: str, *, announced: bool) -> None:
        """A node is out of reach with its workers; `announced`: it had notice, and left."""

    # --- life ---

    async def started(self) -> None:
        """Start the dispatcher, and meet the nodes that are there."""
        if self.service.images:
            self.images = await self._offer_images()
        await self.spawn(lambda: self.dispatcher, "dispatcher", linked=True, mailbox=_MOST_REPORTS)
        self.run_task(self._report_status())
        self.run_task(self._remind())
        for node in self.around.nodes:
            self.tell(self.ref, node)

    async def _offer_images(self) -> BundleOffer:
        def write() -> None:
            file.write(pack(self.service.images))
            file.flush()

        with tempfile.NamedTemporaryFile(prefix="spotlight-images-") as file:
            await asyncio.to_thread(write)
            return await self.store.take_in(Path(file.name), IMAGES)

    async def _report_status(self) -> None:
        while not self.is_over:
            self.status = self.report()
            lines = len(self.status.workers) + len(self.status.validation)
            period_s = self.timings.coordinator.status_period_s
            await asyncio.sleep(status_pause_s(lines, period_s))

    async def _remind(self) -> None:
        reminders, repeat_every = 0, 5
        while not self.is_over:
            await asyncio.sleep(self.timings.coordinator.remind_s)
            reminders += 1
            self.remind(everything=reminders % repeat_every == 0)

    def _from_coordinator(self, message: Message) -> bool:
        return self.sender == self.around.coordinator.ref

    @handles(CancelJob, only=_from_coordinator)
    async def on_cancel(self, message: CancelJob) -> None:
        """Somebody ends it from outside."""
        self.end("cancelled", message.reason)

    # --- nodes and workers ---

    def _from_the_worker(self, message: WorkerReport) -> bool:
        return self.roster.may_report(message.worker, self.sender)

    @handles(NodeReport, only=from_this_process)
    async def on_node_report(self, message: NodeReport) -> None:
        """A node is there, with what it has; others pull weights from it."""
        if self.is_over or not (heard := self.membership.take_in(message)):
            return
        if heard.has_news:
            self.node_came(message)
        self.briefing.note(message, has_changed=heard.has_news)
        if heard.has_news:
            await self.nodes_changed()
            self.briefing.share_backlog()

    def lose_node(self, name: str, reason: str, *, announced: bool) -> None:
        """In its next turn: a node is out of reach with its workers, and what they held is queued
        again. `announced`: it had notice, and left.
        """

        async def lose() -> None:
            self.membership.lose(name, reason, announced=announced)
            self.node_gone(name, reason, announced=announced)
            self.briefing.node_gone(name)

        self.call_in_turn(lose, lane="system")  # in order with what nodes report

    @handles(WorkerReport, only=_from_the_worker)
    async def on_worker_report(self, message: WorkerReport) -> None:
        """What the worker does from now on, and whether it can serve at all."""
        self.membership.note(message)

    def weights_missed(self, node: str, missed: MissedWeights) -> None:
        """A node could not get a version from where it was told to."""
        source = f"{missed.store.host}:{missed.store.port}"
        self.event(WeightsNotFetched(node=node, version=missed.version, source=source))

    # --- what the queue of its requests says ---

    def requests_ended(self, ended: Ended) -> None:
        """In its next turn: what is finished or given up."""
        self.call_in_turn(partial(self.end_requests, ended))

    def slice_of(self, request: Request) -> SliceOrder | None:
        """What the gradient is of that a request is for; None if nobody needs it any more."""
        return None

    def discard(self, bundle: BundleOffer) -> None:
        """Nobody needs what a worker has left."""
        if bundle.keeper:
            self.keepers.discard(bundle)
        else:
            self.store.delete(bundle.key)

    def has(self, bundle: BundleOffer) -> bool:
        """Whether what a worker has left is in a store that is there."""
        return not bundle.keeper or self.keepers.has(bundle)

    def backlog_changed(self) -> None:
        """Another kind of work waits, or little of it."""
        self.briefing.share_backlog()

    def end_worker(self, end: EndWorker) -> None:
        """Have the process of a worker ended that fails what others can do."""
        self.nodes.end_worker(end)

    @staticmethod
    def now() -> float:
        """Seconds, on the loop's clock."""
        return asyncio.get_running_loop().time()


def status_pause_s(lines: int, period_s: float) -> float:
    """Seconds between two statuses of so many workers and validations: the more it says, the less
    often it is said; never more than once in `period_s`.
    """
    return max(period_s, lines / _STATUS_LINES_PER_S)
