"""A new weights version, from the trainers' word on where it is until nodes are told."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spotlight.actors.protocol import WeightsOffer
from spotlight.record.run_events import WeightsPublished

if TYPE_CHECKING:
    from spotlight.actors.coordinator.job.job_runner import JobRunner


class WeightsPublisher:
    """See the module's docstring."""

    def __init__(self, job: JobRunner) -> None:
        self._job = job
        self._parts: dict[int, WeightsOffer] = {}
        """By rank, of the version that is being published."""

    def publish(self, version: int, *, validated: bool) -> None:
        """Have the trainers publish, unless it did for an earlier coordinator of this run."""
        if version in self._job.publications:
            self._release(version)
        else:
            self._parts = {}
            self._job.team.publish(version, evaluation=validated)

    def publish_again(self, version: int) -> None:
        """Have idle trainers that stand at a version publish it anew, if the last node that held it
        is gone: nobody else has it."""
        if self._job.team.is_idle and self._job.publications.is_lost(version):
            self._parts = {}
            evaluation = self._job.publications.is_validated(version)
            self._job.team.publish(version, evaluation=evaluation)

    def rank_published(self, rank: int, part: WeightsOffer) -> None:
        """When all parts are there every node pulls; members serve the version once they have
        acknowledged it."""
        if not self._job.team.awaits("publish", part.version, rank):
            return
        self._parts[rank] = part
        if not self._job.team.answered("publish", part.version, rank):
            return
        parts = [self._parts[each] for each in sorted(self._parts)]
        offer = WeightsOffer(
            part.version,
            tuple(one for each in parts for one in each.rollout),
            tuple(one for each in parts for one in each.evaluation),
        )
        version = offer.version
        was_lost = version in self._job.publications
        keep = {version, version - 1, *self._job.validations.versions}
        self._job.rollouts.count_outdated(keep)
        self._job.publications.add(offer, keep)
        self._job.record.write(lambda: self._job.journal.save_publication(offer, keep))
        self._job.record.event(WeightsPublished(version=version))
        if was_lost:
            self._job.briefing.weights_published()
        else:
            self._release(version)

    def _release(self, version: int) -> None:
        self._job.briefing.weights_published()
        self._job.published(version)
