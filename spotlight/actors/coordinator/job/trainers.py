"""The trainer ranks of a job: carries out what `TrainerMachine` says, and hands it what they, their
nodes and the clock say.

It decides nothing: orders become messages to the ranks, reports become answers, and what the
machine says of the job goes to the parts that do it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING

from spotlight.actors.coordinator.tenant.job_journal import Trainers as SavedTrainers
from spotlight.actors.coordinator.tenant.rank import Rank, reserved_ranks
from spotlight.actors.protocol.delivery import try_tell
from spotlight.actors.protocol.trainer import (
    EXPORT,
    STATE,
    ExportModel,
    GetTrainer,
    Publish,
    SaveState,
    StartTrainer,
    StateParts,
    Train,
    TrainerReport,
)
from spotlight.actors.protocol.up import NodeReport
from spotlight.actors.runtime import ActorRef, Message
from spotlight.errors import ActorError, TransferFailed
from spotlight.policies import trainer_orders as say
from spotlight.policies.resume import ResumePoint
from spotlight.policies.trainers import Facts, TrainerMachine
from spotlight.types import StoreEndpoint

if TYPE_CHECKING:
    from spotlight.actors.coordinator.job.job_runner import JobRunner


class Trainers:
    """See the module's docstring. `machine` decides, and knows who trains."""

    def __init__(self, job: JobRunner) -> None:
        self._job = job
        training = job.spec.training
        before = job.journal.trainers() if job.came_back else SavedTrainers()
        self.machine: TrainerMachine[Rank] = TrainerMachine(
            job.journal.term,
            training.ranks,
            training.patience_s,
            training.sharded,
            job.listens_until,
            began_at=job.now(),
            former=before.ranks,
            last_recovery=before.last_recovery,
        )
        self._into_folder: dict[tuple[int, type[say.Order]], tuple[say.Order, Message]] = {}
        """The last order of a kind to a rank that may leave something in the run folder's store,
        with the message that it became: repeated, it is the same."""

    def is_rank(self, sender: ActorRef | None, number: int) -> bool:
        """Whether that is who trains under this number."""
        ranks = self.machine.ranks
        return 0 <= number < len(ranks) and sender == ranks[number].worker.trainer_rank

    def note(self) -> str:
        """What the job waits for, in words; empty if for nothing."""
        reserved = () if self.machine.there else reserved_ranks(self._job.roster)
        return self.machine.waits_for(len(reserved))

    # --- events ---

    async def assemble(self) -> None:
        """Find the trainers again, or appoint them as soon as there are enough reserved workers."""
        if self.machine.ranks or self._job.is_over:
            return
        to_do = deque(self.machine.assemble(reserved_ranks(self._job.roster)))
        while to_do:
            match to_do.popleft():
                case say.AskStandings():
                    answers = [await self._ask(rank) for rank in self.machine.ranks]
                    if self._job.is_over:
                        return
                    standing = [-1 if each is None else each.completed for each in answers]
                    term = max((each.term for each in answers if each is not None), default=0)
                    to_do += self.machine.found(standing, self._facts(), self._job.now(), term)
                case say.FetchState(at):
                    state = await self._fetch_state(at)
                    if self._job.is_over:
                        return
                    to_do += self.machine.appointed(state)
                case other:
                    self._do(other)

    def joined(self, node: NodeReport) -> None:
        """A node is there, with those of its ranks that are."""
        epochs = {worker.epoch for worker in node.workers}
        self._carry_out(self.machine.joined(node.node, epochs))

    def out_of_reach(self, node: str, reason: str, *, announced: bool) -> None:
        """A node is out of reach, or (`announced`) has left after a notice."""
        now = self._job.now()
        self._carry_out(self.machine.out_of_reach(node, reason, now, announced=announced))

    def watch(self) -> None:
        """Ask those that are out of reach, and give those up that have been so for too long."""
        self._carry_out(self.machine.watch(self._job.now()))

    def remind(self) -> None:
        """Repeat what is not answered."""
        self._carry_out(self.machine.remind())

    def order(self, order: say.Publish | say.Save | say.Train | say.Export) -> None:
        """Have the ranks do something, when they are ready."""
        self._carry_out(self.machine.order(order))

    def save(self, completed: int) -> None:
        """Have the ranks leave their state, and make a checkpoint of it if one is due."""
        is_due = self._job.progress.schedule.saves(completed)
        self.order(say.Save(completed, is_checkpoint=is_due))

    async def report(self, report: TrainerReport) -> None:
        """A rank says where it stands, and what came of an order."""
        if report.opened is not None and self._job.phase.name == "train":
            self._job.gradients.opened(report.rank, report.opened)
        if report.trained is not None and self._job.phase.name == "train":
            self._job.gradients.workers.measured(report.rank, report.trained)
        answer = self._answer_of(report)
        listens_at = report.listens_at
        for instruction in self.machine.reported(report.rank, report.term, answer, listens_at):
            if isinstance(instruction, say.KeepExport) and report.exported is not None:
                await self._job.states.keep_export(report.exported)
            else:
                self._do(instruction)

    def _answer_of(self, report: TrainerReport) -> say.Answer | None:
        if report.error:
            where = report.traceback
            return say.HasFailed(report.error, report.lost_others, report.lost_state, where)
        if (trained := report.trained) is not None:
            if self._job.phase.name != "train":
                return None
            return say.HasTrained(trained.iteration, trained.part, trained.seconds, trained.metrics)
        if (published := report.published) is not None:
            return say.HasPublished(published.version, published.rollout, published.evaluation)
        if report.saved is not None:
            return say.HasSaved(report.saved.iteration, report.saved.offers)
        if report.exported is not None:
            return say.HasExported(report.exported.checkpoint)
        return say.Built() if report.completed >= 0 else None

    def checkpoint_written(self) -> None:
        """The checkpoint that was to be written is in the run folder."""
        self._carry_out(self.machine.checkpoint_written())

    # --- instructions ---

    def _carry_out(self, instructions: Iterable[say.Instruction]) -> None:
        for instruction in instructions:
            self._do(instruction)

    def _do(self, instruction: say.Instruction) -> None:
        job = self._job
        match instruction:
            case say.Tell(rank, order):
                to = self.machine.ranks[rank].worker.trainer_rank
                try_tell(job, to, self._message(rank, order))
            case say.Ask(rank):
                job.run_task(self._inquire(self.machine.there[rank]))
            case say.KeepTrainers():
                job.nodes.train_on(self.machine.names)
                job.keepers.appoint(frozenset(rank.node for rank in self.machine.ranks))
                trainers = SavedTrainers(self.machine.on_record, self.machine.last_recovery)
                job.record.write(lambda: job.journal.save_trainers(trainers))
            case say.ReplaceOthers(term):
                job.briefing.replace_trainers(term)
            case say.Keep():
                job.states.keep(instruction)
            case say.WriteCheckpoint():
                job.run_task(job.states.write_checkpoint(instruction))
            case say.ForgetState():
                job.states.forget()
            case say.Recover(problem):
                self.recover(problem)
            case say.RecoverLater(problem):
                job.run_task(self._recover_later(problem))
            case say.Note(event):
                job.event(event)
            case _:
                self._let_job_go_on(instruction)

    def _let_job_go_on(self, instruction: say.Instruction) -> None:
        job = self._job
        match instruction:
            case say.GoOnFrom(at, kept):
                job.go_on_from(at, kept)
            case say.Begin(can_save):
                job.begin(can_save=can_save)
            case say.FirstPartTrained(iteration):
                job.first_trained(iteration)
            case say.IterationTrained():
                job.training.ended(instruction)
            case say.VersionPublished():
                job.publisher.parts_are_there(instruction)
            case say.Checkpointed(completed):
                job.states.checkpointed(completed)
            case say.Replace():
                job.replace()
            case say.Fail(reason):
                job.fail(reason)

    def _message(self, rank: int, order: say.Order) -> Message:
        match order:
            case say.Start(term, rank, world, rendezvous, completed, state):
                job_id, spec = self._job.service.id, self._job.spec
                images = self._job.images
                return StartTrainer(
                    job_id, spec, rank, world, rendezvous, completed, state, term, images
                )
            case say.Train():
                return Train(
                    order.iteration,
                    order.window_start,
                    order.samples,
                    order.part,
                    None if order.publish is None else self._publish(rank, order.publish),
                    None if order.save is None else self._save(rank, order.save),
                    self._lends_to(rank),
                )
            case say.Publish():
                return self._publish(rank, order)
            case say.Save():
                return self._save(rank, order)
            case say.Export():
                return self._export(rank, order)

    def _lends_to(self, rank: int) -> StoreEndpoint | None:
        """Where a rank leaves what others need to compute slices of its updates."""
        has_help = bool(self._job.gradients.workers.helping)
        return self.machine.ranks[rank].store if has_help else None

    def _publish(self, rank: int, order: say.Publish) -> Publish:
        return Publish(order.version, order.evaluation, self.machine.ranks[rank].store)

    def _save(self, rank: int, order: say.Save) -> SaveState:
        known, message = self._into_folder.get((rank, say.Save), (None, None))
        if known != order or not isinstance(message, SaveState):
            node, store = self.machine.ranks[rank].node, self._job.store
            here = (store.writable_by(node, STATE),) if order.in_run_folder else ()
            message = SaveState(order.completed, (*order.stores, *here), order.part)
            self._into_folder[rank, say.Save] = order, message
        return message

    def _export(self, rank: int, order: say.Export) -> ExportModel:
        known, message = self._into_folder.get((rank, say.Export), (None, None))
        if known != order or not isinstance(message, ExportModel):
            to = self._job.store.writable_by(self.machine.ranks[rank].node, EXPORT)
            message = ExportModel(order.completed, order.checkpoint, order.state, to)
            self._into_folder[rank, say.Export] = order, message
        return message

    # --- questions ---

    def _facts(self) -> Facts:
        progress, publications = self._job.progress, self._job.publications
        state, parts = self._job.states.kept
        return Facts(
            newest=progress.saved.completed,
            checkpoint=progress.committed,
            state=state,
            state_is_there=bool(parts),
            published=publications.versions,
            held=publications.held,
            unvalidated=progress.unvalidated,
            reuses=self._job.spec.trains_on_previews,
            ahead_of_state=self._job.states.versions_ahead,
        )

    async def _fetch_state(self, at: ResumePoint) -> StateParts:
        """Nothing if the job has failed for that."""
        _, state = self._job.states.kept
        if at.origin == "checkpoint":
            try:
                state = await self._job.states.checkpoint(at.completed)
            except TransferFailed as error:
                self._job.fail(f"the checkpoint cannot be read: {error}")
        return state

    async def _inquire(self, rank: Rank) -> None:
        answer = await self._ask(rank)
        trains = None if answer is None else answer.term > 0
        self._carry_out(self.machine.answered(rank.epoch, trains, self._job.now()))

    async def _ask(self, rank: Rank) -> TrainerReport | None:
        limit_s = self._job.timings.coordinator.ask_rank_limit_s
        question = GetTrainer(self._job.service.id)
        try:
            answer = await self._job.ask(rank.worker.trainer_rank, question, timeout_s=limit_s)
        except ActorError:
            return None
        assert isinstance(answer, TrainerReport)
        return answer

    def recover(self, problem: str) -> None:
        """The job goes on from what these trainers left, with whoever is there."""
        if not self._job.is_over:
            self._carry_out(self.machine.recover(problem, self._facts().goes_on_from))

    async def _recover_later(self, problem: str) -> None:
        await asyncio.sleep(self._job.timings.coordinator.lost_rank_pause_s)
        self.recover(problem)
