"""A new weights version, from the trainers' word on where it is until nodes are told."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spotlight.actors.protocol.down import WeightsOffer
from spotlight.policies.trainer_orders import Publish, VersionPublished
from spotlight.record.run_events import WeightsPublished

if TYPE_CHECKING:
    from spotlight.actors.coordinator.job.job_runner import JobRunner


class WeightsPublisher:
    """See the module's docstring."""

    def __init__(self, job: JobRunner) -> None:
        self._job = job

    def publish(self, version: int, *, validated: bool) -> None:
        """Have the trainers publish, unless it did for an earlier coordinator of this run."""
        if version in self._job.publications:
            self._release(version)
        else:
            self._job.team.order(Publish(version, validated))

    def publish_again(self, version: int) -> None:
        """Have idle trainers that stand at a version publish it anew, if the last node that held it
        is gone: nobody else has it."""
        if self._job.team.machine.is_idle and self._job.publications.is_lost(version):
            evaluation = self._job.publications.is_validated(version)
            self._job.team.order(Publish(version, evaluation))

    def forget(self, version: int) -> None:
        """Nobody has it any more, and nobody is told where it was."""
        publications = self._job.publications
        publications.keep(publications.versions - {version})
        self._job.record.write(lambda: self._job.journal.drop_publication(version))

    def parts_are_there(self, parts: VersionPublished) -> None:
        """Every node pulls them; members serve the version once they have acknowledged it."""
        offer = WeightsOffer(parts.version, parts.rollout, parts.evaluation)
        version = offer.version
        was_lost = version in self._job.publications
        keep = self._needed(version)
        self._job.rollouts.note_outdated(keep)
        self._job.publications.add(offer, keep)
        self._job.record.write(lambda: self._job.journal.save_publication(offer, keep))
        self._job.record.event(WeightsPublished(version=version))
        if was_lost:
            self._job.briefing.weights_published()
        else:
            self._release(version)

    def state_kept(self) -> None:
        """Lost trainers go on from a newer state: nodes need fewer versions."""
        publications = self._job.publications
        needed = self._needed(publications.newest)
        if unneeded := publications.versions - needed:
            publications.keep(needed)
            for version in sorted(unneeded):
                self._job.journal.drop_publication(version)
            self._job.briefing.weights_published()

    def _needed(self, newest: int) -> set[int]:
        """The versions with which something may still be made: samples and previews, validations,
        and what lost trainers would have to train on again."""
        again = self._job.states.versions_ahead
        return {newest, newest - 1, *self._job.validations.versions, *again}

    def _release(self, version: int) -> None:
        self._job.briefing.weights_published()
        self._job.published(version)
