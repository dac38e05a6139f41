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
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import msgspec

from spotlight.actors.coordinator.session.recent_pace import RecentPace
from spotlight.actors.coordinator.session.session_fleet import fleet_of, session_status
from spotlight.actors.coordinator.session.session_folder import SessionFolder
from spotlight.actors.coordinator.session.session_groups import (
    SessionGroups,
    picture_folder,
    problem_with_orders,
    request_id,
    requests_of,
    window_start,
)
from spotlight.actors.coordinator.submissions import SessionFiles
from spotlight.actors.coordinator.tenant.job_journal import JobJournal
from spotlight.actors.coordinator.tenant.request_plans import sampling_settings, scored_together
from spotlight.actors.coordinator.tenant.request_queue import Ended
from spotlight.actors.coordinator.tenant.step_profile import StepProfile
from spotlight.actors.coordinator.tenant.tenant import Service, Surroundings, Tenant
from spotlight.actors.protocol.sessions import (
    MOST_OPEN_GROUPS,
    EndSession,
    Fleet,
    GetFleet,
    GroupOrder,
    GroupsDone,
    OfferWeights,
    SessionBegan,
    SessionRefused,
    SubmitGroups,
    TakeGroups,
    WithdrawGroups,
)
from spotlight.actors.protocol.users import Acknowledged, JobStatus, Outcome
from spotlight.actors.runtime import (
    Down,
    Message,
    garbage,
    handles,
)
from spotlight.errors import JournalError, TransferFailed
from spotlight.policies.requests.instructions import RequestsFinished
from spotlight.policies.run_tally import RunTally
from spotlight.policies.step_times import StepTimes
from spotlight.record.run_events import RunEvent
from spotlight.types import BundleOffer, SamplingSettings

_MOST_REPORTS = 32_768
"""Most reports that wait at the dispatcher."""
_LEFTOVERS = ("samples", "commits", "pictures")
"""What workers leave in the store, and may be lost before they say so."""
_REPEAT_EVERY = 5
"""Reminders between two repetitions of what may have been lost."""


@dataclass(frozen=True)
class SessionSetup:
    """What a session is made from."""

    folder: SessionFolder
    files: SessionFiles
    came_back: bool
    """An earlier coordinator was killed in the middle of it, and its nodes may be there."""

    def service(self) -> Service:
        """What the session wants of the nodes."""
        saved = self.folder.saved
        return Service(
            id=saved.session,
            title=f"session-{saved.session}",
            owner=saved.owner,
            work=saved.work,
            checkpoint=self.files.checkpoint,
            hub_files=self.files.hub_files,
            degree=saved.work.sampler.degree,
        )


