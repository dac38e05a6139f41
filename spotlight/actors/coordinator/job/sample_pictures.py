"""The best and worst samples of an iteration as pictures.

A worker leaves a thumbnail of the best and of the worst image of each of its batches, so that of
all samples is there. Which these are is known when all samples are scored; they are put in place
when the iteration is over, by when the thumbnails are surely there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from spotlight.actors.protocol.artifacts import sample_thumbnail_key
from spotlight.policies.exploration.reward_scales import weighted_mean
from spotlight.store.thumbnails import ShownSample, ShownSamples
from spotlight.types import Result

if TYPE_CHECKING:
    from spotlight.actors.coordinator.job.job_runner import JobRunner

_MOST_CANDIDATES = 32
"""How many of either side are looked for: many of them have no thumbnail."""


class SamplePictures:
    """See the module's docstring."""

    def __init__(self, job: JobRunner) -> None:
        self._job = job
        self._chosen: tuple[int, ShownSamples, dict[str, str]] | None = None
        """The iteration, its best and worst samples, and where their thumbnails may be."""

    def choose(self, iteration: int, samples: Sequence[Result]) -> None:
        """The samples of an iteration are there."""
        weights = self._job.spec.reward_weights
        scored = [
            (weighted_mean(one.rewards[: len(weights)], weights), one)
            for one in samples
            if one.request.thumbnail_key
        ]
        scored.sort(key=lambda each: -each[0])
        best, worst = scored[:_MOST_CANDIDATES], scored[::-1][:_MOST_CANDIDATES]
        shown = ShownSamples(
            weights_version=iteration,
            best=tuple(_shown(iteration, *each) for each in best),
            worst=tuple(_shown(iteration, *each) for each in worst),
        )
        left = {_file(iteration, one): sample_thumbnail_key(one) for _, one in (*best, *worst)}
        self._chosen = iteration, shown, left

    def show(self, iteration: int) -> None:
        """The iteration is over."""
        chosen, self._chosen = self._chosen, None
        if chosen is not None and chosen[0] == iteration:
            _, shown, left = chosen
            self._job.record.write(lambda: self._job.record.run.show_samples(shown, left))
        for old in (iteration - 1, iteration):  # of the former what came too late
            self._job.store.delete(f"pictures/{old}")


def _shown(iteration: int, reward: float, sample: Result) -> ShownSample:
    request = sample.request
    return ShownSample(
        prompt=request.prompt, seed=request.seed, reward=reward, file=_file(iteration, sample)
    )


def _file(iteration: int, sample: Result) -> str:
    return f"{iteration}-{sample.request.group}-{sample.request.seed}.webp"
