"""Who trains, over the losses of a job: trainers are found again or appointed, and when some are
lost others go on from the state that they left, or else from the last checkpoint.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from dataclasses import dataclass

import msgspec

from spotlight.actors.coordinator.job.job_phase import JobPhase
from spotlight.actors.coordinator.job.job_progress import JobProgress
from spotlight.actors.coordinator.job.job_record import JobRecord
from spotlight.actors.coordinator.job.trainer_team import TrainerTeam
from spotlight.actors.coordinator.job.trainer_watch import TrainerWatch
from spotlight.actors.coordinator.job.training_state import TrainingStates
from spotlight.actors.coordinator.tenant.job_journal import JobJournal
from spotlight.actors.coordinator.tenant.job_journal import Trainers as SavedTrainers
from spotlight.actors.coordinator.tenant.publications import Publications
from spotlight.actors.coordinator.tenant.rank import Rank
from spotlight.actors.protocol import StateParts
from spotlight.errors import TransferFailed
from spotlight.policies.resume import ResumePoint, resume_point
from spotlight.policies.trainer_ranks import MOST_RECOVERIES, next_recovery
from spotlight.record.run_events import TrainersBuilt, TrainersLost


@dataclass(frozen=True)
class Appointment:
    """Who trains, and from where the job goes on if that is settled only now."""

    at: ResumePoint
    begins: bool
    """Nothing of the job has begun yet."""
    state: StateParts = ()
    """Where the trainers can have their state, unless they are there with it."""
    standing: int = -1
    """Iterations that trainers who are there have trained."""


class TrainerRecovery:
    """See the module's docstring.

    Args:
        watch: knows who is there.
        states: what trainers have left for others.
        publications: what trainers that go on have published.
        came_back: this is not the first runner of the job.
        listens_until: nodes that are there have said so by then, on the loop's clock.
        replace: called when another job runner is to begin again.
        fail: ends the job with a reason.
    """

    def __init__(
        self,
        team: TrainerTeam,
        watch: TrainerWatch,
        states: TrainingStates,
        *,
        phase: JobPhase,
        progress: JobProgress,
        publications: Publications,
        journal: JobJournal,
        record: JobRecord,
        listens_until: float,
        replace: Callable[[], None],
        fail: Callable[[str], None],
    ) -> None:
        self._team = team
        self._watch = watch
        self._states = states
        self._phase = phase
        self._progress = progress
        self._publications = publications
        self._journal = journal
        self._record = record
        self._listens_until = listens_until
        self._replace = replace
        self._fail = fail
        self._at: ResumePoint | None = None
        """From where the job goes on; None until that is settled."""

    async def assemble(self) -> Appointment | None:
        """Find the trainers again, or appoint them as soon as there are enough reserved workers,
        and have the progress be where they go on; what was recorded later is made again. While
        there are too few, the job goes on without them as far as the published weights carry it.
        None while there is nothing to begin.
        """
        if self._team.ranks or self._phase.over:
            return None
        ranks = self._watch.candidates()
        if self._at is None:
            return await self._begin(ranks)
        return await self._appoint(ranks, self._at) if ranks else None

    async def _begin(self, ranks: tuple[Rank, ...]) -> Appointment | None:
        if not ranks and self._watch.former:
            return None  # they may be there in a moment
        self._team.ranks = ranks if self._watch.former else ()
        standing = await self._team.standing() if self._watch.former else []
        if self._phase.over:
            return None
        progress, held = self._progress, self._publications.held
        kept, state = self._states.kept
        at = resume_point(
            progress.saved.completed,
            progress.committed,
            standing,
            self._publications.versions,
            state=kept if state else None,
            held=held,
            unvalidated=progress.unvalidated,
        )
        if at.origin == "checkpoint" and kept and self._now() < self._listens_until:
            self._team.ranks = ()
            return None  # who has the state may still come
        if not ranks and (at.origin != "state" or at.completed not in held):
            return None
        self._at = at
        self._record.write(lambda: self._begin_at(at, held))
        if at.origin == "trainers":
            self._save(ranks)
            return Appointment(at, begins=True, standing=standing[0])
        self._team.ranks = ()
        return await self._appoint(ranks, at, begins=True) if ranks else Appointment(at, True)

    async def _appoint(
        self, ranks: tuple[Rank, ...], at: ResumePoint, *, begins: bool = False
    ) -> Appointment | None:
        try:
            _, state = self._states.kept
            if at.origin == "checkpoint":
                state = await self._states.checkpoint(at.completed)
        except TransferFailed as error:
            self._fail(f"the checkpoint cannot be read: {error}")
            return None
        if self._phase.over or self._team.ranks:
            return None
        self._save(ranks)
        self._team.ranks = ranks
        return Appointment(at, begins, state)

    def built(self) -> TrainersBuilt:
        """Those that were appointed are ready."""
        at = self._at
        assert at is not None and at.origin != "trainers", "they were told where to begin"
        source = at.origin if at.completed else "model"
        workers = tuple(rank.worker.worker for rank in self._team.ranks)
        return TrainersBuilt(iteration=at.completed, workers=workers, source=source)

    def lost(self, rank: Rank, reason: str) -> None:
        """One of them is lost."""
        self.recover(f"trainer rank on {rank.worker.worker} is lost ({reason})")

    def recover(self, problem: str) -> None:
        """Without these trainers the job goes on from the state that they left, or from its last
        checkpoint, with others or with the same, unless that was tried too often.
        """
        if self._phase.over:
            return
        kept, state = self._states.kept
        goes_on_from = max(kept if state else 0, self._progress.committed)
        recovery = next_recovery(self._journal.trainers().last_recovery, goes_on_from)
        if recovery is None:
            return self._fail(
                f"{problem}; after {MOST_RECOVERIES} recoveries without progress the job does not"
                " try again by itself; fix the cause, then resume the run",
            )
        number, completed = recovery
        lost = TrainersLost(reason=problem, recovery=number, goes_on_from=completed)
        self._record.event(lost)
        self._write(SavedTrainers(last_recovery=recovery))
        self._watch.former = ()
        if self._team.ranks and not self._phase.over:
            self._replace()

    def _begin_at(self, at: ResumePoint, held: Collection[int]) -> None:
        match at.origin:
            case "trainers":
                self._progress.begin_at(at.completed)
            case "state":
                kept = [version for version in held if version <= at.completed]
                self._journal.rewind(at.completed, kept)
                self._publications.keep(kept)
                self._progress.rewind_to(at.completed)
            case "checkpoint":
                self._journal.save_state(None)  # what is trained again may differ from it
                self._journal.rewind(at.completed)
                self._publications.keep(())
                self._progress.begin_at(at.completed)
        self._progress.keep()

    def _save(self, ranks: tuple[Rank, ...]) -> None:
        self._write(msgspec.structs.replace(self._journal.trainers(), ranks=ranks))

    def _write(self, trainers: SavedTrainers) -> None:
        self._record.write(lambda: self._journal.save_trainers(trainers))

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()
