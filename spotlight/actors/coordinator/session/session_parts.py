"""The parts of a session in the coordinator's process: those of a job that serve its requests and
weights, without trainers, iterations and a run folder.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import get_args

from spotlight.actors.coordinator.node_plans import NodePlans
from spotlight.actors.coordinator.session.session_folder import SessionFolder
from spotlight.actors.coordinator.session.session_groups import SessionGroups
from spotlight.actors.coordinator.session.worker_times import RecentPace, WorkerTimes
from spotlight.actors.coordinator.submissions import SessionFiles
from spotlight.actors.coordinator.tenant.backlog_shares import BacklogShares
from spotlight.actors.coordinator.tenant.dispatcher import Dispatcher
from spotlight.actors.coordinator.tenant.event_log import EventLog
from spotlight.actors.coordinator.tenant.job_journal import JobJournal
from spotlight.actors.coordinator.tenant.ledger import Ledger
from spotlight.actors.coordinator.tenant.membership import NodeMembership
from spotlight.actors.coordinator.tenant.node_briefing import NodeBriefing
from spotlight.actors.coordinator.tenant.publications import Publications
from spotlight.actors.coordinator.tenant.request_queue import Ended
from spotlight.actors.coordinator.tenant.roster import Roster
from spotlight.actors.coordinator.tenant.step_profile import StepProfile
from spotlight.actors.coordinator.tenant.worker_troubles import WorkerTroubles
from spotlight.actors.runtime import Actor
from spotlight.errors import JournalError
from spotlight.jobs import ScoringSpec
from spotlight.policies.requests.pace import Pace
from spotlight.policies.requests.table import RequestTable
from spotlight.policies.run_tally import RunTally
from spotlight.policies.step_times import StepTimes
from spotlight.record.run_events import RunEvent, WorkerStateBegan
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
        plans: of all nodes.
        ended: is given requests that are finished or given up, to be handled later.
        is_over: whether the session has ended.
        fail: ends the session with a reason.
    """

    def __init__(
        self,
        actor: Actor,
        setup: SessionSetup,
        plans: NodePlans,
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
        self.times = WorkerTimes()
        self.pace = RecentPace(self._now())
        self.journal = JobJournal(setup.folder.journal, store, fail)
        self.roster = Roster()
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
        self.ledger = Ledger(self._note, self.table.counters.pop_scoring_s)
        self.dispatcher = Dispatcher(
            table=self.table,
            journal=self.journal,
            ended=ended,
            discard=lambda bundle: store.delete(bundle.key),
            record=self._note,
            backlog_changed=lambda: self.briefing.share_backlog(),
            end_worker=plans.end_worker,
            timings=timings.dispatch,
        )
        self.requests = self.dispatcher.queue
        self.membership = NodeMembership(
            self.roster,
            requests=self.requests,
            ledger=self.ledger,
            store=store,
            event=self._note,
            timings=timings.rejoin,
        )
        self.troubles = WorkerTroubles(self.roster, self.ledger, self._note, plans.agrees)
        self.briefing = NodeBriefing(
            plans,
            actor,
            self.dispatcher,
            saved.work,
            saved.session,
            roster=self.roster,
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
        if isinstance(event, WorkerStateBegan):
            self.times.note(event, self._now())

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()