class SessionRunner(Tenant):
    """See the module's docstring."""

    def __init__(self, setup: SessionSetup, around: Surroundings) -> None:
        self._setup = setup
        self._saved = setup.folder.saved
        self.groups = SessionGroups()
        self.tally = RunTally()
        """The tally of what happened since this coordinator began with the session."""
        service = setup.service()
        listen_s = around.timings.coordinator.listen_s if setup.came_back else 0.0
        super().__init__(
            around,
            service,
            service.log(),
            journal=JobJournal(setup.folder.journal, around.store, self._fail),
            profile=StepProfile(setup.files.checkpoint.fingerprint, StepTimes()),
            came_back=setup.came_back,
            listen_s=listen_s,
        )
        self.began_at = self.now()
        self.pace = RecentPace(self.began_at)
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

    # --- life ---

    @property
    def is_over(self) -> bool:
        """Whether the session has ended."""
        return self.ended is not None

    async def started(self) -> None:
        """Look after its user, too."""
        await super().started()
        self.watch(self._saved.user)

    async def stopping(self, reason: str) -> None:
        """Leave nothing of a session that is over; the next coordinator goes on with another."""
        if reason == "crashed":
            self.end("failed", "the session crashed; see the coordinator's log")
        await self.store.aclose()
        if self.ended is not None:
            await self._setup.folder.remove()
        else:
            self._setup.folder.close()

    def aborted(self) -> None:
        """Leave the folder as a kill does."""
        self._setup.folder.close()

    @handles(EndSession, only=_from_user)
    async def on_end(self, message: EndSession) -> Acknowledged:
        """Nothing more is wanted."""
        self.end("finished", "")
        return Acknowledged()

    @handles(Down)
    async def on_down(self, message: Down) -> None:
        """The user is out of reach; he may come back."""
        self._away_since = self.now()

    def _heard(self) -> None:
        """The user speaks."""
        if self._away_since is not None:
            self._away_since = None
            self.watch(self._saved.user)

    def event(self, event: RunEvent) -> None:
        """There is no run folder to write it to."""
        self.tally.note(event)
        self.log.event(event)

    def report(self) -> JobStatus:
        """How the session is."""
        return session_status(self)

    def end(self, outcome: Outcome, reason: str) -> None:
        """Nothing more is wanted; the first call counts."""
        if self.ended is not None:
            return
        self.ended = msgspec.structs.replace(
            self.report(), phase="finished", outcome=outcome, reason=reason
        )
        self.log.lines.info("session_ended", outcome=outcome, reason=reason)
        self.briefing.end_job()
        self.around.coordinator.tenant_ended(self)

    def _fail(self, error: JournalError) -> None:
        self.end("failed", str(error))

    def remind(self, *, everything: bool) -> None:
        """Repeat what may have been lost, and give up a user who is away for too long."""
        self.briefing.repeat(everything=everything)
        limit_s, since = self.timings.coordinator.session_away_s, self._away_since
        if since is not None and self.now() - since >= limit_s:
            self.end("cancelled", f"its program has been out of reach for {limit_s:g} s")

    # --- weights ---

    @handles(OfferWeights, only=_from_user)
    async def on_offer(self, message: OfferWeights) -> Acknowledged | SessionRefused:
        """Nodes pull a version from now on."""
        self._heard()
        offer, publications = message.offer, self.publications
        known = self.journal.publications().get(offer.version)
        if known is not None and known != offer:
            return SessionRefused(
                f"weights version {offer.version} is already published with other weights"
            )
        if known is None:
            keep = {offer.version, *message.keep}
            publications.add(offer, keep)
            with suppress(JournalError):  # ends the session
                self.journal.save_publication(offer, keep)
        self.briefing.weights_published()
        if known is None:
            garbage.collect()  # nothing is granted with them before nodes have pulled them
        return Acknowledged()

    # --- groups ---

    @handles(SubmitGroups, only=_from_user)
    async def on_submit(self, message: SubmitGroups) -> Acknowledged | SessionRefused:
        """Queue what is new of it."""
        self._heard()
        room = MOST_OPEN_GROUPS - len(self.groups)
        problem = problem_with_orders(
            message.groups, self.publications.versions, room, self._saved.work
        )
        if problem:
            return SessionRefused(problem)
        new = self.groups.submit(message.groups)
        self.requests.submit(
            [
                request
                for order in new
                for request in scored_together(
                    self._saved.work, requests_of(order, self._settings(order))
                )
            ]
        )
        return Acknowledged()

    @handles(WithdrawGroups, only=_from_user)
    async def on_withdraw(self, message: WithdrawGroups) -> Acknowledged:
        """Drop what waits, and revoke what is in work if that takes nothing from others."""
        self._heard()
        removed = self._remove(message.numbers)
        for kind in {order.kind for order in removed}:
            if not self.groups.has_open(kind):
                self.requests.cancel(kind)
        return Acknowledged()

    @handles(TakeGroups, only=_from_user)
    async def on_take(self, message: TakeGroups) -> asyncio.Task[Any]:
        """What is done, as soon as anything is."""
        self._heard()
        self._remove(message.taken)
        return self.run_task(self._tell_when_done(message.most))

    async def _tell_when_done(self, most: int) -> GroupsDone:
        try:
            async with asyncio.timeout(self.timings.coordinator.session_poll_s):
                while not (numbers := self.groups.first_done(most)):
                    self._news.clear()
                    await self._news.wait()
        except TimeoutError:
            return GroupsDone(())
        pictures: dict[str, BundleOffer] = {}
        for key in self.groups.pictures_of(numbers):
            try:
                pictures[key] = await self.store.offer(key)
            except TransferFailed as error:
                self.log.lines.error("picture_lost", reason=str(error))
        return GroupsDone(self.groups.told(numbers, pictures))

    def _remove(self, numbers: tuple[int, ...]) -> list[GroupOrder]:
        """The user has these groups, or wants them no more."""
        removed = self.groups.remove(numbers)
        for order in removed:
            if order.pictures:
                self.store.delete(picture_folder(order.number))
        self.requests.release(request_id(order, seed) for order in removed for seed in order.seeds)
        if removed and not self.groups:
            for leftovers in _LEFTOVERS:
                self.store.delete(leftovers)
        return removed

    async def end_requests(self, ended: Ended) -> None:
        """Requests are finished, in any order and each once, or given up."""
        if isinstance(ended, RequestsFinished):
            if not ended.restored:
                self.pace.note(len(ended.of("rollout")), self.now())
            unwanted = self.groups.finished(ended.results, restored=ended.restored)
        else:
            unwanted = self.groups.given_up(ended.requests, ended.reason)
        for request in unwanted:
            if request.image_key:
                self.store.delete(picture_folder(request.group))
        self.requests.release(request.id for request in unwanted)
        self._news.set()

    def _settings(self, order: GroupOrder) -> SamplingSettings:
        sampler = self._saved.work.sampler
        steps = order.steps or sampler.steps
        return sampling_settings(sampler, steps, window_start(order, sampler))

    @handles(GetFleet, only=_from_user)
    async def on_fleet(self, message: GetFleet) -> Fleet:
        """Who is there, and what was done so far."""
        self._heard()
        return fleet_of(self)
