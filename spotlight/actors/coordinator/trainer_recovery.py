"""Who trains, over the losses of a job: trainers are found again or appointed, and when some are
lost the job begins again from its last checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import msgspec
import structlog

from spotlight.actors.coordinator.job_journal import JobJournal
from spotlight.actors.coordinator.job_journal import Trainers as SavedTrainers
from spotlight.actors.coordinator.job_phase import JobPhase
from spotlight.actors.coordinator.job_progress import JobProgress
from spotlight.actors.coordinator.job_record import JobRecord
from spotlight.actors.coordinator.publications import Publications
from spotlight.actors.coordinator.roster import Rank
from spotlight.actors.coordinator.trainer_team import TrainerTeam
from spotlight.actors.coordinator.trainer_watch import TrainerWatch
from spotlight.policies.resume import ResumePoint, resume_point
from spotlight.policies.trainer_ranks import MOST_RECOVERIES, next_recovery
from spotlight.run_events import TrainersLost

log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class Trainers:
    """The trainers of a job that can begin."""

    warm: bool
    """They are there as they were; otherwise they are to be built from the checkpoint."""
    can_save: bool
    """Rank 0 can write a checkpoint after the iterations that are completed."""


class TrainerRecovery:
    """See the module's docstring.

    Args:
        watch: knows who is there.
        publications: what trainers that go on have published.
        replace: called when another job runner is to begin again.
        fail: ends the job with a reason.
    """

    def __init__(
        self,
        team: TrainerTeam,
        watch: TrainerWatch,
        *,
        phase: JobPhase,
        progress: JobProgress,
        publications: Publications,
        journal: JobJournal,
        record: JobRecord,
        replace: Callable[[], None],
        fail: Callable[[str], None],
    ) -> None:
        self._team = team
        self._watch = watch
        self._phase = phase
        self._progress = progress
        self._publications = publications
        self._journal = journal
        self._record = record
        self._replace = replace
        self._fail = fail

    async def assemble(self) -> Trainers | None:
        """Find the trainers again, or appoint them as soon as there are enough reserved workers,
        and have the progress be where they go on; what was recorded later is made again. None while
        there is nothing to begin.
        """
        ranks = () if self._team.ranks or self._phase.over else self._watch.candidates()
        if not ranks:
            return None
        self._team.ranks = ranks
        standing = await self._team.standing() if self._watch.former else []
        if self._phase.over:
            return None
        done, committed = self._progress.saved.completed, self._progress.committed
        at = resume_point(done, committed, standing, self._publications.versions)
        self._save(msgspec.structs.replace(self._journal.trainers(), ranks=ranks))
        self._record.write(lambda: self._begin_at(at))
        return Trainers(at.warm, at.warm and standing[0] == at.completed)

    def lost(self, rank: Rank, reason: str) -> None:
        """One of them is lost."""
        self.recover(f"trainer rank on {rank.worker.worker} is lost ({reason})")

    def recover(self, problem: str) -> None:
        """Without these trainers the job begins again from its last checkpoint, with others or with
        the same, unless that was tried too often.
        """
        if self._phase.over:
            return
        recovery = next_recovery(self._journal.trainers().last_recovery, self._progress.committed)
        if recovery is None:
            return self._fail(
                f"{problem}; after {MOST_RECOVERIES} recoveries without a new checkpoint the job"
                " does not try again by itself; fix the cause, then resume the run",
            )
        number, completed = recovery
        lost = TrainersLost(reason=problem, recovery=number, goes_on_from=completed)
        log.warning(lost.name, **lost.fields())
        self._record.event(lost)
        self._save(SavedTrainers(last_recovery=recovery))
        self._watch.former = ()
        if self._team.ranks and not self._phase.over:
            self._replace()

    def _begin_at(self, at: ResumePoint) -> None:
        if not at.warm:
            self._journal.rewind(at.completed)
            self._publications.drop_all()
        self._progress.begin_at(at.completed)
        self._progress.keep()

    def _save(self, trainers: SavedTrainers) -> None:
        self._record.write(lambda: self._journal.save_trainers(trainers))
