"""The job runner: carries out one job, as the iteration state machine says.

Messages in: JoinNode, NodeDown, CancelJob (coordinator); RequestsFinished, RequestsGivenUp
(dispatcher); Explored (explorer); TrainerReady, Trained, Published, CheckpointSaved, TrainerFailed
(trainer ranks).
Messages out: PrepareJob, HoldWeights, EndJob (nodes); SubmitRequests, BarWorkers, AddWorker,
RemoveWorker (dispatcher, ledger); StartExploration, StopExploration (explorer); StartTrainer,
Train, Publish, SaveCheckpoint (trainer ranks); JobStatus, JobEnded (coordinator).

It is the only one that ends an iteration. It decides nothing itself: `IterationMachine` says what
follows. Whatever goes wrong ends the job with a reason, resumable from its last commit.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
import structlog

from spotlight.actors.delivery import try_tell
from spotlight.actors.dispatcher import Dispatcher, DispatchStatistics
from spotlight.actors.explorer import Explorer
from spotlight.actors.ledger import Ledger
from spotlight.actors.messages import (
    AddWorker,
    BarWorkers,
    CancelJob,
    CheckpointSaved,
    EndJob,
    Explored,
    HoldWeights,
    JobEnded,
    JobStatus,
    JoinNode,
    Membership,
    NodeDown,
    Outcome,
    PortReserved,
    PrepareJob,
    Publish,
    Published,
    RemoveWorker,
    RequestsFinished,
    RequestsGivenUp,
    ReservePort,
    SaveCheckpoint,
    StartExploration,
    StartTrainer,
    StartValidation,
    StopExploration,
    SubmitRequests,
    Train,
    Trained,
    TrainerFailed,
    TrainerReady,
    ValidationDone,
    ValidationFailed,
    WorkerRefs,
    WorkerStatus,
)
from spotlight.actors.requests import (
    preview_settings,
    prompts_of,
    rollout_requests,
    unexplored_choices,
    window_start,
)
from spotlight.actors.rollout import Rollout, training_samples
from spotlight.actors.roster import Roster
from spotlight.actors.run_record import IterationFigures, RunRecord, rollout_figures
from spotlight.actors.runtime import ESCALATE, Actor, ActorRef, handles
from spotlight.actors.validator import Validator
from spotlight.errors import ActorError, RunFolderError
from spotlight.jobs import JobSpec
from spotlight.policies import iteration as step
from spotlight.policies.exploration import SeedChoice
from spotlight.policies.iteration import IterationMachine, Schedule
from spotlight.policies.window import WindowPredictor
from spotlight.store.run_folder import RunFolder, SavedProgress
from spotlight.transport.tensors import BundleOffer, BundleStore

log = structlog.get_logger(__name__)

_STATUS_PERIOD_S = 0.2
_ASK_LIMIT_S = 10.0


class JobRunner(Actor):
    """See the module's docstring.

    Args:
        train_prompts, validation_prompts: texts, in the order of their files.
        progress: where to go on; None for a fresh start.
        nodes: who is there already.
        store: the run folder's artifact store, started.
    """

    def __init__(
        self,
        job: JobSpec,
        job_id: str,
        *,
        coordinator: ActorRef,
        folder: RunFolder,
        progress: SavedProgress | None,
        nodes: tuple[JoinNode, ...],
        store: BundleStore,
        train_prompts: list[str],
        validation_prompts: list[str],
    ) -> None:
        self._job = job
        self._job_id = job_id
        self._coordinator = coordinator
        self._record = RunRecord(folder)
        self._progress = progress
        self._store = store
        self._train_prompts = train_prompts
        self._validation_prompts = validation_prompts
        self._roster = Roster()
        self._waiting_nodes = nodes
        completed = progress.completed if progress else 0
        self._machine = IterationMachine(
            Schedule(
                job.iterations,
                job.validation.every,
                job.checkpoint_every,
                explores=job.exploration.mode != "none",
            ),
            completed=completed,
            validated=frozenset(progress.validated) if progress else frozenset(),
        )
        self._choices = (
            [
                SeedChoice(*pair)
                for pair in zip(progress.seeds, progress.preview_rewards, strict=True)
            ]
            if progress
            else unexplored_choices(job, 0)
        )
        self._window = WindowPredictor(progress.training_seconds if progress else ())
        self._validations: list[tuple[int, float, float]] = []
        self._chosen_from = (progress.previews, progress.previews_late) if progress else (0, 0)
        self._training: dict[str, float] = {}
        self._statistics = DispatchStatistics()
        self._board: dict[str, WorkerStatus] = {}
        self._trainers_ready: set[int] = set()
        self._weights: HoldWeights | None = None
        self._figures = IterationFigures(completed)
        self._rollout = Rollout()
        self._validating: set[int] = set()
        self._trained: dict[int, Trained] = {}
        self._snapshots: dict[int, SavedProgress] = {}
        self._phase = "preparing"
        self._phase_began = 0.0
        self._seconds_per_image = 0.0
        self._previews = 0
        self._outcome: Outcome = ""
        self._reason = ""

    # --- life ---

    async def started(self) -> None:
        """Make the job's other actors, and meet the nodes that are there."""
        self._record.event(
            "run_started",
            job=self._job.name,
            resumed_from_iteration=self._machine.completed if self._progress else None,
        )
        self._dispatcher = await self.spawn(
            lambda: Dispatcher(
                statistics=self._statistics,
                discard=self._discard,
                record=self._event,
                score_attempts=self._job.reward.attempts,
            ),
            "dispatcher",
            restarts=ESCALATE,
        )
        self._ledger = await self.spawn(
            lambda: Ledger(record=self._event, board=self._board), "ledger", restarts=ESCALATE
        )
        self._explorer = await self.spawn(
            lambda: Explorer(
                self._job,
                self._dispatcher,
                workers=self._roster.free_workers,
                settings=lambda iteration: preview_settings(self._job, iteration),
            ),
            "explorer",
            restarts=ESCALATE,
        )
        self._validator = await self.spawn(
            lambda: Validator(self._job, self._dispatcher, self._validation_prompts),
            "validator",
            restarts=ESCALATE,
        )
        self._membership = Membership(self._dispatcher, self._ledger, self._store.endpoint)
        self._enter("preparing")
        self.run_task(self._report_status())
        for node in self._waiting_nodes:
            await self.on_join(node)

    async def stopping(self, reason: str) -> None:
        """Leave the run folder resumable and the nodes warm."""
        if not self._outcome:
            self._end("cancelled" if reason == "stopped" else "failed", f"the job runner {reason}")
        await self._store.aclose()
        self._record.close()

    @handles(CancelJob)
    async def on_cancel(self, message: CancelJob) -> None:
        """End the job; it can be resumed."""
        self._end("cancelled", "cancelled by the user")

    # --- nodes ---

    @handles(JoinNode)
    async def on_join(self, message: JoinNode) -> None:
        """A node is there, or its workers have changed."""
        if message.node not in self._roster.nodes:
            names = [worker.worker for worker in message.workers]
            self._event("node_joined", node=message.node, pool=message.pool, workers=names)
        came, went = self._roster.join(message)
        for worker in went:
            self._remove_worker(worker, "its process ended")
        for worker in came:
            joined = AddWorker(worker.worker, message.node, message.pool, worker.epoch)
            self._event("worker_joined", worker=worker.worker, node=message.node, pool=message.pool)
            self.tell(self._ledger, joined)
            self.tell(self._dispatcher, joined)
        try_tell(self, message.scheduler, PrepareJob(self._job_id, self._job, self._membership))
        if self._weights is not None:
            try_tell(self, message.scheduler, self._weights)
        await self._start_trainers()

    @handles(NodeDown)
    async def on_node_down(self, message: NodeDown) -> None:
        """A node is gone with its workers; what they held is queued again."""
        node = self._roster.leave(message.node)
        if node is None:
            return
        self._event("node_lost", node=node.node, pool=node.pool, reason=message.reason)
        for worker in node.workers:
            self._remove_worker(worker, message.reason)

    def _remove_worker(self, worker: WorkerRefs, reason: str) -> None:
        removed = RemoveWorker(worker.worker, reason)
        self.tell(self._dispatcher, removed)
        self.tell(self._ledger, removed)
        if self._roster.trains(worker):
            self._end(
                "failed", f"trainer rank on {worker.worker} is lost ({reason}); resume the run"
            )

    async def _start_trainers(self) -> None:
        """As soon as there are enough reserved workers."""
        ranks = self._job.training.ranks
        if not self._roster.appoint_trainers(ranks):
            return
        trainers = self._roster.trainers
        rendezvous = ""
        try:
            if ranks > 1:
                reserve = ReservePort()
                answer = await self.ask(trainers[0].trainer_rank, reserve, timeout_s=_ASK_LIMIT_S)
                assert isinstance(answer, PortReserved)
                rendezvous = answer.rendezvous
        except ActorError as error:
            self._end("failed", f"trainer rank 0 does not answer: {error}; resume the run")
            return
        checkpoint = str(self._record.path / self._progress.checkpoint) if self._progress else ""
        for rank, worker in enumerate(trainers):
            start = StartTrainer(self._job_id, self._job, rank, ranks, rendezvous, checkpoint)
            try_tell(self, worker.trainer_rank, start)

    # --- what the machine says ---

    def _carry_out(self, instructions: list[step.Instruction]) -> None:
        for instruction in instructions:
            if self._outcome:
                return
            match instruction:
                case step.PublishWeights(version, validated):
                    self._publish(version, validated)
                case step.BeginRollout(iteration):
                    self._begin_rollout(iteration)
                case step.BeginTraining(iteration):
                    self._begin_training(iteration)
                case step.BeginExploration(iteration):
                    self._begin_exploration(iteration)
                case step.EndExploration(iteration):
                    self.tell(self._explorer, StopExploration(iteration))
                case step.BeginValidation(version):
                    if version == self._job.iterations:
                        self._bar(frozenset())
                    self._validating.add(version)
                    self.tell(self._validator, StartValidation(version))
                case step.RecordIteration():
                    self._write(lambda: self._record.iteration(self._figures, self._training))
                case step.SaveProgress(completed):
                    self._save(completed)
                case step.CommitProgress(completed):
                    self._commit(completed)
                case step.Finish():
                    self._end("finished", "")

    @handles(TrainerReady)
    async def on_trainer_ready(self, message: TrainerReady) -> None:
        """Begin once all ranks are built."""
        self._trainers_ready.add(message.rank)
        if len(self._trainers_ready) == len(self._roster.trainers):
            self._carry_out(self._machine.start())

    @handles(TrainerFailed)
    async def on_trainer_failed(self, message: TrainerFailed) -> None:
        """Training cannot go on."""
        self._end("failed", f"trainer rank {message.rank}: {message.error}")

    def _publish(self, version: int, validated: bool) -> None:
        self._enter("publish")
        publish = Publish(version, validated, self._roster.publisher_store())
        try_tell(self, self._roster.trainers[0].trainer_rank, publish)

    @handles(Published)
    async def on_published(self, message: Published) -> None:
        """Every node pulls; members serve the version once they have acknowledged it."""
        keep = {message.version, message.version - 1, *self._validating}
        self._weights = HoldWeights(
            self._job_id,
            message.version,
            message.rollout,
            message.evaluation,
            tuple(sorted(version for version in keep if version >= 0)),
        )
        for node in self._roster.nodes.values():
            try_tell(self, node.scheduler, self._weights)
        self._event("weights_published", version=message.version)
        self._carry_out(self._machine.weights_published(message.version))

    def _begin_rollout(self, iteration: int) -> None:
        self._figures = IterationFigures(iteration, publish_s=self._phase_seconds())
        self._figures.previews, self._figures.previews_late = self._chosen_from
        if self._job.exploration.mode == "none":
            self._choices = unexplored_choices(self._job, iteration)
        self._enter("rollout")
        self._bar(frozenset())
        prompts = prompts_of(self._job, iteration, self._train_prompts)
        requests = rollout_requests(self._job, iteration, prompts, self._choices)
        self._rollout = Rollout(requests)
        self.tell(self._dispatcher, SubmitRequests(requests, self.ref))

    @handles(RequestsFinished)
    async def on_finished(self, message: RequestsFinished) -> None:
        """Samples come in, in any order, each once."""
        for result in message.results:
            self._rollout.take(result)
        for bundle in {result.bundle for result in message.results} - self._rollout.bundles():
            self._discard(bundle)  # of dropped prompt groups only
        self._end_rollout_if_complete()

    @handles(RequestsGivenUp)
    async def on_given_up(self, message: RequestsGivenUp) -> None:
        """What could not be denoised or scored costs its prompt group, or the job."""
        failed = [request for request in message.requests if self._rollout.expects(request)]
        if failed and self._job.reward.on_failure == "stop":
            self._end("failed", f"{failed[0].id} failed: {message.reason}")
            return
        for iteration, group, prompt in sorted({(r.iteration, r.group, r.prompt) for r in failed}):
            self._event("group_dropped", iteration=iteration, prompt=prompt, reason=message.reason)
            self._rollout.drop_group(group)
        self._end_rollout_if_complete()

    def _end_rollout_if_complete(self) -> None:
        if self._phase != "rollout" or not self._rollout.complete or self._outcome:
            return
        if not self._rollout.finished:
            self._end("failed", "every prompt group of the iteration failed; see events.jsonl")
            return
        self._figures.rollout_s = self._phase_seconds()
        workers = max(1, self._roster.free_workers())
        self._seconds_per_image = self._figures.rollout_s * workers / self._rollout.finished
        rollout_figures(self._figures, self._rollout.samples(), self._choices)
        self._carry_out(self._machine.rolled_out(self._figures.iteration))

    def _begin_training(self, iteration: int) -> None:
        self._enter("train")
        self._bar(frozenset(worker.worker for worker in self._roster.trainers))
        samples = training_samples(self._rollout.samples(), self._job.training)
        self._trained = {}
        train = Train(iteration, window_start(self._job, iteration), samples)
        for worker in self._roster.trainers:
            try_tell(self, worker.trainer_rank, train)

    @handles(Trained)
    async def on_trained(self, message: Trained) -> None:
        """The iteration's update is done when every rank says so."""
        if self._phase != "train" or message.iteration != self._figures.iteration:
            return
        self._trained[message.rank] = message
        if len(self._trained) < len(self._roster.trainers):
            return
        self._figures.train_s = self._phase_seconds()
        self._training = self._trained[0].metrics
        self._window.record(self._figures.train_s)
        if self._job.exploration.budget == "fixed":
            self._bar(frozenset())  # help to finish the exploration
        for bundle in self._rollout.bundles():
            self._discard(bundle)
        self._carry_out(self._machine.trained(message.iteration))

    def _begin_exploration(self, iteration: int) -> None:
        # Validation waits behind previews, so it gets its share of the window first.
        waiting = self._statistics.open["evaluation"]
        validation_s = waiting * self._seconds_per_image / max(1, self._roster.free_workers())
        window_s = max(0.0, self._window.predict() - validation_s)
        prompts = tuple(prompts_of(self._job, iteration, self._train_prompts))
        self.tell(self._explorer, StartExploration(iteration, iteration - 1, prompts, window_s))

    @handles(Explored)
    async def on_explored(self, message: Explored) -> None:
        """The next iteration's seeds are chosen."""
        self._chosen_from = (message.previews, message.late)
        self._choices = [
            SeedChoice(*pair) for pair in zip(message.seeds, message.preview_rewards, strict=True)
        ]
        self._previews += message.previews
        self._carry_out(self._machine.explored(message.iteration))

    @handles(ValidationDone)
    async def on_validation_done(self, message: ValidationDone) -> None:
        """Write the score down."""
        self._validating.discard(message.version)
        self._validations.append((message.version, self._record.time_s(), message.score))
        self._write(
            lambda: self._record.validation(message.version, message.score, message.results)
        )
        self._carry_out(self._machine.validation_done(message.version))

    @handles(ValidationFailed)
    async def on_validation_failed(self, message: ValidationFailed) -> None:
        """A run that cannot be judged is not worth going on with."""
        self._end("failed", f"no validation image of version {message.version} could be scored")

    # --- progress ---

    def _save(self, completed: int) -> None:
        last = completed == self._job.iterations
        checkpoint = f"checkpoints/iteration-{completed:06d}.safetensors"
        self._snapshots[completed] = SavedProgress(
            completed=completed,
            checkpoint=checkpoint,
            seeds=() if last else tuple(choice.seeds for choice in self._choices),
            preview_rewards=()
            if last
            else tuple(choice.preview_rewards for choice in self._choices),
            validated=(),
            previews=self._chosen_from[0],
            previews_late=self._chosen_from[1],
            training_seconds=self._window.durations,
        )
        save = SaveCheckpoint(
            completed,
            str(self._record.path / checkpoint),
            str(self._record.path / "export") if last else "",
        )
        try_tell(self, self._roster.trainers[0].trainer_rank, save)

    @handles(CheckpointSaved)
    async def on_checkpoint_saved(self, message: CheckpointSaved) -> None:
        """The checkpoint is durable; whether a resumed run may start there is the machine's
        word.
        """
        self._event("checkpoint_saved", iteration=message.iteration, path=message.path)
        self._carry_out(self._machine.progress_saved(message.iteration))

    def _commit(self, completed: int) -> None:
        versions = {version for version, _, _ in self._validations}
        versions |= set(self._progress.validated) if self._progress else set()
        progress = msgspec.structs.replace(
            self._snapshots.pop(completed),
            validated=tuple(sorted(version for version in versions if version <= completed)),
        )
        self._write(lambda: self._record.commit(progress))

    def _end(self, outcome: Outcome, reason: str) -> None:
        if self._outcome:
            return
        self._outcome, self._reason = outcome, reason
        self._enter("finished")
        self._event("run_finished", outcome=outcome, reason=reason)
        for node in self._roster.nodes.values():
            try_tell(self, node.scheduler, EndJob(self._job_id))
        self.tell(self._coordinator, JobEnded(self._status()))

    # --- small things ---

    def _write(self, write: Callable[[], None]) -> None:
        """A run folder that cannot be written ends the job with the reason."""
        try:
            write()
        except RunFolderError as error:
            log.error("run_folder", reason=str(error))
            self._end("failed", str(error))

    def _event(self, event: str, **fields: Any) -> None:
        self._write(lambda: self._record.event(event, **fields))

    def _enter(self, phase: str) -> None:
        self._phase = phase
        self._phase_began = self._record.time_s()
        self._event("phase", iteration=self._machine.completed, phase=phase)

    def _phase_seconds(self) -> float:
        return self._record.time_s() - self._phase_began

    def _bar(self, workers: frozenset[str]) -> None:
        self._roster.barred = workers
        self.tell(self._dispatcher, BarWorkers(tuple(sorted(workers))))

    def _discard(self, bundle: BundleOffer) -> None:
        self._store.delete(bundle.key)

    async def _report_status(self) -> None:
        while not self._outcome:
            self.tell(self._coordinator, self._status())
            await asyncio.sleep(_STATUS_PERIOD_S)

    def _status(self) -> JobStatus:
        figures = self._figures
        wanted = self._job.samples_per_iteration if self._phase == "rollout" else 0
        done = self._rollout.finished
        seconds = self._phase_seconds() if self._phase == "rollout" else figures.rollout_s
        return JobStatus(
            job=self._job.name,
            phase=self._phase,
            iteration=self._machine.completed,
            iterations=self._job.iterations,
            weights_version=self._weights.version if self._weights else 0,
            elapsed_s=self._record.time_s(),
            done=done if wanted else 0,
            wanted=wanted,
            images_per_s=done / seconds if seconds > 0 else 0.0,
            reward_mean=figures.reward_mean if figures.samples else None,
            validation=tuple((time_s, score) for _, time_s, score in self._validations),
            workers=tuple(self._board[name] for name in sorted(self._board)),
            previews=self._previews,
            reissued=self._statistics.reissued,
            late=self._statistics.late,
            dead_letters=len(self.system.dead_letters),
            outcome=self._outcome,
            reason=self._reason,
            run_folder=str(self._record.path),
        )
