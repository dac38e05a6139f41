"""The job runner: carries out one job, as the iteration state machine says.

Messages in: NodeReport, CancelJob (coordinator); WorkerReport (group leaders);
TrainerReport (trainer ranks).
Messages out: those of the trainer team (trainer ranks). What nodes are to do goes into their plans.
The coordinator, in the same process, is called.

It is the only one that ends an iteration. It decides nothing itself: `IterationMachine` says what
follows, and the parts of the job do it. What it needs to go on after a kill is in the journal
before it acts on it; a runner that comes back finds the trainers and nodes as they are and submits
the same requests again. When trainers are lost another runner takes this one's place, as after a
kill, and other trainers go on from the state that they left. Whatever else goes wrong ends the job
with a reason, resumable.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial

import structlog

from spotlight.actors.coordinator.fleet import TenantFleet
from spotlight.actors.coordinator.job.job_parts import Callbacks, JobParts, JobSetup
from spotlight.actors.coordinator.job.job_status import status_of, status_pause_s
from spotlight.actors.coordinator.tenant.request_queue import Ended
from spotlight.actors.protocol import (
    CancelJob,
    JobStatus,
    NodeReport,
    Outcome,
    TrainerReport,
    WorkerReport,
)
from spotlight.actors.runtime import (
    Actor,
    ActorRef,
    Message,
    from_this_process,
    garbage,
    handles,
)
from spotlight.policies import iteration as step
from spotlight.policies.dispatch.instructions import RequestsFinished
from spotlight.record import run_events
from spotlight.types import Request

log = structlog.get_logger(__name__)

_MOST_REPORTS = 32_768
"""That wait at the dispatcher: thousands of workers may speak while it writes its journal."""
_REPEAT_EVERY = 5
"""Reminders between two repetitions of what may have been lost."""


class JobRunner(Actor):
    """See the module's docstring.

    Args:
        fleet: the nodes, as this asks of them.
        coordinator: who may cancel the job.
        nodes: who is there already.
        on_status: called with the job's status, now and then.
        on_end: called once with the last status; the runner is to be stopped then.
        on_loss: called once when the trainers are lost: the runner is to be stopped, and the job to
            be run again from what they left, with whoever is there.
    """

    def __init__(
        self,
        setup: JobSetup,
        fleet: TenantFleet,
        *,
        coordinator: ActorRef,
        nodes: tuple[NodeReport, ...],
        on_status: Callable[[JobStatus], None],
        on_end: Callable[[JobStatus], None],
        on_loss: Callable[[], None],
    ) -> None:
        self._setup = setup
        self._job = setup.job
        self._timings = setup.timings.coordinator
        self._coordinator = coordinator
        self._waiting_nodes = nodes
        self.ended: JobStatus | None = None
        """Its last status."""
        self._on_status = on_status
        self._on_loss = on_loss
        callbacks = Callbacks(
            requests_ended=lambda ended: self.call_in_turn(partial(self._end_requests, ended)),
            rolled_out=lambda iteration: self._carry_out(self._machine.rolled_out(iteration)),
            first_trained=lambda iteration: self._carry_out(self._machine.first_trained(iteration)),
            trained=self._end_training,
            published=lambda version: self._carry_out(self._machine.weights_published(version)),
            explored=lambda number, ready: self._carry_out(self._machine.explored(number, ready)),
            validated=lambda version: self._carry_out(self._machine.validation_done(version)),
            saved=lambda completed: self._carry_out(self._machine.progress_saved(completed)),
            exported=lambda: self._carry_out(self._machine.exported()),
            replace=self._replace,
            fail=partial(self._end, "failed"),
            stop=self._stop_for,
        )
        self._parts = parts = JobParts(self, setup, fleet, callbacks)
        self._on_end = partial(parts.mirroring.end, then=on_end)
        self._phase, self._progress, self._journal = parts.phase, parts.progress, parts.journal
        self._record, self._team = parts.record, parts.team
        self._machine = parts.progress.machine(parts.publications.versions)
        self._to_do: deque[step.Instruction] = deque()
        """What the machine said; the first is being done."""
        self._has_begun = False
        self._reminders = 0

    # --- who may say what ---

    def _from_coordinator(self, message: Message) -> bool:
        return self.sender == self._coordinator

    def _from_the_worker(self, message: WorkerReport) -> bool:
        return self._parts.roster.may_report(message.worker, self.sender)

    def _from_its_rank(self, message: TrainerReport) -> bool:
        return self._team.is_rank(self.sender, message.rank)

    # --- life ---

    async def started(self) -> None:
        """Start the dispatcher, and meet the nodes that are there."""
        journal, event = self._journal, self._record.event
        resumed = self._machine.completed if journal.term > 1 else None
        event(
            run_events.RunStarted(
                job=self._job.name, resumed_from_iteration=resumed, term=journal.term
            )
        )
        if journal.dropped:
            event(run_events.JournalTailDropped(what=journal.dropped))
        if not self._setup.came_back:
            self._record.write(journal.begin_again)
        dispatcher = self._parts.dispatcher
        await self.spawn(lambda: dispatcher, "dispatcher", linked=True, mailbox=_MOST_REPORTS)
        self._enter("preparing")
        self.run_task(self._report_status())
        self.run_task(self._remind())
        for node in self._waiting_nodes:
            self.tell(self.ref, node)

    async def stopping(self, reason: str) -> None:
        """Leave the run folder resumable and the nodes warm."""
        try:
            outcome: Outcome = "cancelled" if reason == "stopped" else "failed"
            self._end(outcome, f"the job runner {reason}")
            if self._phase.outcome == "finished":
                for leftovers in ("samples", "commits", "state", "export"):
                    self._setup.store.delete(leftovers)
            await self._setup.store.aclose()
            await self._parts.callbacks.aclose(self._timings.trackers_stop_s)
        finally:  # the folder is free even if the store did not close in time
            self._record.close()

    def aborted(self) -> None:
        """Leave the run folder as a kill does."""
        self._record.close()

    @handles(CancelJob, only=_from_coordinator)
    async def on_cancel(self, message: CancelJob) -> None:
        """End the job; it can be resumed."""
        self._end("cancelled", message.reason)

    def _stop_for(self, callback: str, reason: str) -> None:
        async def stop() -> None:
            self._end("cancelled", f"stopped by the callback `{callback}`: {reason}")

        self.call_in_turn(stop)

    def _end(self, outcome: Outcome, reason: str) -> None:
        if self._phase.over:
            return
        self._phase.outcome, self._phase.reason = outcome, reason
        self._enter("finished")
        self._record.event(run_events.RunFinished(outcome=outcome, reason=reason))
        self._parts.briefing.end_job()
        self.ended = self._status()
        if self._parts.callbacks.running:
            self.run_task(self._end_after_callbacks(self.ended))
        else:
            self._on_end(self.ended)

    async def _end_after_callbacks(self, status: JobStatus) -> None:
        await self._parts.callbacks.aclose(self._timings.trackers_close_s)
        for trouble in self._parts.callbacks.troubles():
            self._record.event(trouble)
        self._on_end(status)

    def _replace(self) -> None:
        self._phase.replaced = True
        self._on_loss()

    async def _report_status(self) -> None:
        while not self._phase.over:
            status = self._status()
            self._on_status(status)
            lines = len(status.workers) + len(status.validation)
            await asyncio.sleep(status_pause_s(lines, self._timings.status_period_s))

    def _status(self) -> JobStatus:
        return status_of(self._parts, self._machine.completed, len(self.system.dead_letters))

    async def _remind(self) -> None:
        while not self._phase.over:
            await asyncio.sleep(self._timings.remind_s)
            self.call_in_turn(self._repeat)

    async def _repeat(self) -> None:
        """Go on waiting for trainers, and repeat what may have been lost."""
        self._reminders += 1
        self._record.write(self._record.run.require_there)
        self._parts.watch.check()
        if why := self._parts.fleet.why_nobody_can_train(self._job.training.ranks):
            return self._end("failed", why)
        await self._assemble()
        self._parts.publisher.publish_again(self._machine.completed)
        again = self._reminders % _REPEAT_EVERY == 0
        if again:
            self._team.remind()
        self._parts.briefing.repeat(everything=again)

    # --- nodes ---

    @handles(NodeReport, only=from_this_process)
    async def on_node_report(self, message: NodeReport) -> None:
        """A node is there, with what it has; others pull weights from it."""
        parts = self._parts
        if self._phase.over or not (heard := parts.membership.take_in(message)):
            return
        if heard.has_news:
            parts.watch.joined(message)
        parts.briefing.note(message, has_changed=heard.has_news)
        if heard.has_news:
            await self._assemble()
            parts.briefing.share_backlog()

    def lose_node(self, name: str, reason: str, *, announced: bool) -> None:
        """In the runner's next turn: a node is out of reach with its workers, and what they held is
        queued again. `announced`: it had notice, and left.
        """

        async def lose() -> None:
            parts = self._parts
            parts.membership.lose(name, reason, announced=announced)
            parts.watch.out_of_reach(name, reason, announced=announced)
            parts.briefing.node_gone(name)

        self.call_in_turn(lose, lane="system")  # in order with what nodes report

    @handles(WorkerReport, only=_from_the_worker)
    async def on_worker_report(self, message: WorkerReport) -> None:
        """What the worker does from now on, and whether it can serve at all."""
        self._parts.membership.note(message)

    # --- trainers ---

    async def _assemble(self) -> None:
        """Begin as soon as those are there who train, or go on without them for a while."""
        parts, team = self._parts, self._team
        appointed = await parts.recovery.assemble()
        if appointed is None:
            return
        at = appointed.at
        if at.origin == "trainers":
            self._record.event(run_events.TrainersFound(iteration=at.completed))
        elif team.ranks:
            team.build(at.completed, appointed.state)
            parts.briefing.replace_trainers(team.term)
        if not appointed.begins:
            return
        self._machine = self._progress.machine(parts.publications.versions)
        if at.origin == "trainers" or at.completed in parts.publications:
            self._begin(can_save=appointed.standing == at.completed)

    def _begin(self, *, can_save: bool = False) -> None:
        """Once: with trainers that are ready, or weights that carry the job until they are."""
        if not self._has_begun:
            self._has_begun = True
            machine = self._machine
            at, committed = machine.completed, machine.committed
            self._carry_out(machine.start())
            self._parts.states.go_on(at, committed, can_save=can_save)

    @handles(TrainerReport, only=_from_its_rank)
    async def on_trainer_report(self, message: TrainerReport) -> None:
        """A rank says where it stands, and what came of an order; an order is done when all ranks
        that have it say so.
        """
        team, rank = self._team, message.rank
        if message.error:
            return self._fail_training(message)
        team.start_others(message)
        if message.trained is not None:
            self._parts.training.rank_trained(rank, message.trained)
        elif message.published is not None:
            self._parts.publisher.rank_published(rank, message.published)
        elif message.saved is not None:
            self._parts.states.rank_saved(rank, message.saved)
        elif message.exported is not None:
            await self._parts.states.rank_exported(rank, message.exported)
        elif message.completed >= 0 and team.answered("start", message.term, rank):
            self._record.event(self._parts.recovery.built())
            self._begin()

    def _fail_training(self, report: TrainerReport) -> None:
        """Training cannot go on, or not with these ranks."""
        problem = f"trainer rank {report.rank}: {report.error}"
        if report.lost_state:
            self._parts.states.forget()
        if report.lost_others:
            self.run_task(self._recover_later(problem))
        else:
            self._end("failed", problem)

    async def _recover_later(self, problem: str) -> None:
        """Which rank was lost is worth knowing: its worker is not to be appointed again."""
        await asyncio.sleep(self._timings.lost_rank_pause_s)
        self._parts.recovery.recover(problem)

    # --- requests ---

    async def _end_requests(self, ended: Ended) -> None:
        """Requests are finished, in any order and each once, or given up."""
        parts = self._parts
        if isinstance(ended, RequestsFinished):
            parts.exploration.finished(ended.of("preview"))
            parts.validations.finished(ended.of("evaluation"))
            parts.rollouts.finished(ended.of("rollout"), restored=ended.restored)
        else:
            parts.exploration.given_up(ended.of("preview"), ended.reason)
            parts.validations.given_up(ended.of("evaluation"), ended.reason)
            parts.rollouts.given_up(ended.of("rollout"), ended.reason)

    # --- what the machine says ---

    def _carry_out(self, instructions: Iterable[step.Instruction]) -> None:
        """Do them in order; what follows from one comes after all that were there before."""
        evaluation: list[Request] = []
        busy = bool(self._to_do)
        self._to_do += instructions
        while self._to_do and not busy and not self._phase.over:
            match self._to_do[0]:
                case step.PublishWeights(version, validated):
                    self._enter("publish")
                    self._parts.publisher.publish(version, validated=validated)
                case step.BeginRollout(iteration):
                    self._enter("rollout")
                    if self._parts.rollouts.begin(iteration):
                        self._bar()
                        self._parts.rollouts.submit()
                case step.BeginTraining(iteration):
                    self._enter("train")
                    self._bar(self._team.names)
                    self._parts.training.begin(iteration)
                case step.SettleSamples(iteration):
                    self._parts.rollouts.settle(
                        iteration, changed=self._parts.exploration.settle(iteration)
                    )
                case step.GoOnTraining(iteration):
                    self._parts.training.go_on(iteration)
                case step.BeginExploration(iteration):
                    self._begin_exploration(iteration)
                case step.EndExploration(iteration):
                    self._parts.exploration.end(iteration)
                case step.BeginValidation(version):
                    if version == self._job.iterations:
                        self._bar()
                    evaluation += self._parts.validations.start(version)
                case step.RecordIteration(iteration):
                    self._record_iteration(iteration)
                case step.SaveProgress(completed) | step.KeepState(completed):
                    self._parts.states.save(completed)
                case step.CommitProgress(completed):
                    self._progress.commit(completed)
                case step.ExportWeights():
                    self.run_task(self._parts.states.export(self._machine.completed))
                case step.Finish():
                    self._end("finished", "")
            self._to_do.popleft()
        self._parts.requests.submit(evaluation)  # least urgent: not to be planned for alone

    def _end_training(self, iteration: int) -> None:
        if self._job.exploration.budget == "fixed":
            self._bar()  # help to finish the exploration
        self._carry_out(self._machine.trained(iteration))

    def _begin_exploration(self, iteration: int) -> None:
        if self._job.exploration.weights == "fresh":  # otherwise it goes on beside training
            self._enter("explore")
            self._progress.open_metrics(iteration)
            self._bar()
        self._parts.exploration.begin(iteration)

    def _record_iteration(self, iteration: int) -> None:
        counters = self._parts.table.counters
        scoring_s, counters.scoring_s = counters.scoring_s, 0.0
        self._progress.end_iteration(iteration, scoring_s, self._parts.profile.times)
        if not self._phase.over:  # otherwise nothing is settled
            self._parts.exploration.release()
        garbage.collect()  # the next samples wait for weights that trainers publish meanwhile

    def _enter(self, phase: str) -> None:
        self._phase.enter(phase)
        self._record.event(run_events.PhaseBegan(iteration=self._machine.completed, phase=phase))

    def _bar(self, workers: frozenset[str] = frozenset()) -> None:
        """Only these, who train, get no requests."""
        self._parts.membership.bar(workers)
        self._parts.briefing.share_backlog()
