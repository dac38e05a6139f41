"""The job runner: carries out one job, as the iteration state machine says.

Messages in: JoinNode, NodeDown, NodeLeaving, CancelJob (coordinator); WeightsCopied, WeightsMissed
(nodes); CannotServe, StateChanged (group leaders); RequestsFinished, RequestsGivenUp (dispatcher);
TrainerListens, TrainerReady, Trained, Published, CheckpointSaved, TrainerFailed (trainer ranks);
Remind (itself).
Messages out: PrepareJob, HoldWeights, Demand, EndJob (nodes); SubmitRequests, CancelRequests,
ForgetRequests, BarWorkers, AddWorkers, RemoveWorkers, NodeLeaving (dispatcher); those of the
trainer team; JobStatus, JobEnded, RunAgain (coordinator).

It is the only one that ends an iteration. It decides nothing itself: `IterationMachine` says what
follows. What it needs to go on after a kill is in the journal before it acts on it; a runner that
comes back finds the trainers and nodes as they are and submits the same requests again. When
trainers are lost another runner takes this one's place, as after a kill, and begins again from the
checkpoint. Whatever else goes wrong ends the job with a reason, resumable.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import msgspec
import structlog

from spotlight.actors.coordinator.backlog_shares import BacklogShares
from spotlight.actors.coordinator.dispatcher import Dispatcher
from spotlight.actors.coordinator.exploration_record import ExplorationRecord
from spotlight.actors.coordinator.explorer import Explorer, Orders
from spotlight.actors.coordinator.job_journal import (
    Checkpoint,
    JobJournal,
    Publication,
    SavedProgress,
    Trainers,
)
from spotlight.actors.coordinator.ledger import Ledger
from spotlight.actors.coordinator.membership import NodeMembership
from spotlight.actors.coordinator.publications import Publications
from spotlight.actors.coordinator.request_plans import (
    probe_requests,
    prompts_of,
    rollout_requests,
    unexplored,
    window_start,
)
from spotlight.actors.coordinator.rollout import Rollout, training_samples
from spotlight.actors.coordinator.roster import Rank, Roster
from spotlight.actors.coordinator.run_record import IterationFigures, RunRecord, rollout_figures
from spotlight.actors.coordinator.step_profile import StepProfile
from spotlight.actors.coordinator.trainer_team import TrainerTeam
from spotlight.actors.coordinator.trainer_watch import TrainerWatch
from spotlight.actors.coordinator.validator import Validated, Validator
from spotlight.actors.protocol import (
    BarWorkers,
    CancelJob,
    CancelRequests,
    CannotServe,
    CheckpointSaved,
    EndJob,
    ForgetRequests,
    JobEnded,
    JobStatus,
    JoinNode,
    Membership,
    NodeDown,
    NodeLeaving,
    Outcome,
    PrepareJob,
    Published,
    Remind,
    RequestsFinished,
    RequestsGivenUp,
    RunAgain,
    StateChanged,
    SubmitRequests,
    Trained,
    TrainerFailed,
    TrainerListens,
    TrainerReady,
    WeightsCopied,
    WeightsMissed,
)
from spotlight.actors.protocol.delivery import try_tell
from spotlight.actors.runtime import Actor, ActorRef, Message, from_this_process, handles
from spotlight.errors import RunFolderError
from spotlight.jobs import JobSpec
from spotlight.policies import iteration as step
from spotlight.policies.dispatch.pace import Pace
from spotlight.policies.dispatch.table import RequestTable
from spotlight.policies.exploration.training_window import WindowPredictor
from spotlight.policies.iteration import IterationMachine, Schedule
from spotlight.policies.resume import resume_point
from spotlight.policies.trainer_ranks import MOST_RECOVERIES, next_recovery
from spotlight.preflight.checks import JobFiles
from spotlight.store.run_folder import RunFolder, checkpoint_path
from spotlight.timings import Timings
from spotlight.transport.tensors import ArtifactStore
from spotlight.types import BundleOffer, Request, Result

log = structlog.get_logger(__name__)

_STATUS_LINES_PER_S = 2000
_MOST_REPORTS = 32_768
"""That wait at the dispatcher: thousands of workers may speak while it writes its journal."""
_REPEAT_EVERY = 5
"""Reminders between two repetitions of what may have been lost."""


class JobRunner(Actor):
    """See the module's docstring.

    Args:
        came_back: an earlier runner was ended in the middle of this job, with its coordinator or
            because trainers were lost, and its nodes may be there.
        nodes: who is there already.
        store: the run folder's artifact store, started.
        files: what the files that the job names hold.
        timings: how long it and its actors wait.
    """

    def __init__(
        self,
        job: JobSpec,
        job_id: str,
        *,
        coordinator: ActorRef,
        folder: RunFolder,
        came_back: bool,
        nodes: tuple[JoinNode, ...],
        store: ArtifactStore,
        files: JobFiles,
        timings: Timings,
    ) -> None:
        self._job = job
        self._timings = timings
        self._job_id = job_id
        self._coordinator = coordinator
        self._record = RunRecord(folder)
        self._journal = JobJournal(folder.journal, store.endpoint, self._stop_for)
        self._came_back = came_back
        self._store = store
        self._train_prompts = files.train.items
        self._categories = files.categories
        self._roster = Roster()
        self._team = TrainerTeam(
            self,
            job,
            job_id,
            str(folder.path),
            self._journal.term,
            timings.coordinator.ask_rank_limit_s,
        )
        self._watch = TrainerWatch(
            self._team,
            self._roster,
            former=self._journal.trainers().ranks if came_back else (),
            patience_s=job.training.patience_s,
            wanted=job.training.ranks,
            event=self._event,
            lost=self._lose_trainers,
        )
        self._waiting_nodes = nodes
        self._schedulers: dict[str, ActorRef] = {}
        """Of all nodes that ever joined; one that was out of reach comes back with the same."""
        self._validations: list[tuple[int, float, float]] = []
        self._training: dict[str, float] = {}
        self._profile = StepProfile(files.checkpoint.fingerprint, self._record.step_times())
        listen_s = timings.coordinator.listen_s if came_back else 0.0
        self._table = RequestTable(
            pace=Pace(self._profile),
            first_lease=self._journal.first_lease,
            score_attempts=job.reward.attempts,
            grants_from=asyncio.get_running_loop().time() + listen_s,
            timings=timings.dispatch,
        )
        self._discarded = 0
        """Finished samples that were thrown away because newer weights were published."""
        self._demands = BacklogShares(
            job,
            job_id,
            files.checkpoint,
            roster=self._roster,
            table=self._table,
            profile=self._profile,
        )
        self._explorer = Explorer(job, groups=self._demands.groups)
        self._validator = Validator(job, files.validation.items)
        self._ledger = Ledger(self._event)
        self._to_do: deque[step.Instruction] = deque()
        """What the machine said; the first is being done."""
        self._rollout = Rollout()
        self._trained: dict[int, Trained] = {}
        self._phase = "preparing"
        self._phase_began = 0.0
        self._lasted: dict[str, float] = {}
        """Seconds, of the last phase of each name."""
        self._previews = 0
        self._reminders = 0
        self._outcome: Outcome = ""
        self._reason = ""
        self._replaced = False
        """Another runner takes this one's place."""
        self._unwritable = False
        self._begin_at(max(self._journal.progress(), default=0), warm=True)

    def _begin_at(self, completed: int, *, warm: bool) -> None:
        """Be where an iteration begins; what was recorded later is made again."""
        if not warm:
            self._journal.rewind(completed)
        known = self._journal.progress().get(completed)
        self._progress = known or SavedProgress(0, unexplored(self._job, 0), ())
        checkpoint = self._journal.checkpoint()
        validated = frozenset(self._progress.validated)
        published = self._journal.publications() if self._came_back else {}
        self._publications = Publications(published, self._roster, self._timings.weights)
        self._machine = IterationMachine(
            Schedule(
                self._job.iterations,
                self._job.validation.every,
                self._job.checkpoint_every,
                explores=_explores(self._job),
            ),
            completed=completed,
            committed=checkpoint.completed if checkpoint else 0,
            validated=validated,
            validating=frozenset(v for v in self._publications.versions if v < completed)
            - validated,
        )
        self._window = WindowPredictor(self._progress.training_seconds)
        learnt = self._journal.knowledge(completed)
        self._exploring = ExplorationRecord(
            self._job, self._progress, learnt, self._categories, self._event
        )
        self._figures = IterationFigures(completed)

    # --- who may say what ---

    def _from_coordinator(self, message: Message) -> bool:
        return self.sender == self._coordinator

    def _from_its_node(self, message: WeightsCopied | WeightsMissed) -> bool:
        node = self._roster.nodes.get(message.node)
        return node is not None and self.sender == node.scheduler

    def _from_its_leader(self, message: CannotServe) -> bool:
        workers = (worker for node in self._roster.nodes.values() for worker in node.workers)
        return any((it.worker, it.leader) == (message.worker, self.sender) for it in workers)

    def _from_the_worker(self, message: StateChanged) -> bool:
        return self._ledger.is_spoken_for(message.worker, self.sender)

    def _from_dispatcher(self, message: Message) -> bool:
        return self.sender == self._dispatcher

    def _from_rank_0(self, message: Message) -> bool:
        return self._team.is_rank(self.sender, 0)

    def _from_its_rank(self, message: TrainerReady | Trained | TrainerFailed) -> bool:
        return self._team.is_rank(self.sender, message.rank)

    # --- life ---

    async def started(self) -> None:
        """Make the job's other actors, and meet the nodes that are there."""
        self._event(
            "run_started",
            job=self._job.name,
            resumed_from_iteration=self._machine.completed if self._journal.term > 1 else None,
        )
        if self._journal.dropped:
            self._event("journal_tail_dropped", what=self._journal.dropped)
        if not self._came_back:
            self._write(self._journal.begin_again)
        self._dispatcher = await self.spawn(
            lambda: Dispatcher(
                table=self._table,
                journal=self._journal,
                discard=self._discard,
                record=self._event,
                backlog_changed=self._demand,
                timings=self._timings.dispatch,
            ),
            "dispatcher",
            linked=True,
            mailbox=_MOST_REPORTS,
        )
        self._attendance = NodeMembership(
            self,
            self._roster,
            coordinator=self._coordinator,
            dispatcher=self._dispatcher,
            ledger=self._ledger,
            event=self._event,
            timings=self._timings.rejoin,
        )
        self._enter("preparing")
        self.run_task(self._report_status())
        self.run_task(self._remind())
        for node in self._waiting_nodes:
            self.tell(self.ref, node)

    async def stopping(self, reason: str) -> None:
        """Leave the run folder resumable and the nodes warm."""
        if not self._over:
            self._end("cancelled" if reason == "stopped" else "failed", f"the job runner {reason}")
        if self._outcome == "finished":
            for leftovers in ("samples", "commits"):
                self._store.delete(leftovers)
        await self._store.aclose()
        self._record.close()

    def aborted(self) -> None:
        """Leave the run folder as a kill does."""
        self._record.close()

    @handles(CancelJob, only=_from_coordinator)
    async def on_cancel(self, message: CancelJob) -> None:
        """End the job; it can be resumed."""
        self._end("cancelled", "cancelled by the user")

    @handles(Remind, only=from_this_process)
    async def on_remind(self, message: Remind) -> None:
        """Go on waiting for trainers, and repeat what may have been lost."""
        self._reminders += 1
        self._write(self._record.require_there)
        self._watch.look()
        await self._assemble()
        again = self._reminders % _REPEAT_EVERY == 0
        if again:
            self._team.remind()
            self._inform(*self._roster.nodes.values())
        self._spread()
        self._demand(again=again)

    # --- nodes ---

    @handles(JoinNode, only=from_this_process)
    async def on_join(self, message: JoinNode) -> None:
        """A node is there, or its workers have changed."""
        if self._attendance.may_join(message):
            if self._schedulers.get(message.node) != message.scheduler:
                self._store.revoke(message.node)  # another process had that token
            self._schedulers[message.node] = message.scheduler
            self._attendance.join(message)
            self._publications.look_at(message.node)
            self._watch.joined(message)
            self._inform(message)
            await self._assemble()
            self._demand()

    @handles(NodeDown, only=_from_coordinator)
    async def on_node_down(self, message: NodeDown) -> None:
        """A node is out of reach with its workers; what they held is queued again."""
        if message.announced:
            self._store.revoke(message.node)
        self._attendance.leave(message)
        self._publications.look_at(message.node)
        self._watch.out_of_reach(message.node, message.reason)
        self._spread()

    @handles(NodeLeaving, only=_from_coordinator)
    async def on_node_leaving(self, message: NodeLeaving) -> None:
        """A node will be taken, or is not taken after all."""
        if self._attendance.accept_notice(message):
            self.tell(self._dispatcher, message)
            self._publications.look_at(message.node)
            self._spread()

    @handles(CannotServe, only=_from_its_leader)
    async def on_cannot_serve(self, message: CannotServe) -> None:
        """Others may; trainer ranks say themselves what they cannot do."""
        log.error("worker_cannot_serve", worker=message.worker, reason=message.reason)
        self._event("worker_cannot_serve", worker=message.worker, reason=message.reason)

    @handles(StateChanged, only=_from_the_worker)
    async def on_state(self, message: StateChanged) -> None:
        """The worker is in this state from now on."""
        self._ledger.note(message)

    def _inform(self, *nodes: JoinNode) -> None:
        """Say which job and which weights there are, and who trains."""
        if self._over:
            return
        for node in nodes:
            sink = self._store.writable_by(node.node)
            membership = Membership(self.ref, self._dispatcher, sink)
            prepare = PrepareJob(self._job_id, self._job, membership)
            self._attendance.inform((node,), (prepare,))
            self._team.dismiss_others(node)
        self._spread(*nodes)

    @handles(WeightsCopied, only=_from_its_node)
    async def on_weights_copied(self, message: WeightsCopied) -> None:
        """A node holds a version: others pull it from there."""
        if self._publications.copied(message):
            self._spread()

    @handles(WeightsMissed, only=_from_its_node)
    async def on_weights_missed(self, message: WeightsMissed) -> None:
        """A node could not get a version: it is sent elsewhere, or there again a little later."""
        self._publications.missed(message, self._now())
        self._spread()

    def _spread(self, *again: JoinNode) -> None:
        """Tell nodes where they pull weights from, if that is new, or `again`."""
        if self._over:
            return
        names = [node.node for node in again]
        for node, message in self._publications.directions(self._job_id, self._now(), names):
            self._attendance.inform((node,), (message,))

    def _demand(self, *, again: bool = False) -> None:
        """Tell the nodes what their groups should be good for, if it changed much, or `again`."""
        if self._over:
            return
        # Previews count only if they are there when training ends.
        left_s = self._window.predict() - self._phase_seconds()
        timed = self._phase == "train" and self._job.exploration.budget == "window"
        hurry = timed and 0 < left_s < math.inf
        due = self._demands.due(self._team.names, left_s if hurry else None, again=again)
        for node, demand in due:
            self._attendance.inform((node,), (demand,))

    # --- trainers ---

    def _lose_trainers(self, rank: Rank, reason: str) -> None:
        self._recover(f"trainer rank on {rank.worker.worker} is lost ({reason})")

    def _recover(self, problem: str) -> None:
        """Without these trainers the job begins again from its last checkpoint, with others or with
        the same, unless that was tried too often.
        """
        if self._over:
            return
        recovery = next_recovery(self._journal.trainers().last_recovery, self._saved)
        if recovery is None:
            return self._end(
                "failed",
                f"{problem}; after {MOST_RECOVERIES} recoveries without a new checkpoint the job"
                " does not try again by itself; mend the cause, then resume the run",
            )
        number, completed = recovery
        self._event("trainers_lost", reason=problem, recovery=number, goes_on_from=completed)
        log.warning("trainers_lost", reason=problem, recovery=number, goes_on_from=completed)
        self._write(lambda: self._journal.save_trainers(Trainers(last_recovery=recovery)))
        self._watch.former = ()
        if self._team.ranks and not self._over:
            self._replaced = True
            self.tell(self._coordinator, RunAgain(problem))

    async def _recover_later(self, problem: str) -> None:
        """Which rank was lost is worth knowing: its worker is not to be appointed again."""
        await asyncio.sleep(self._timings.coordinator.lost_rank_pause_s)
        self._recover(problem)

    async def _assemble(self) -> None:
        """Find the trainers again, or appoint them as soon as there are enough reserved workers."""
        ranks = () if self._team.ranks or self._over else self._watch.candidates()
        if not ranks:
            return
        self._team.ranks = ranks
        standing = await self._team.standing() if self._watch.former else []
        if self._over:
            return
        at = resume_point(
            self._progress.completed, self._saved, standing, self._publications.versions
        )
        known = self._journal.trainers()
        self._write(
            lambda: self._journal.save_trainers(msgspec.structs.replace(known, ranks=ranks))
        )
        self._write(lambda: self._begin_at(at.completed, warm=at.warm))
        self._write(lambda: self._record.rewind(at.completed, self._progress.validated))
        self._write(lambda: self._journal.save_progress(self._progress))
        if at.warm:
            self._event("trainers_found", iteration=at.completed)
            return self._go(saves=standing[0] == at.completed)
        self._team.build(at.completed)

    @property
    def _saved(self) -> int:
        """Iterations in the checkpoint that lost trainers begin again from."""
        checkpoint = self._journal.checkpoint()
        return checkpoint.completed if checkpoint else 0

    # --- what the machine says ---

    def _go(self, *, saves: bool) -> None:
        """The trainers are there; their checkpoint may be due since before a kill."""
        machine = self._machine
        due = machine.schedule.saves(machine.completed) and machine.committed < machine.completed
        if saves and due:
            self._save(machine.completed)
        self._carry_out(self._machine.start())

    def _carry_out(self, instructions: Iterable[step.Instruction]) -> None:
        """Do them in order; what follows from one comes after all that were there before."""
        evaluation: list[Request] = []
        busy = bool(self._to_do)
        self._to_do += instructions
        while self._to_do and not busy and not self._over:
            match self._to_do[0]:
                case step.PublishWeights(version, validated):
                    self._publish(version, validated)
                case step.BeginRollout(iteration):
                    self._begin_rollout(iteration)
                case step.BeginTraining(iteration):
                    self._begin_training(iteration)
                case step.BeginExploration(iteration):
                    self._begin_exploration(iteration)
                case step.EndExploration(iteration):
                    self._explore(self._explorer.stop(iteration, self._now()))
                case step.BeginValidation(version):
                    if version == self._job.iterations:
                        self._bar(frozenset())
                    evaluation += self._validator.start(version)
                case step.RecordIteration(iteration):
                    self._record_iteration(iteration)
                case step.SaveProgress(completed):
                    self._save(completed)
                case step.CommitProgress(completed):
                    self._commit(completed)
                case step.Finish():
                    self._end("finished", "")
            self._to_do.popleft()
        self._submit(tuple(evaluation))  # the least urgent: it must not be planned for alone

    @handles(TrainerListens, only=_from_rank_0)
    async def on_trainer_listens(self, message: TrainerListens) -> None:
        """Have the other ranks come there."""
        self._team.come_to(message)

    @handles(TrainerReady, only=_from_its_rank)
    async def on_trainer_ready(self, message: TrainerReady) -> None:
        """Begin once all ranks are built."""
        if self._team.answered("start", self._machine.completed, message.rank):
            self._go(saves=False)

    @handles(TrainerFailed, only=_from_its_rank)
    async def on_trainer_failed(self, message: TrainerFailed) -> None:
        """Training cannot go on, or not with these ranks."""
        problem = f"trainer rank {message.rank}: {message.error}"
        if message.lost_others:
            self.run_task(self._recover_later(problem))
        else:
            self._end("failed", problem)

    def _publish(self, version: int, validated: bool) -> None:
        self._enter("publish")
        if version in self._publications:  # by an earlier coordinator of this run
            return self._published(version)
        self._team.publish(version, evaluation=validated)

    @handles(Published, only=_from_rank_0)
    async def on_published(self, message: Published) -> None:
        """Every node pulls; members serve the version once they have acknowledged it."""
        if not self._team.answered("publish", message.version, 0):
            return
        where = Publication(message.rollout, message.evaluation)
        keep = {message.version, message.version - 1, *self._validator.versions}
        self._discarded += self._rollout.count_outdated(keep)
        self._publications.add(message.version, where, keep)
        self._write(lambda: self._journal.save_publication(message.version, where, keep))
        self._event("weights_published", version=message.version)
        self._published(message.version)

    def _published(self, version: int) -> None:
        self._spread(*self._roster.nodes.values())
        self._carry_out(self._machine.weights_published(version))

    def _begin_rollout(self, iteration: int) -> None:
        self._enter("rollout")
        self._open_figures(iteration)
        self._figures.publish_s = self._lasted["publish"]
        self._figures.explore_s = self._lasted.pop("explore", 0.0)
        exploring = self._exploring
        if self._job.exploration.mode == "none":
            exploring.take(unexplored(self._job, iteration))
        self._figures.previews = exploring.latest.previews
        self._figures.previews_late = exploring.latest.late
        self._bar(frozenset())
        prompts = prompts_of(self._job, iteration, self._train_prompts)
        choices = exploring.choices
        requests = rollout_requests(self._job, iteration, prompts, choices)
        probe_seeds = exploring.latest.probe_seeds
        probes = probe_requests(self._job, iteration, prompts, choices, probe_seeds)
        self._rollout = Rollout(requests, probes)
        self._submit((*requests, *probes))

    def _submit(self, requests: tuple[Request, ...]) -> None:
        if requests:
            self.tell(self._dispatcher, SubmitRequests(requests))

    @handles(RequestsFinished, only=_from_dispatcher)
    async def on_finished(self, message: RequestsFinished) -> None:
        """Images come in, in any order, each once."""
        self._explore(self._explorer.finished(message.of("preview"), self._now()))
        self._judge(self._validator.finished(message.of("evaluation")))
        if samples := message.of("rollout"):
            self._drop_samples(self._rollout.take(samples, restored=message.restored))
            self._end_rollout_if_complete()

    def _drop_samples(self, results: list[Result]) -> None:
        """Nobody trains on these: whoever resumes the run must not find them either."""
        gone = [result.request.id for result in results]
        self._write(lambda: self._journal.save_requests(dict.fromkeys(gone)))
        if not self._over:
            for bundle in {result.bundle for result in results}:
                self._discard(bundle)

    @handles(RequestsGivenUp, only=_from_dispatcher)
    async def on_given_up(self, message: RequestsGivenUp) -> None:
        """Images that could not be denoised or scored."""
        if previews := message.of("preview"):
            log.warning("previews_given_up", count=len(previews), reason=message.reason)
            self._explore(self._explorer.given_up(previews, self._now()))
        self._judge(self._validator.given_up(message.of("evaluation")))
        if samples := message.of("rollout"):
            self._give_up_samples(samples, message.reason)

    def _give_up_samples(self, requests: list[Request], reason: str) -> None:
        """Each costs its prompt group, or the job."""
        self._rollout.drop_probes(requests)
        failed = [request for request in requests if self._rollout.expects(request)]
        if failed and self._job.reward.on_failure == "stop":
            self._end("failed", f"{failed[0].id} failed: {reason}")
            return
        for iteration, group, prompt in sorted({(r.iteration, r.group, r.prompt) for r in failed}):
            self._event("group_dropped", iteration=iteration, prompt=prompt, reason=reason)
            self._rollout.drop_group(group)
        self._end_rollout_if_complete()

    def _end_rollout_if_complete(self) -> None:
        if self._phase != "rollout" or not self._rollout.complete or self._over:
            return
        if not self._rollout.finished:
            self._end("failed", "every prompt group of the iteration failed; see events.jsonl")
            return
        self._figures.rollout_s = self._phase_seconds()
        self._figures.samples_restored = self._rollout.restored
        rollout_figures(self._figures, self._rollout.samples(), self._exploring.choices)
        fresh = [*self._rollout.samples(), *self._rollout.probes()]
        self._exploring.judge(fresh, self._figures)
        self._carry_out(self._machine.rolled_out(self._figures.iteration))

    def _begin_training(self, iteration: int) -> None:
        self._enter("train")
        self._bar(self._team.names)
        samples = training_samples(self._rollout.samples(), self._job.training)
        self._trained = {}
        self._team.train(iteration, window_start(self._job, iteration), samples)

    @handles(Trained, only=_from_its_rank)
    async def on_trained(self, message: Trained) -> None:
        """The iteration's update is done when every rank says so."""
        if self._phase != "train" or message.iteration != self._figures.iteration:
            return
        self._trained[message.rank] = message
        if not self._team.answered("train", message.iteration, message.rank):
            return
        # It may have begun, or ended, before this coordinator did.
        longest = max(trained.seconds for trained in self._trained.values())
        self._figures.train_s = max(self._phase_seconds(), longest)
        self._training = self._trained[0].metrics
        self._window.record(self._figures.train_s)
        if self._job.exploration.budget == "fixed":
            self._bar(frozenset())  # help to finish the exploration
        self._carry_out(self._machine.trained(message.iteration))

    def _begin_exploration(self, iteration: int) -> None:
        fresh = self._job.exploration.weights == "fresh"
        if fresh:
            self._enter("explore")
            self._open_figures(iteration)
            self._bar(frozenset())
        # Validation waits behind previews, so the end of the window is left to it.
        window_s = max(0.0, self._window.predict() - self._demands.seconds_of("evaluation"))
        self._figures.window_s = window_s if window_s < math.inf else None
        prompts = prompts_of(self._job, iteration, self._train_prompts)
        version = iteration if fresh else iteration - 1
        plan = self._exploring.plan(iteration, version, prompts, window_s)
        self._figures.exploration_share = plan.share
        self._explore(self._explorer.start(plan, self._now()))

    def _open_figures(self, iteration: int) -> None:
        if self._figures.iteration != iteration:
            self._figures = IterationFigures(iteration)

    def _explore(self, orders: Orders) -> None:
        self._table.unsubmitted_previews = self._explorer.unsubmitted
        self._submit(orders.requests)
        for kind in orders.cancel:
            self.tell(self._dispatcher, CancelRequests(kind))
        if orders.explored is not None:
            self._exploring.take(orders.explored)
            self._previews += orders.explored.previews
            iteration = orders.explored.iteration
            self._carry_out(self._machine.explored(iteration))
            self.tell(self._dispatcher, ForgetRequests("preview", iteration))

    def _judge(self, ended: list[Validated]) -> None:
        """Write scores down; a run that cannot be judged is not worth going on with."""
        for validated in ended:
            version, score = validated.version, validated.score
            if score is None:
                self._end("failed", f"no validation image of version {version} could be scored")
                continue
            self._validations.append((version, self._record.time_s(), score))
            self._write(partial(self._record.validation, version, score, validated.results))
            self._store.delete(f"validation/v{version:06d}")  # the pictures are elsewhere now
            known = tuple(sorted({*self._progress.validated, version}))
            self._progress = msgspec.structs.replace(self._progress, validated=known)
            self._write(lambda: self._journal.save_progress(self._progress))
            self.tell(self._dispatcher, ForgetRequests("evaluation", version))
            self._carry_out(self._machine.validation_done(version))

    # --- progress ---

    def _record_iteration(self, iteration: int) -> None:
        """The next iteration is settled: from now on a kill resumes there."""
        self._progress = SavedProgress(
            completed=iteration + 1,
            explored=self._exploring.latest,
            validated=self._progress.validated,
            training_seconds=self._window.durations,
            agreement=self._exploring.agreement,
            gain=self._exploring.gain,
            earned=self._exploring.earned,
        )
        counters = self._table.counters
        self._figures.scoring_s, counters.scoring_s = counters.scoring_s, 0.0
        self._write(lambda: self._record.iteration(self._figures, self._training))
        self._write(lambda: self._record.save_step_times(self._profile.times))
        self._write(self._record.sync)
        self._write(lambda: self._journal.save_progress(self._progress))
        if self._over:
            return  # nothing is settled: the samples are still needed
        self.tell(self._dispatcher, ForgetRequests("rollout", iteration))
        for bundle in self._rollout.bundles():
            self._discard(bundle)

    def _save(self, completed: int) -> None:
        self._team.save(completed, export=completed == self._job.iterations)

    @handles(CheckpointSaved, only=_from_rank_0)
    async def on_checkpoint_saved(self, message: CheckpointSaved) -> None:
        """The checkpoint is durable; whether a resumed run may start there is the machine's
        word.
        """
        if self._team.answered("save", message.iteration, 0):
            path = str(self._record.path / checkpoint_path(message.iteration))
            self._event("checkpoint_saved", iteration=message.iteration, path=path)
            self._carry_out(self._machine.progress_saved(message.iteration))

    def _commit(self, completed: int) -> None:
        checkpoint = Checkpoint(completed, checkpoint_path(completed))
        validated = tuple(v for v in self._progress.validated if v <= completed)
        self._write(lambda: self._journal.save_checkpoint(checkpoint, validated))
        self._write(lambda: self._record.keep_checkpoint(checkpoint.path))

    def _end(self, outcome: Outcome, reason: str) -> None:
        if self._over:
            return
        self._outcome, self._reason = outcome, reason
        self._enter("finished")
        self._event("run_finished", outcome=outcome, reason=reason)
        for node in self._roster.nodes.values():
            try_tell(self, node.scheduler, EndJob(self._job_id, self._journal.term))
        self.tell(self._coordinator, JobEnded(self._status()))

    # --- small things ---

    @property
    def _over(self) -> bool:
        """Whether this runner has nothing more to do."""
        return bool(self._outcome) or self._replaced

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()

    def _write(self, write: Callable[[], None]) -> None:
        """A run folder that cannot be written ends the job with the reason, and nothing that
        would have come after is written.
        """
        if self._unwritable:
            return
        try:
            write()
        except RunFolderError as error:
            self._stop_for(error)

    def _stop_for(self, error: RunFolderError) -> None:
        log.error("run_folder", reason=str(error))
        self._end("failed", str(error))
        self._unwritable = True

    def _event(self, event: str, **fields: Any) -> None:
        self._write(lambda: self._record.event(event, **fields))

    def _enter(self, phase: str) -> None:
        self._lasted[self._phase] = self._phase_seconds()
        self._phase = phase
        self._phase_began = self._record.time_s()
        self._event("phase", iteration=self._machine.completed, phase=phase)

    def _phase_seconds(self) -> float:
        return self._record.time_s() - self._phase_began

    def _bar(self, workers: frozenset[str]) -> None:
        self._roster.barred = workers
        self.tell(self._dispatcher, BarWorkers(tuple(sorted(workers))))
        self._demand()

    def _discard(self, bundle: BundleOffer) -> None:
        self._store.delete(bundle.key)

    async def _remind(self) -> None:
        while not self._over:
            await asyncio.sleep(self._timings.coordinator.remind_s)
            self.tell(self.ref, Remind())

    async def _report_status(self) -> None:
        while not self._over:
            self.tell(self._coordinator, self._status())
            lines = len(self._ledger) + len(self._validations)
            await asyncio.sleep(status_pause_s(lines, self._timings.coordinator.status_period_s))

    def _status(self) -> JobStatus:
        figures, counters = self._figures, self._table.counters
        wanted = self._job.samples_per_iteration if self._phase == "rollout" else 0
        done, made = self._rollout.finished, self._rollout.finished - self._rollout.restored
        seconds = self._phase_seconds() if self._phase == "rollout" else figures.rollout_s
        return JobStatus(
            job=self._job.name,
            phase=self._phase,
            iteration=self._machine.completed,
            iterations=self._job.iterations,
            weights_version=self._publications.newest,
            elapsed_s=self._record.time_s(),
            done=done if wanted else 0,
            wanted=wanted,
            images_per_s=made / seconds if seconds > 0 else 0.0,
            reward_mean=figures.reward_mean if figures.samples else None,
            validation=tuple((time_s, score) for _, time_s, score in self._validations),
            workers=self._ledger.statuses(self._table.groups.of),
            previews=self._previews,
            reissued=counters.reissued,
            late=counters.late,
            discarded=self._discarded,
            quarantined=tuple(counters.quarantined),
            preemptions=self._attendance.preemptions,
            dead_letters=len(self.system.dead_letters),
            outcome=self._outcome,
            reason=self._reason,
            run_folder=str(self._record.path),
            note=self._watch.note(),
        )


def status_pause_s(lines: int, period_s: float) -> float:
    """Seconds between two statuses of so many workers and validations: the more it says, the less
    often it is said; never more than once in `period_s`.
    """
    return max(period_s, lines / _STATUS_LINES_PER_S)


def _explores(job: JobSpec) -> step.Exploration:
    if job.exploration.mode == "none":
        return "never"
    return "fresh" if job.exploration.weights == "fresh" else "ahead"
