"""A new weights version, from the trainer's word on where it is until nodes are told."""

from __future__ import annotations

from collections.abc import Callable

from spotlight.actors.coordinator.job_journal import JobJournal, Publication
from spotlight.actors.coordinator.job_record import JobRecord
from spotlight.actors.coordinator.node_briefing import NodeBriefing
from spotlight.actors.coordinator.publications import Publications
from spotlight.actors.coordinator.rollout_phase import RolloutPhase
from spotlight.actors.coordinator.trainer_team import TrainerTeam
from spotlight.actors.coordinator.validations import Validations
from spotlight.actors.protocol import Published


class WeightsPublisher:
    """See the module's docstring.

    Args:
        rollouts, validations: need some of the versions before.
        published: called with the version that nodes can pull.
    """

    def __init__(
        self,
        *,
        team: TrainerTeam,
        publications: Publications,
        briefing: NodeBriefing,
        rollouts: RolloutPhase,
        validations: Validations,
        journal: JobJournal,
        record: JobRecord,
        published: Callable[[int], None],
    ) -> None:
        self._team = team
        self._publications = publications
        self._briefing = briefing
        self._rollouts = rollouts
        self._validations = validations
        self._journal = journal
        self._record = record
        self._published = published

    def publish(self, version: int, *, validated: bool) -> None:
        """Have the trainer publish, unless it did for an earlier coordinator of this run."""
        if version in self._publications:
            self._release(version)
        else:
            self._team.publish(version, evaluation=validated)

    def rank_published(self, message: Published) -> None:
        """Every node pulls; members serve the version once they have acknowledged it."""
        if not self._team.answered("publish", message.version, 0):
            return
        version, where = message.version, Publication(message.rollout, message.evaluation)
        keep = {version, version - 1, *self._validations.versions}
        self._rollouts.count_outdated(keep)
        self._publications.add(version, where, keep)
        self._record.write(lambda: self._journal.save_publication(version, where, keep))
        self._record.event("weights_published", version=version)
        self._release(version)

    def _release(self, version: int) -> None:
        self._briefing.weights_published()
        self._published(version)
