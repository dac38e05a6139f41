"""Real rewards and real training for a simulated cluster: only its time is made up.

A sample is a function of its weights and its request, so it is computed once, when it is scored,
whoever denoised it and however often it was resumed. Whoever asks again, be it a second run of the
same job on another cluster, is answered from what is known: that such a run computes nothing proves
that its samples are the same.

Training is a sequence. A run that trains on other samples than an earlier one needs an instance of
its own.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import msgspec
from torch import Tensor

from spotlight.diffusion.samplers import SampleBatch
from spotlight.errors import SpotlightError
from spotlight.jobs import JobSpec
from spotlight.policies.training_parts import Part, updates_of
from spotlight.types import SamplingSettings
from spotlight_simulation import fingerprints
from spotlight_simulation.fingerprints import Row
from spotlight_simulation.numerics import Batch, Update
from spotlight_simulation.one_process import OneProcess

_VERSIONS = 4
"""Weights that are kept: a late validation may need some that are not the newest."""


class CannotCompute(SpotlightError):
    """What it takes is of another job, or of another sequence of updates, or no longer kept."""


class RealNumerics:
    """A `Numerics` that computes everything, with the model, the scorer and the trainer of a job
    with one reward.

    Raises `CheckpointError`, `JobError` or `MissingDependency` when the job's model or reward
    cannot be used.
    """

    def __init__(self, job: JobSpec) -> None:
        if len(job.work.rewards_of("preview")) > 1:
            raise CannotCompute(
                f"`{job.name}` has several rewards, or a noisy one that previews get twice; name"
                " one that is not noisy"
            )
        if job.exploration.preview_checkpoint:
            raise CannotCompute(f"`{job.name}` has previews of another model; leave that out")
        self._job = job
        self._engine = OneProcess(job)
        self._weights: dict[str, dict[str, Tensor]] = {}
        self._rewards: dict[str, float] = {}
        self._samples: dict[str, tuple[str, SampleBatch]] = {}
        """Those that may be trained on, each by itself, with the weights that made it."""
        self._updates: dict[str, Update] = {}
        self.images = 0
        """How many images were denoised and scored."""
        self._newest = fingerprints.initial_weights(job.seed)
        self._sampled_by = {self._newest}
        """Weights whose samples may be trained on next."""
        self._keep_weights()

    def initial_weights(self, job: JobSpec) -> str:
        """See `Numerics`."""
        if _what_decides(job) != _what_decides(self._job):
            raise CannotCompute(
                f"this computes the samples and updates of `{self._job.name}`; `{job.name}` has"
                " another model, sampler, reward, training or seed, so give it a RealNumerics of"
                " its own"
            )
        return fingerprints.initial_weights(job.seed)

    def rewards(self, rows: Sequence[Row]) -> tuple[float, ...]:
        """See `Numerics`. Raises also `CannotCompute`."""
        batches: defaultdict[tuple[str, SamplingSettings], list[Row]] = defaultdict(list)
        for row in rows:
            if row.latents != fingerprints.sample(row.weights, row.request):
                raise CannotCompute(f"{row.request.id} is not what its request gives")
            if row.latents not in self._rewards or self._lacks_sample(row):
                batches[row.weights, row.request.settings].append(row)
        for (weights, settings), batch in batches.items():
            self._compute(weights, settings, batch)
        return tuple(self._rewards[row.latents] for row in rows)

    def trained(self, batch: Batch) -> Update:
        """See `Numerics`. Whoever asks for the same update again is told what came of it. Raises
        also `CannotCompute`."""
        after = batch.name
        if after not in self._updates:
            self._updates[after] = Update(after, self._train(batch))
            self._newest = after
            is_older = self._job.trains_on_older
            self._sampled_by = {after, batch.weights} if is_older else {after}
            self._samples = {
                name: made for name, made in self._samples.items() if made[0] in self._sampled_by
            }
            self._keep_weights()
        return self._updates[after]

    def _lacks_sample(self, row: Row) -> bool:
        kinds, by = self._job.trained_on, self._sampled_by
        trains_next = row.request.kind in kinds and row.weights in by
        return trains_next and row.latents not in self._samples

    def _compute(self, weights: str, settings: SamplingSettings, rows: Sequence[Row]) -> None:
        if weights not in self._weights:
            raise CannotCompute(
                f"{rows[0].request.id} needs weights that are not kept any more; run this job with"
                " a RealNumerics of its own"
            )
        pairs = [(row.request.prompt, row.request.seed) for row in rows]
        left = iter(rows)
        for part in self._engine.scored(self._weights[weights], pairs, settings):
            for sample, reward, row in zip(_each(part.batch), part.scores, left, strict=False):
                self._rewards[row.latents] = reward
                if weights in self._sampled_by:
                    self._samples[row.latents] = weights, sample
        self.images += len(rows)

    def _train(self, batch: Batch) -> dict[str, float]:
        if batch.weights != self._newest:
            raise CannotCompute(
                f"iteration {batch.iteration} was trained with other samples or in another order"
                " before; run this job with a RealNumerics of its own"
            )
        if not batch.first:
            return self._update(batch.iteration, "whole", batch.samples)
        self._update(batch.iteration, "first", batch.samples[: batch.first])
        return self._update(batch.iteration, "rest", batch.samples[batch.first :])

    def _update(
        self, iteration: int, part: Part, samples: Sequence[tuple[Row, float]]
    ) -> dict[str, float]:
        return self._engine.update(
            iteration,
            [row.request.prompt for row, _ in samples],
            [self._samples[row.latents][1] for row, _ in samples],
            [advantage for _, advantage in samples],
            updates_of(part, self._job.training.updates_per_iteration),
        )

    def _keep_weights(self) -> None:
        """Those that the trainer holds."""
        trainer, average = self._engine.trainer, fingerprints.evaluation_weights(self._newest)
        self._weights[self._newest] = trainer.rollout_state()
        self._weights[average] = trainer.evaluation_state()
        for name in list(self._weights)[: -2 * _VERSIONS]:
            del self._weights[name]


def _what_decides(job: JobSpec) -> tuple[object, ...]:
    """All of a job that its samples and updates depend on, besides requests and advantages."""
    sampler = msgspec.structs.replace(job.sampler, degree=1, evaluation_steps=None)
    training = msgspec.structs.replace(job.training, ranks=1)
    return job.model, sampler, job.rewards, training, job.seed


def _each(batch: SampleBatch) -> list[SampleBatch]:
    """The samples of a batch by themselves."""

    def row(tensor: Tensor | None, index: int) -> Tensor | None:
        return tensor[index : index + 1] if tensor is not None else None

    return [
        SampleBatch(
            batch.latents[index : index + 1],
            row(batch.window_states, index),
            row(batch.log_probs, index),
            batch.window_start,
        )
        for index in range(len(batch.latents))
    ]
