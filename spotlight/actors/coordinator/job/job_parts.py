"""The parts of a job in the coordinator's process, and how they are put together. Each does one
thing; the job runner has them work as the iteration machine says.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import get_args

from spotlight.actors.coordinator.fleet import TenantFleet
from spotlight.actors.coordinator.job.exploration_phase import ExplorationPhase
from spotlight.actors.coordinator.job.job_phase import JobPhase
from spotlight.actors.coordinator.job.job_progress import JobProgress
from spotlight.actors.coordinator.job.job_record import JobRecord
from spotlight.actors.coordinator.job.mirroring import Mirroring, MirrorPlace
from spotlight.actors.coordinator.job.rollout_phase import RolloutPhase
from spotlight.actors.coordinator.job.run_record import RunRecord
from spotlight.actors.coordinator.job.trainer_recovery import TrainerRecovery
from spotlight.actors.coordinator.job.trainer_team import TrainerTeam
from spotlight.actors.coordinator.job.trainer_watch import TrainerWatch
from spotlight.actors.coordinator.job.training_phase import TrainingPhase
from spotlight.actors.coordinator.job.training_state import TrainingStates
from spotlight.actors.coordinator.job.validations import Validations
from spotlight.actors.coordinator.job.weights_publisher import WeightsPublisher
from spotlight.actors.coordinator.tenant.backlog_shares import BacklogShares
from spotlight.actors.coordinator.tenant.dispatcher import Dispatcher
from spotlight.actors.coordinator.tenant.job_journal import JobJournal
from spotlight.actors.coordinator.tenant.membership import NodeMembership
from spotlight.actors.coordinator.tenant.node_briefing import NodeBriefing
from spotlight.actors.coordinator.tenant.publications import Publications
from spotlight.actors.coordinator.tenant.request_plans import TrainingPrompts
from spotlight.actors.coordinator.tenant.request_queue import Ended
from spotlight.actors.coordinator.tenant.step_profile import StepProfile
from spotlight.actors.runtime import Actor
from spotlight.jobs import JobSpec
from spotlight.jobs.hub_names import HubFile
from spotlight.policies.dispatch.pace import Pace
from spotlight.policies.dispatch.table import RequestTable
from spotlight.preflight.checks import JobFiles
from spotlight.record.run_events import WeightsNotFetched
from spotlight.store.run_folder import RunFolder
from spotlight.timings import Timings
from spotlight.trackers import CallbackThread
from spotlight.trackers.building import named_trackers
from spotlight.trackers.tracked_run import TrackedRun
from spotlight.transport.tensors import ArtifactStore
from spotlight.types import RequestKind


@dataclass(frozen=True)
class Callbacks:
    """What the parts call when it is the job runner's turn."""

    requests_ended: Callable[[Ended], None]
    """Called within any call of the parts, so the job runner keeps it for later."""
    rolled_out: Callable[[int], None]
    """With the iteration whose samples are all there."""
    first_trained: Callable[[int], None]
    """With the iteration whose first part all ranks have trained on."""
    trained: Callable[[int], None]
    """With the iteration that all ranks have trained on."""
    published: Callable[[int], None]
    """With the weights version that nodes can pull."""
    explored: Callable[[int, bool], None]
    """With the iteration whose seeds are chosen, and whether all its samples are there."""
    validated: Callable[[int], None]
    """With the weights version whose score is on record."""
    saved: Callable[[int], None]
    """With the iterations in a checkpoint that is durable."""
    exported: Callable[[], None]
    """The best weights are in the run folder."""
    replace: Callable[[], None]
    """Another job runner is to begin again."""
    fail: Callable[[str], None]
    """The job has failed, for this reason."""
    stop: Callable[[str, str], None]
    """Called outside of turns: a callback of this name wants the job to end, for this reason."""


@dataclass(frozen=True)
class JobSetup:
    """What a job is made from."""

    job: JobSpec
    job_id: str
    folder: RunFolder
    store: ArtifactStore
    """The run folder's, started."""
    files: JobFiles
    """What the files that the job names hold."""
    came_back: bool
    """An earlier runner was ended in the middle of this job, with its coordinator or because
    trainers were lost, and its nodes may be there."""
    listen_s: float
    """What nodes still do is told by then; until then nothing is granted."""
    timings: Timings
    mirror: MirrorPlace | None
    """Where the run is copied to."""
    hub_files: tuple[HubFile, ...] = ()
    """Of the checkpoint, if it is one of the hub."""


