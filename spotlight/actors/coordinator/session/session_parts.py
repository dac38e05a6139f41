"""The parts of a session in the coordinator's process: those of a job that serve its requests and
weights, without trainers, iterations and a run folder.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import get_args

from spotlight.actors.coordinator.fleet import TenantFleet
from spotlight.actors.coordinator.session.recent_pace import RecentPace
from spotlight.actors.coordinator.session.session_folder import SessionFolder
from spotlight.actors.coordinator.session.session_groups import SessionGroups
from spotlight.actors.coordinator.submissions import SessionFiles
from spotlight.actors.coordinator.tenant.backlog_shares import BacklogShares
from spotlight.actors.coordinator.tenant.dispatcher import Dispatcher
from spotlight.actors.coordinator.tenant.event_log import EventLog
from spotlight.actors.coordinator.tenant.job_journal import JobJournal
from spotlight.actors.coordinator.tenant.membership import NodeMembership
from spotlight.actors.coordinator.tenant.node_briefing import NodeBriefing
from spotlight.actors.coordinator.tenant.publications import Publications
from spotlight.actors.coordinator.tenant.request_queue import Ended
from spotlight.actors.coordinator.tenant.step_profile import StepProfile
from spotlight.actors.runtime import Actor
from spotlight.errors import JournalError
from spotlight.jobs import ScoringSpec
from spotlight.policies.dispatch.pace import Pace
from spotlight.policies.dispatch.table import RequestTable
from spotlight.policies.run_tally import RunTally
from spotlight.policies.step_times import StepTimes
from spotlight.record.run_events import RunEvent
from spotlight.timings import Timings
from spotlight.transport.tensors import ArtifactStore
from spotlight.types import RequestKind


@dataclass(frozen=True)
class SessionSetup:
    """What a session is made from."""

    folder: SessionFolder
    store: ArtifactStore
    """The folder's, started."""
    files: SessionFiles
    came_back: bool
    """An earlier coordinator was killed in the middle of it, and its nodes may be there."""
    timings: Timings


class SessionParts:
    """See the module's docstring.

    Args:
        actor: the session runner.
        fleet: the nodes, as the session asks of them.
        ended: is given requests that are finished or given up, to be handled later.
        is_over: whether the session has ended.
        fail: ends the session with a reason.
    """

    def __init__(
        self,
        actor: Actor,
        setup: SessionSetup,
        fleet: TenantFleet,
        *,
        ended: Callable[[Ended], None],
        is_over: Callable[[], bool],
        fail: Callable[[JournalError], None],
    ) -> None:
        saved, store, timings = setup.folder.saved, setup.store, setup.timings
        self.groups = SessionGroups()
        self.tally = RunTally()
        """Of what happened since this coordinator began with the session."""
        self._log = EventLog(f"session-{saved.session}")
        self.pace = RecentPace(self._now())
        self.journal = JobJournal(setup.folder.journal, store, fail)
        self.roster = fleet.row
        self.publications = Publications(self.journal.publications(), self.roster, timings.weights)
        profile = StepProfile(setup.files.checkpoint.fingerprint, StepTimes())
        listen_s = timings.coordinator.listen_s if setup.came_back else 0.0
        self.table = RequestTable(
            pace=Pace(profile),
            first_lease=self.journal.first_lease,
            score_attempts=ScoringSpec().attempts,
            reward_limits=dict.fromkeys(
                get_args(RequestKind), tuple(each.limits for each in saved.work.rewards)
            ),
            grants_from=self._now() + listen_s,
            timings=timings.dispatch,
        )
        self.dispatcher = Dispatcher(
            table=self.table,
            journal=self.journal,
            ended=ended,
            discard=lambda bundle: store.delete(bundle.key),
            record=self._note,
            backlog_changed=lambda: self.briefing.share_backlog(),
            end_worker=fleet.end_worker,
            timings=timings.dispatch,
        )
        self.requests = self.dispatcher.queue
        self.membership = NodeMembership(
            fleet,
            requests=self.requests,
            table=self.table,
            store=store,
            event=self._note,
        )
        self.briefing = NodeBriefing(
            fleet,
            actor,
            self.dispatcher,
            saved.work,
            store=store,
            publications=self.publications,
            shares=BacklogShares(
                saved.work.sampler.degree,
                saved.session,
                setup.files.checkpoint,
                roster=self.roster,
                table=self.table,
                profile=profile,
            ),
            is_over=is_over,
            hub_files=setup.files.hub_files,
            timings=timings,
        )

    def _note(self, event: RunEvent) -> None:
        """There is no run folder to write it to."""
        self.tally.note(event)
        self._log.event(event)

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()
