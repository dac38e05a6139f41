"""The session runner: has nodes denoise and score the prompt groups that another program's training
loop asks for.

Messages in: OfferWeights, SubmitGroups, WithdrawGroups, TakeGroups, GetFleet, EndSession (user);
NodeReport, CancelJob (coordinator); WorkerReport (group leaders); Down (user).
Messages out: Acknowledged, SessionRefused, GroupsDone, Fleet (the user). What nodes are to do goes
into their plans. The coordinator, in the same process, is called.

It decides nothing about training: weights come when the user publishes them, and every group is
denoised with the version that it names. Samples are kept until the user has taken them. A session
ends when the user says so, or is out of reach for too long; what it has left on disk is then
deleted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import structlog

from spotlight.actors.coordinator.fleet import TenantFleet
from spotlight.actors.coordinator.job.job_status import status_pause_s
from spotlight.actors.coordinator.session.session_fleet import fleet_of, session_status
from spotlight.actors.coordinator.session.session_groups import (
    picture_folder,
    problem_with_orders,
    request_id,
    requests_of,
    window_start,
)
from spotlight.actors.coordinator.session.session_parts import SessionParts, SessionSetup
from spotlight.actors.coordinator.tenant.request_plans import sampling_settings
from spotlight.actors.coordinator.tenant.request_queue import Ended
from spotlight.actors.protocol import (
    Acknowledged,
    CancelJob,
    EndSession,
    Fleet,
    GetFleet,
    GroupOrder,
    GroupsDone,
    JobStatus,
    NodeReport,
    OfferWeights,
    Outcome,
    SessionBegan,
    SessionRefused,
    SubmitGroups,
    TakeGroups,
    WithdrawGroups,
    WorkerReport,
)
from spotlight.actors.protocol.sessions import MOST_OPEN_GROUPS
from spotlight.actors.runtime import (
    Actor,
    ActorRef,
    Down,
    Message,
    from_this_process,
    garbage,
    handles,
)
from spotlight.errors import JournalError, TransferFailed
from spotlight.policies.dispatch.instructions import RequestsFinished
from spotlight.types import BundleOffer, SamplingSettings

log = structlog.get_logger(__name__)

_MOST_REPORTS = 32_768
"""That wait at the dispatcher."""
_LEFTOVERS = ("samples", "commits", "pictures")
"""What workers leave in the store, and may be lost before they say so."""
_REPEAT_EVERY = 5
"""Reminders between two repetitions of what may have been lost."""


class SessionRunner(Actor):
    """See the module's docstring.

    Args:
        fleet: the nodes, as this asks of them.
        coordinator: who may cancel the session.
        nodes: who is there already.
        on_status: called with the session's status, now and then.
        on_end: called once with the last status; the runner is to be stopped then.
    """

    def __init__(
        self,
        setup: SessionSetup,
        fleet: TenantFleet,
        *,
        coordinator: ActorRef,
        nodes: tuple[NodeReport, ...],
        on_status: Callable[[JobStatus], None],
        on_end: Callable[[JobStatus], None],
    ) -> None:
        self._setup = setup
        self._saved = setup.folder.saved
        self._timings = setup.timings.coordinator
        self._coordinator = coordinator
        self._waiting_nodes = nodes
        self._on_status = on_status
        self._on_end = on_end
        self.ended: JobStatus | None = None
        """Its last status."""
        self._parts = SessionParts(
            self,
            setup,
            fleet,
            ended=lambda ended: self.call_in_turn(partial(self._end_requests, ended)),
            is_over=lambda: self.ended is not None,
            fail=lambda error: self._end("failed", str(error)),
        )
        self._groups = self._parts.groups
        self._began = asyncio.get_running_loop().time()
        self._away_since: float | None = None
        """When the user was lost; None while he is there."""
        self._news = asyncio.Event()
        """A group is done."""

    @property
    def began(self) -> SessionBegan:
        """What its user is told."""
        return SessionBegan(self.ref, self._setup.files.tensors)

    @property
    def session(self) -> str:
        """Which one it is."""
        return self._saved.session

    # --- who may say what ---

    def _from_user(self, message: Message) -> bool:
        return self.sender == self._saved.user

    def _from_coordinator(self, message: Message) -> bool:
        return self.sender == self._coordinator

    def _from_the_worker(self, message: WorkerReport) -> bool:
        return self._parts.roster.may_report(message.worker, self.sender)

    # --- life ---

    async def started(self) -> None:
        """Start the dispatcher, and meet the nodes that are there."""
        dispatcher = self._parts.dispatcher
        await self.spawn(lambda: dispatcher, "dispatcher", linked=True, mailbox=_MOST_REPORTS)
        self.watch(self._saved.user)
        self.run_task(self._report_status())
        self.run_task(self._remind())
        for node in self._waiting_nodes:
            self.tell(self.ref, node)

    async def stopping(self, reason: str) -> None:
        """Leave nothing of a session that is over; the next coordinator goes on with another."""
        if reason == "crashed":
            self._end("failed", "the session crashed; see the coordinator's log")
        await self._setup.store.aclose()
        if self.ended is not None:
            await self._setup.folder.remove()
        else:
            self._setup.folder.close()

    def aborted(self) -> None:
        """Leave the folder as a kill does."""
        self._setup.folder.close()

    @handles(CancelJob, only=_from_coordinator)
    async def on_cancel(self, message: CancelJob) -> None:
        """Somebody ends the session from outside."""
        self._end("cancelled", "cancelled by the user")

    @handles(EndSession, only=_from_user)
    async def on_end(self, message: EndSession) -> Acknowledged:
        """Nothing more is wanted."""
        self._end("finished", "")
        return Acknowledged()

    @handles(Down)
    async def on_down(self, message: Down) -> None:
        """The user is out of reach; he may come back."""
        self._away_since = self._now()

    def _heard(self) -> None:
        """The user speaks."""
        if self._away_since is not None:
            self._away_since = None
            self.watch(self._saved.user)

    def _end(self, outcome: Outcome, reason: str) -> None:
        if self.ended is not None:
            return
        self.ended = self._status(outcome, reason)
        log.info("session_ended", job=self.ended.job, outcome=outcome, reason=reason)
        self._parts.briefing.end_job()
        self._on_end(self.ended)

    async def _remind(self) -> None:
        reminders = 0
        while self.ended is None:
            await asyncio.sleep(self._timings.remind_s)
            reminders += 1
            self._parts.briefing.repeat(everything=reminders % _REPEAT_EVERY == 0)
            limit_s, since = self._timings.session_away_s, self._away_since
            if since is not None and self._now() - since >= limit_s:
                self._end("cancelled", f"its program has been out of reach for {limit_s:g} s")

    async def _report_status(self) -> None:
        while self.ended is None:
            status = self._status("", "")
            self._on_status(status)
            await asyncio.sleep(status_pause_s(len(status.workers), self._timings.status_period_s))

    def _status(self, outcome: Outcome, reason: str) -> JobStatus:
        return session_status(
            self._parts,
            f"session-{self._saved.session}",
            self._now() - self._began,
            len(self.system.dead_letters),
            outcome=outcome,
            reason=reason,
            came_back=self._setup.came_back,
        )

    # --- nodes ---

    @handles(NodeReport, only=from_this_process)
    async def on_node_report(self, message: NodeReport) -> None:
        """A node is there, with what it has; others pull weights from it."""
        parts = self._parts
        if self.ended is None and (heard := parts.membership.take_in(message)):
            parts.briefing.note(message, has_changed=heard.has_news)
            if heard.has_news:
                parts.briefing.share_backlog()

    def lose_node(self, name: str, reason: str, *, announced: bool) -> None:
        """In the runner's next turn: a node is out of reach with its workers, and what they held is
        queued again. `announced`: it had notice, and left.
        """

        async def lose() -> None:
            self._parts.membership.lose(name, reason, announced=announced)
            self._parts.briefing.node_gone(name)

        self.call_in_turn(lose, lane="system")  # in order with what nodes report

    @handles(WorkerReport, only=_from_the_worker)
    async def on_worker_report(self, message: WorkerReport) -> None:
        """What the worker does from now on, and whether it can serve at all."""
        self._parts.membership.note(message)

    # --- weights ---

    @handles(OfferWeights, only=_from_user)
    async def on_offer(self, message: OfferWeights) -> Acknowledged | SessionRefused:
        """Nodes pull a version from now on."""
        self._heard()
        offer, publications = message.offer, self._parts.publications
        known = self._parts.journal.publications().get(offer.version)
        if known is not None and known != offer:
            return SessionRefused(
                f"weights version {offer.version} is already published with other weights"
            )
        if known is None:
            keep = {offer.version, *message.keep}
            publications.add(offer, keep)
            with suppress(JournalError):  # ends the session
                self._parts.journal.save_publication(offer, keep)
        self._parts.briefing.weights_published()
        if known is None:
            garbage.collect()  # nothing is granted with them before nodes have pulled them
        return Acknowledged()

    # --- groups ---

    @handles(SubmitGroups, only=_from_user)
    async def on_submit(self, message: SubmitGroups) -> Acknowledged | SessionRefused:
        """Queue what is new of it."""
        self._heard()
        room = MOST_OPEN_GROUPS - len(self._groups)
        problem = problem_with_orders(
            message.groups, self._parts.publications.versions, room, self._saved.work.sampler
        )
        if problem:
            return SessionRefused(problem)
        new = self._groups.submit(message.groups)
        self._parts.requests.submit(
            [request for order in new for request in requests_of(order, self._settings(order))]
        )
        return Acknowledged()

    @handles(WithdrawGroups, only=_from_user)
    async def on_withdraw(self, message: WithdrawGroups) -> Acknowledged:
        """Drop what waits, and revoke what is in work if that takes nothing from others."""
        self._heard()
        removed = self._remove(message.numbers)
        for kind in {order.kind for order in removed}:
            if not self._groups.has_open(kind):
                self._parts.requests.cancel(kind)
        return Acknowledged()

    @handles(TakeGroups, only=_from_user)
    async def on_take(self, message: TakeGroups) -> asyncio.Task[Any]:
        """What is done, as soon as anything is."""
        self._heard()
        self._remove(message.taken)
        return self.run_task(self._tell_when_done(message.most))

    async def _tell_when_done(self, most: int) -> GroupsDone:
        try:
            async with asyncio.timeout(self._timings.session_poll_s):
                while not (numbers := self._groups.first_done(most)):
                    self._news.clear()
                    await self._news.wait()
        except TimeoutError:
            return GroupsDone(())
        pictures: dict[str, BundleOffer] = {}
        for key in self._groups.pictures_of(numbers):
            try:
                pictures[key] = await self._setup.store.offer(key)
            except TransferFailed as error:
                log.error("picture_lost", reason=str(error))
        return GroupsDone(self._groups.told(numbers, pictures))

    def _remove(self, numbers: tuple[int, ...]) -> list[GroupOrder]:
        """The user has these groups, or wants them no more."""
        removed = self._groups.remove(numbers)
        for order in removed:
            if order.pictures:
                self._setup.store.delete(picture_folder(order.number))
        self._parts.requests.release(
            request_id(order, seed) for order in removed for seed in order.seeds
        )
        if removed and not self._groups:
            for leftovers in _LEFTOVERS:
                self._setup.store.delete(leftovers)
        return removed

    async def _end_requests(self, ended: Ended) -> None:
        """Requests are finished, in any order and each once, or given up."""
        if isinstance(ended, RequestsFinished):
            if not ended.restored:
                self._parts.pace.note(len(ended.of("rollout")), self._now())
            unwanted = self._groups.finished(ended.results, restored=ended.restored)
        else:
            unwanted = self._groups.given_up(ended.requests, ended.reason)
        for request in unwanted:
            if request.image_key:
                self._setup.store.delete(picture_folder(request.group))
        self._parts.requests.release(request.id for request in unwanted)
        self._news.set()

    def _settings(self, order: GroupOrder) -> SamplingSettings:
        sampler = self._saved.work.sampler
        steps = order.steps or sampler.steps
        return sampling_settings(sampler, steps, window_start(order, sampler))

    @handles(GetFleet, only=_from_user)
    async def on_fleet(self, message: GetFleet) -> Fleet:
        """Who is there, and what was done so far."""
        self._heard()
        return fleet_of(self._parts, self._now())

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()
