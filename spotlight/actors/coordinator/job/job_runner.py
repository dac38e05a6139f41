"""The job runner: carries out one job, as the iteration state machine says.

Messages in: NodeReport, CancelJob (coordinator); WorkerReport (group leaders);
TrainerReport (trainer ranks).
Messages out: those of the trainer team (trainer ranks). What nodes are to do goes into their plans.
The coordinator, in the same process, is called.

It is the only one that ends an iteration. It decides nothing itself: `IterationMachine` says what
follows, and the parts of the job do it. What it needs to go on after a kill is in the journal
before it acts on it; a runner that comes back finds the trainers and nodes as they are and submits
the same requests again. When trainers are lost another runner takes this one's place, as after a
kill, and other trainers go on from the state that they left. So it is, after a while, when the disk
was full. Whatever else goes wrong ends the job with a reason, resumable.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial

import msgspec

from spotlight.actors.coordinator.job.exploration_phase import ExplorationPhase
from spotlight.actors.coordinator.job.gradient_work import GradientWork
from spotlight.actors.coordinator.job.job_money import JobMoney
from spotlight.actors.coordinator.job.job_phase import JobPhase
from spotlight.actors.coordinator.job.job_progress import JobProgress
from spotlight.actors.coordinator.job.job_record import JobRecord
from spotlight.actors.coordinator.job.job_status import status_of
from spotlight.actors.coordinator.job.mirroring import Mirroring, MirrorPlace
from spotlight.actors.coordinator.job.random_groups import RandomGroups
from spotlight.actors.coordinator.job.rollout_phase import RolloutPhase
from spotlight.actors.coordinator.job.run_record import RunRecord
from spotlight.actors.coordinator.job.sample_pictures import SamplePictures
from spotlight.actors.coordinator.job.trainers import Trainers
from spotlight.actors.coordinator.job.training_phase import TrainingPhase
from spotlight.actors.coordinator.job.training_state import TrainingStates
from spotlight.actors.coordinator.job.validations import Validations
from spotlight.actors.coordinator.job.waited_previews import WaitedPreviews
from spotlight.actors.coordinator.job.weights_publisher import WeightsPublisher
from spotlight.actors.coordinator.tenant.job_journal import Identity, JobJournal
from spotlight.actors.coordinator.tenant.request_plans import TrainingPrompts
from spotlight.actors.coordinator.tenant.request_queue import Ended
from spotlight.actors.coordinator.tenant.step_profile import StepProfile
from spotlight.actors.coordinator.tenant.tenant import IMAGES, Service, Surroundings, Tenant
from spotlight.actors.protocol.gradients import SliceOrder
from spotlight.actors.protocol.trainer import TrainerReport
from spotlight.actors.protocol.up import NodeReport
from spotlight.actors.protocol.users import JobStatus, Outcome
from spotlight.actors.runtime import (
    garbage,
    handles,
)
from spotlight.jobs import JobSpec
from spotlight.jobs.hub_names import HubFile
from spotlight.policies import iteration as step
from spotlight.policies.money.prices import Prices
from spotlight.policies.requests.instructions import RequestsFinished
from spotlight.policies.resume import ResumePoint
from spotlight.preflight.checks import JobFiles
from spotlight.record import run_events
from spotlight.store.run_folder import RunFolder
from spotlight.trackers import CallbackThread
from spotlight.trackers.building import named_trackers
from spotlight.trackers.tracked_run import TrackedRun
from spotlight.types import Request

_MOST_REPORTS = 32_768
"""Most reports that wait at the dispatcher: thousands of workers may speak while it writes its
journal."""
_REPEAT_EVERY = 5
"""Reminders between two repetitions of what may have been lost."""


@dataclass(frozen=True)
class JobSetup:
    """What a job is made from."""

    job: JobSpec
    identity: Identity
    folder: RunFolder
    files: JobFiles
    """What the files that the job names hold."""
    came_back: bool
    """An earlier runner was ended in the middle of this job, with its coordinator or because
    trainers were lost, and its nodes may be there."""
    mirror: MirrorPlace | None
    """The run is copied to there."""
    clock: Callable[[], float]
    """The wall clock, seconds since 1970."""
    hub_files: tuple[HubFile, ...] = ()
    """The checkpoint has these files, if it is one of the hub."""

    def service(self) -> Service:
        """What the job wants of the nodes."""
        job = self.job
        return Service(
            id=self.identity.job_id,
            title=job.name,
            owner=self.identity.owner,
            work=job.work,
            checkpoint=self.files.checkpoint,
            hub_files=self.hub_files,
            metadata=self.files.metadata,
            images=self.files.images,
            degree=job.degree,
            score_attempts=job.scoring.attempts,
            trained_on=job.trained_on,
        )

    def listen_s(self, around: Surroundings) -> float:
        """What nodes still do is told by then; until then nothing is granted."""
        times = around.timings.coordinator
        if not self.came_back:
            return 0.0
        return times.takeover_s if around.nodes else times.listen_s


class JobRunner(Tenant):
    """See the module's docstring."""

    def __init__(self, setup: JobSetup, around: Surroundings) -> None:
        self.spec = job = setup.job
        files, folder, identity = setup.files, setup.folder, setup.identity
        self.callbacks = CallbackThread(
            named_trackers(_tracked(setup)), self._stop_for, troubled=self._tracker_failed
        )
        folder.keep_states(around.timings.coordinator.states_kept_s)
        run = RunRecord(folder, self.callbacks, clock=setup.clock, came_back=setup.came_back)
        service = setup.service()
        log = service.log()
        self.phase = JobPhase(run)
        self.record = JobRecord(run, log, self)
        super().__init__(
            around,
            service,
            log,
            journal=JobJournal(folder.journal, around.store, self.record.stop_for),
            profile=StepProfile(files.checkpoint.fingerprint, run.step_times()),
            came_back=setup.came_back,
            listen_s=setup.listen_s(around),
        )
        self.money = JobMoney(self)
        close_s = self.timings.coordinator.trackers_close_s
        self.mirroring = Mirroring(
            self, setup.mirror, folder, identity.job_id, run.tally, close_limit_s=close_s
        )
        self.progress = JobProgress(
            job,
            files.categories,
            journal=self.journal,
            record=self.record,
            mirroring=self.mirroring,
        )
        texts = [prompt.text for prompt in files.train.items]
        prompts = TrainingPrompts(job, texts, sorts=self.journal.sorts_prompts)
        self.rollouts = RolloutPhase(self, prompts)
        self.exploration = ExplorationPhase(self, prompts)
        self.random_groups = RandomGroups(self, prompts)
        self.validations = Validations(self, [prompt.text for prompt in files.validation.items])
        self.pictures = SamplePictures(self)
        self.training = TrainingPhase(self)
        self.gradients = GradientWork(self)
        self.waited_previews = WaitedPreviews(self)
        self.publisher = WeightsPublisher(self)
        self.states = TrainingStates(self)
        self.team = Trainers(self)
        self.machine = self.progress.machine(self.publications.versions)
        self._to_do: deque[step.Instruction] = deque()
        """What the machine said; the first is being done."""

    # --- who may say what ---

    def _from_its_rank(self, message: TrainerReport) -> bool:
        return self.team.is_rank(self.sender, message.rank)

    # --- life ---

    @property
    def is_over(self) -> bool:
        """Whether this runner has nothing more to do."""
        return self.phase.over

    async def started(self) -> None:
        """Say that the job begins, or goes on."""
        journal = self.journal
        resumed = self.machine.completed if journal.term > 1 else None
        self.event(
            run_events.RunStarted(
                job=self.spec.name, resumed_from_iteration=resumed, term=journal.term
            )
        )
        if journal.dropped:
            self.event(run_events.JournalTailDropped(what=journal.dropped))
        if not self.came_back:
            self.record.write(journal.begin_again)
        self.has_begun = self.came_back or not self.phase.over
        self.money.begin()
        self._enter("preparing")
        await super().started()

    async def stopping(self, reason: str) -> None:
        """Leave the run folder resumable and the nodes warm. The end of the coordinator is none of
        the job: the next one goes on with it."""
        try:
            if reason == "crashed":
                self.fail("the job runner crashed; see the coordinator's log")
            elif not self.phase.over:
                self.log.lines.info("job_left_to_the_next_coordinator")
            if self.phase.outcome == "finished":
                for leftovers in ("samples", "commits", "state", "export", IMAGES):
                    self.store.delete(leftovers)
            await self.store.aclose()
            await self.callbacks.aclose(self.timings.coordinator.trackers_stop_s)
        finally:  # the folder is free even if the store did not close in time
            self.record.close()

    def aborted(self) -> None:
        """Leave the run folder as a kill does."""
        self.record.close()

    def event(self, event: run_events.RunEvent) -> None:
        """Append to events.jsonl, and tell the log if people want to know."""
        self.record.event(event)

    def report(self) -> JobStatus:
        """What a user is told."""
        return status_of(self)

    def end(self, outcome: Outcome, reason: str) -> None:
        """The job has ended; it can be resumed unless it is finished."""
        if self.phase.over:
            return
        self.phase.outcome, self.phase.reason = outcome, reason
        self._enter("finished")
        self.event(run_events.RunFinished(outcome=outcome, reason=reason))
        self.briefing.end_job()
        self.ended = self.report()
        if self.callbacks.running or self.mirroring.status is not None:
            self.run_task(self._end_after_others(self.ended))
        else:
            self.around.coordinator.tenant_ended(self)

    def fail(self, reason: str) -> None:
        """The job has failed, for this reason."""
        self.end("failed", reason)

    async def _end_after_others(self, status: JobStatus) -> None:
        """Callbacks have time to end, and the last state of the run to be copied."""
        if self.callbacks.running:
            await self.callbacks.aclose(self.timings.coordinator.trackers_close_s)
            for trouble in self.callbacks.troubles():
                self.event(trouble)
        if self.mirroring.status is not None:
            await self.mirroring.finish()
        self.ended = msgspec.structs.replace(status, mirror=self.mirroring.status)
        self.around.coordinator.tenant_ended(self)

    def _tracker_failed(self, trouble: run_events.CallbackTrouble) -> None:
        """Whoever looks at the run is told at once; how often it failed is told at the end."""

        async def tell() -> None:
            if not self.phase.over:
                self.event(trouble)

        self.call_in_turn(tell)

    def _stop_for(self, callback: str, reason: str) -> None:
        async def stop() -> None:
            self.end("cancelled", f"stopped by the callback `{callback}`: {reason}")

        self.call_in_turn(stop)

    def replace(self) -> None:
        """The trainers are lost: another runner is to go on from what they left, with whoever is
        there."""
        self.phase.replaced = True
        self.around.coordinator.run_again(self)

    def wait_for_room(self, reason: str) -> None:
        """The disk is full: another runner is to go on from what is there when it is not any
        more."""
        if not self.phase.over:
            self.full = reason
            self.replace()

    def remind(self, *, everything: bool) -> None:
        """In its next turn: go on waiting for trainers, and repeat what may have been lost."""
        self.call_in_turn(partial(self._remind_others, everything=everything))

    async def _remind_others(self, *, everything: bool) -> None:
        run, clock_s = self.record.run, self.timings.coordinator.clock_s
        self.record.write(run.require_there)
        self.record.write(lambda: run.keep_time(clock_s))
        self.team.watch()
        self.money.note(self.money.spent, run.time_s())
        if why := self.nodes.why_nobody_can_train(self.spec.training.ranks):
            return self.fail(why)
        await self.team.assemble()
        self.publisher.publish_again(self.machine.completed)
        self._look_for_lost_weights()
        if everything:
            self.team.remind()
        self.briefing.repeat(everything=everything)

    def _look_for_lost_weights(self) -> None:
        """No node may have the weights any more with which samples that were lost are to be made
        again: they are made with newer ones. Or with which previews or a validation are to be made,
        as their trainers have trained on: others make them again, from the state before."""
        for version in sorted(self.rollouts.needs_weights_of):
            if self.publications.is_lost(version):
                self.publisher.forget(version)
                self.rollouts.begin_with_newer()
        if not self.team.machine.is_idle:
            return
        for version in sorted(self.machine.needs_weights_of):
            if self.publications.is_lost(version):
                self.publisher.forget(version)
                return self.team.recover(f"no node has the weights of version {version} any more")

    # --- nodes ---

    def node_came(self, node: NodeReport) -> None:
        """It may have ranks that train."""
        self.money.node_came(node)
        self.team.joined(node)

    async def nodes_changed(self) -> None:
        """Those may be there now who can train, or compute gradients."""
        await self.team.assemble()
        self.gradients.workers.assign()

    def node_gone(self, name: str, reason: str, *, announced: bool) -> None:
        """Ranks on it are out of reach."""
        self.team.out_of_reach(name, reason, announced=announced)

    def run_time_s(self) -> float:
        """Run time now."""
        return self.record.run.time_s()

    @property
    def prices(self) -> Prices:
        """What its nodes cost."""
        return self.money.prices

    def spent(self, money: float | None, time_s: float) -> None:
        """In its next turn: what it has cost until now, which may be all that it may. The last
        status has what nodes said after the end, too."""
        if self.ended is not None:
            self.ended = msgspec.structs.replace(self.ended, spent=money)
            return

        async def note() -> None:
            self.money.note(money, time_s)

        self.call_in_turn(note)

    @property
    def trainers(self) -> frozenset[str]:
        """The workers that train, by name."""
        return self.team.machine.names

    @property
    def apart(self) -> frozenset[str]:
        """See `Tenant.apart`."""
        return self.trainers | self.gradients.workers.computing

    def slice_of(self, request: Request) -> SliceOrder | None:
        """See `Tenant.slice_of`."""
        return self.gradients.order_of(request)

    @property
    def seconds_left(self) -> float | None:
        """Until training ends, where previews count only if they are there by then."""
        ends_with_training = self.spec.exploration.budget == "window" and (
            not self.progress.saved.least_previews
        )
        if self.phase.name != "train" or not ends_with_training:
            return None
        left_s = self.progress.window.predict() - self.phase.seconds
        return left_s if 0 < left_s < math.inf else None

    # --- trainers ---

    def go_on_from(self, at: ResumePoint, kept: Sequence[int]) -> None:
        """It is settled where the job goes on, and which weights versions are still good; what was
        recorded later is made again."""
        self.record.write(lambda: self._rewind_to(at, kept))
        self.machine = self.progress.machine(self.publications.versions)

    def _rewind_to(self, at: ResumePoint, kept: Sequence[int]) -> None:
        match at.origin:
            case "trainers":
                self.progress.begin_at(at.completed)
            case "state":
                self.journal.rewind(at.completed, kept)
                self.publications.keep(kept)
                self.progress.rewind_to(at.completed)
            case "checkpoint":
                self.journal.save_state(None)  # what is trained again may differ from it
                self.journal.rewind(at.completed)
                self.publications.keep(())
                self.progress.begin_at(at.completed)
        self.progress.keep()

    def begin(self, *, can_save: bool) -> None:
        """Once: with trainers that are ready, or weights that carry the job until they are.
        `can_save`: the trainers can leave the state where the job stands."""
        at, committed = self.machine.completed, self.machine.committed
        self._carry_out(self.machine.start())
        self.states.go_on(at, committed, can_save=can_save)

    @handles(TrainerReport, only=_from_its_rank)
    async def on_trainer_report(self, message: TrainerReport) -> None:
        """A rank says where it stands, and what came of an order."""
        await self.team.report(message)

    # --- requests ---

    async def end_requests(self, ended: Ended) -> None:
        """Requests are finished, in any order and each once, or given up."""
        if isinstance(ended, RequestsFinished):
            self.gradients.finished(ended.of("gradient"))
            self.random_groups.finished(ended.of("random"))
            self.exploration.finished(ended.of("preview"))
            self.validations.finished(ended.of("evaluation"))
            samples = self.exploration.samples_finished(ended.of("rollout"))
            self.rollouts.finished(samples, restored=ended.restored)
        else:
            self.gradients.given_up(ended.of("gradient"), ended.reason)
            self.random_groups.given_up(ended.of("random"))
            self.exploration.given_up(ended.of("preview"), ended.reason)
            self.validations.given_up(ended.of("evaluation"), ended.reason)
            rollouts = self.exploration.samples_given_up(ended.of("rollout"), ended.reason)
            self.rollouts.given_up(rollouts, ended.reason)

    # --- what the machine says ---

    def _carry_out(self, instructions: Iterable[step.Instruction]) -> None:
        """Do them in order; what follows from one comes after all that were there before."""
        less_urgent: list[Request] = []
        busy = bool(self._to_do)
        self._to_do += instructions
        while self._to_do and not busy and not self.phase.over:
            match self._to_do[0]:
                case step.PublishWeights(version, validated):
                    self._enter("publish")
                    self.publisher.publish(version, validated=validated)
                case step.BeginRollout(iteration):
                    self._enter("rollout")
                    if self.rollouts.begin(iteration):
                        self._bar()
                        self.rollouts.submit()
                case step.BeginTraining(iteration):
                    self._enter("train")
                    self._bar(self.team.machine.names)
                    self.training.begin(iteration)
                    less_urgent += self.random_groups.begin(iteration)
                case step.SettleSamples(iteration):
                    self.rollouts.settle(iteration, changed=self.exploration.settle(iteration))
                case step.GoOnTraining(iteration):
                    self.training.go_on(iteration)
                case step.BeginExploration(iteration):
                    self._begin_exploration(iteration)
                case step.EndExploration(iteration):
                    self.exploration.end(iteration)
                case step.BeginValidation(version):
                    if version == self.spec.iterations:
                        self._bar()
                    less_urgent += self.validations.start(version)
                case step.RecordIteration(iteration):
                    self._record_iteration(iteration)
                case step.SaveProgress(completed) | step.KeepState(completed):
                    self.team.save(completed)
                case step.CommitProgress(completed):
                    self.progress.commit(completed)
                case step.ExportWeights():
                    self.run_task(self.states.export(self.machine.completed))
                case step.Finish():
                    self.end("finished", "")
            self._to_do.popleft()
        self.requests.submit(less_urgent)  # not to be planned for, or granted, before others

    # --- what its parts say ---

    def rolled_out(self, iteration: int) -> None:
        """The samples of the iteration are all there."""
        self._carry_out(self.machine.rolled_out(iteration))

    def first_trained(self, iteration: int) -> None:
        """All ranks have trained on the first part of the iteration."""
        self._carry_out(self.machine.first_trained(iteration))

    def published(self, version: int) -> None:
        """Nodes can pull the weights version."""
        self._carry_out(self.machine.weights_published(version))

    def explored(self, iteration: int, ready: bool) -> None:
        """The seeds of the iteration are chosen; `ready`: all its samples are there."""
        self._carry_out(self.machine.explored(iteration, ready))

    def validated(self, version: int) -> None:
        """The score of the weights version is on record."""
        self._carry_out(self.machine.validation_done(version))

    def saved(self, completed: int) -> None:
        """A checkpoint of so many iterations is durable."""
        self._carry_out(self.machine.progress_saved(completed))

    def exported(self) -> None:
        """The best weights are in the run folder."""
        self._carry_out(self.machine.exported())

    def trained(self, iteration: int) -> None:
        """All ranks have trained on the iteration."""
        if self.exploration.is_helped:
            self._bar()
        self._carry_out(self.machine.trained(iteration))

    def _begin_exploration(self, iteration: int) -> None:
        if self.spec.exploration.weights == "fresh":  # otherwise it goes on beside training
            self._enter("explore")
            self.progress.open_metrics(iteration)
            self._bar()
        self.exploration.begin(iteration)

    def _record_iteration(self, iteration: int) -> None:
        counters = self.table.counters
        scoring_s, counters.scoring_s = counters.scoring_s, 0.0
        self.random_groups.end()
        self.waited_previews.plan()
        self.progress.end_iteration(iteration, scoring_s, self.profile.times)
        self.pictures.show(iteration)
        if not self.phase.over:  # otherwise nothing is settled
            self.exploration.release()
            self.random_groups.release()
        garbage.collect()  # the next samples wait for weights that trainers publish meanwhile

    def _enter(self, phase: str) -> None:
        self.phase.enter(phase)
        self.event(run_events.PhaseBegan(iteration=self.machine.completed, phase=phase))

    def _bar(self, workers: frozenset[str] = frozenset()) -> None:
        """Only these, who train, get no requests."""
        self.membership.bar(workers)
        self.briefing.share_backlog()


def _tracked(setup: JobSetup) -> list[TrackedRun]:
    return [
        TrackedRun(
            id=setup.identity.job_id, job=setup.job, folder=setup.folder.path, tracker=tracker
        )
        for tracker in setup.job.trackers
    ]