class JobParts:
    """See the module's docstring.

    Args:
        actor: the job runner, which tells and asks on behalf of its parts.
        fleet: the nodes, as the job asks of them.
        on: what they call.
    """

    def __init__(self, actor: Actor, setup: JobSetup, fleet: TenantFleet, on: Callbacks) -> None:
        self.job = job = setup.job
        job_id, folder, store, files = setup.job_id, setup.folder, setup.store, setup.files
        came_back, timings = setup.came_back, setup.timings
        tracked = [
            TrackedRun(id=job_id, job=job, folder=folder.path, tracker=tracker)
            for tracker in job.trackers
        ]
        self.callbacks = CallbackThread(named_trackers(tracked), on.stop)
        run = RunRecord(folder, self.callbacks)
        self.phase = JobPhase(run.time_s)
        self.record = JobRecord(run, job.name, on.fail)
        event = self.record.event
        self.journal = JobJournal(folder.journal, store, self.record.stop_for)
        self.mirroring = Mirroring(
            actor,
            setup.mirror,
            folder,
            job_id,
            event=event,
            close_limit_s=timings.coordinator.trackers_close_s,
        )
        self.progress = JobProgress(
            job,
            files.categories,
            journal=self.journal,
            record=self.record,
            settled=self.mirroring.take,
        )
        self.fleet, self.roster = fleet, fleet.row
        published = self.journal.publications() if came_back else {}
        self.publications = Publications(
            published,
            self.roster,
            timings.weights,
            missed=lambda node, missed: event(
                WeightsNotFetched(
                    node=node,
                    version=missed.version,
                    source=f"{missed.store.host}:{missed.store.port}",
                )
            ),
        )

        self.profile = StepProfile(files.checkpoint.fingerprint, run.step_times())
        listens_until = asyncio.get_running_loop().time() + setup.listen_s
        self.table = RequestTable(
            pace=Pace(self.profile),
            first_lease=self.journal.first_lease,
            score_attempts=job.scoring.attempts,
            reward_limits={
                kind: tuple(reward.limits for reward in job.work.rewards_of(kind))
                for kind in get_args(RequestKind)
            },
            trained_on=job.trained_on,
            grants_from=listens_until,
            timings=timings.dispatch,
        )
        self.dispatcher = Dispatcher(
            table=self.table,
            journal=self.journal,
            metadata=files.metadata,
            ended=on.requests_ended,
            discard=lambda bundle: store.delete(bundle.key),
            record=event,
            backlog_changed=lambda: self.briefing.share_backlog(),
            end_worker=fleet.end_worker,
            timings=timings.dispatch,
        )
        self.requests = self.dispatcher.queue
        shares = BacklogShares(
            job.degree,
            job_id,
            files.checkpoint,
            roster=self.roster,
            table=self.table,
            profile=self.profile,
        )
        self.membership = NodeMembership(
            fleet,
            requests=self.requests,
            table=self.table,
            store=store,
            event=event,
        )

        self.team = TrainerTeam(
            actor,
            job,
            job_id,
            self.journal.term,
            timings.coordinator.ask_rank_limit_s,
        )
        self.watch = TrainerWatch(
            self.team,
            self.roster,
            former=self.journal.trainers().ranks if came_back else (),
            patience_s=job.training.patience_s,
            wanted=job.training.ranks,
            event=event,
            lost=lambda rank, reason: self.recovery.lost(rank, reason),
        )
        self.states = TrainingStates(
            actor,
            self.progress.schedule,
            team=self.team,
            roster=self.roster,
            store=store,
            journal=self.journal,
            record=self.record,
            used=lambda iteration: self.rollouts.release(iteration),
            checkpointed=on.saved,
            exported=on.exported,
        )
        self.recovery = TrainerRecovery(
            self.team,
            self.watch,
            self.states,
            phase=self.phase,
            progress=self.progress,
            publications=self.publications,
            journal=self.journal,
            record=self.record,
            listens_until=listens_until,
            replace=on.replace,
            fail=on.fail,
        )

        texts = [prompt.text for prompt in files.train.items]
        prompts = TrainingPrompts(job, texts, sorts=self.journal.sorts_prompts)
        self.rollouts = RolloutPhase(
            job,
            prompts,
            requests=self.requests,
            phase=self.phase,
            progress=self.progress,
            journal=self.journal,
            record=self.record,
            store=store,
            completed=on.rolled_out,
            fail=on.fail,
        )
        self.training = TrainingPhase(
            job,
            team=self.team,
            phase=self.phase,
            progress=self.progress,
            rollouts=self.rollouts,
            first_trained=on.first_trained,
            trained=on.trained,
        )
        self.exploration = ExplorationPhase(
            job,
            prompts,
            requests=self.requests,
            phase=self.phase,
            progress=self.progress,
            shares=shares,
            in_turn=actor.call_in_turn,
            event=event,
            explored=on.explored,
        )
        self.validations = Validations(
            job,
            [prompt.text for prompt in files.validation.items],
            requests=self.requests,
            progress=self.progress,
            record=self.record,
            store=store,
            done=on.validated,
            fail=on.fail,
        )
        self.briefing = NodeBriefing(
            fleet,
            actor,
            self.dispatcher,
            job.work,
            store=store,
            publications=self.publications,
            shares=shares,
            is_over=lambda: self.phase.over,
            trainers=lambda: self.team.names,
            seconds_left=self._seconds_left,
            timings=timings,
            hub_files=setup.hub_files,
        )
        self.publisher = WeightsPublisher(
            team=self.team,
            publications=self.publications,
            briefing=self.briefing,
            rollouts=self.rollouts,
            validations=self.validations,
            journal=self.journal,
            record=self.record,
            published=on.published,
        )

    def _seconds_left(self) -> float | None:
        """Until training ends, where previews count only if they are there by then."""
        if self.phase.name != "train" or self.job.exploration.budget != "window":
            return None
        left_s = self.progress.window.predict() - self.phase.seconds
        return left_s if 0 < left_s < math.inf else None
