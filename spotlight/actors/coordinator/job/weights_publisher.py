"""A new weights version, from the trainers' word on where it is until nodes are told."""

from __future__ import annotations

from collections.abc import Callable

from spotlight.actors.coordinator.job.job_record import JobRecord
from spotlight.actors.coordinator.job.rollout_phase import RolloutPhase
from spotlight.actors.coordinator.job.trainer_team import TrainerTeam
from spotlight.actors.coordinator.job.validations import Validations
from spotlight.actors.coordinator.tenant.job_journal import JobJournal
from spotlight.actors.coordinator.tenant.node_briefing import NodeBriefing
from spotlight.actors.coordinator.tenant.publications import Publications
from spotlight.actors.protocol import WeightsOffer
from spotlight.record.run_events import WeightsPublished


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
        self._parts: dict[int, WeightsOffer] = {}
        """By rank, of the version that is being published."""

    def publish(self, version: int, *, validated: bool) -> None:
        """Have the trainers publish, unless it did for an earlier coordinator of this run."""
        if version in self._publications:
            self._release(version)
        else:
            self._parts = {}
            self._team.publish(version, evaluation=validated)

    def publish_again(self, version: int) -> None:
        """Have idle trainers that stand at a version publish it anew, if the last node that held it
        is gone: nobody else has it."""
        if self._team.is_idle and self._publications.is_lost(version):
            self._parts = {}
            evaluation = self._publications.is_validated(version)
            self._team.publish(version, evaluation=evaluation)

    def rank_published(self, rank: int, part: WeightsOffer) -> None:
        """When all parts are there every node pulls; members serve the version once they have
        acknowledged it."""
        if not self._team.awaits("publish", part.version, rank):
            return
        self._parts[rank] = part
        if not self._team.answered("publish", part.version, rank):
            return
        parts = [self._parts[each] for each in sorted(self._parts)]
        offer = WeightsOffer(
            part.version,
            tuple(one for each in parts for one in each.rollout),
            tuple(one for each in parts for one in each.evaluation),
        )
        version = offer.version
        was_lost = version in self._publications
        keep = {version, version - 1, *self._validations.versions}
        self._rollouts.count_outdated(keep)
        self._publications.add(offer, keep)
        self._record.write(lambda: self._journal.save_publication(offer, keep))
        self._record.event(WeightsPublished(version=version))
        if was_lost:
            self._briefing.weights_published()
        else:
            self._release(version)

    def _release(self, version: int) -> None:
        self._briefing.weights_published()
        self._published(version)
