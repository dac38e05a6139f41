"""Training on previews, one iteration old, in one process: the curve of a run by the clock of a
test-bed.

While the trainers train iteration i, spot workers make full previews of the prompts of i + 1 with
the weights that i began with, as many as fit. Those whose scores vary most are the samples of
i + 1; DiffusionNFT's old policy is the newest weights. Samples and updates are really computed; how
long they take is the word of a profile (`spotlight_simulation.profile`), jitter left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from benchmarks.validation_sampler import held_out_score
from spotlight.actors.coordinator.tenant.request_plans import rollout_settings
from spotlight.assets import read_prompts
from spotlight.diffusion.samplers import SampleBatch
from spotlight.jobs import JobSpec
from spotlight.policies.exploration.planners import derived_seed, draw_prompts, max_variance_subset
from spotlight_simulation.one_process import OneProcess, ScoredSamples
from spotlight_simulation.profile import Profile

RESERVED, SPOT = 4, 8
"""GPUs. Reserved ones train; the first rollout is made by all."""


@dataclass(frozen=True)
class Clock:
    """How long the parts of a run take, in seconds."""

    first_rollout_s: float
    iteration_s: float
    """Training, and the publication that follows it."""
    previews: int
    """Full ones that are there, with their scores, when training ends."""

    @classmethod
    def of(cls, job: JobSpec, profile: Profile) -> Clock:
        """By the job's rows: samples times flow times that are trained on, by the GPUs that the
        profile is of, though one process computes the updates."""
        times = profile.times(job)
        sample_s = times.step_s * job.sampler.steps / job.sampler.micro_batch
        rows = job.samples_per_iteration * times.rows_of_sample
        train_s = profile.train_s / profile.rows * rows
        return cls(
            sample_s * job.samples_per_iteration / (RESERVED + SPOT) + times.score_s,
            train_s + profile.publication_s,
            int(SPOT * (train_s - times.score_s) / sample_s),
        )


def train_on_previews(
    job: JobSpec, clock: Clock, *, until_s: float, validate_s: float
) -> Iterator[tuple[float, float]]:
    """Seconds and validation scores, one point for the first weights and one each `validate_s`, up
    to the first at `until_s` or later.

    Raises what `OneProcess` does.
    """
    engine = OneProcess(job)
    prompts = read_prompts(job.prompts.train)

    def score() -> float:
        return held_out_score(engine, job, engine.trainer.evaluation_state())

    def samples(iteration: int, candidates: int) -> _Samples:
        drawn = draw_prompts(job.seed, iteration, len(prompts), job.prompts.per_iteration)
        texts = [prompts[index] for index in drawn]
        pairs = [
            (texts[number % len(texts)], derived_seed(job.seed, iteration, number))
            for number in range(candidates)
        ]
        weights, settings = engine.trainer.rollout_state(), rollout_settings(job, iteration)
        made = [one for part in engine.scored(weights, pairs, settings) for one in _each(part)]
        return _chosen(texts, made, job.group_size)

    yield 0.0, score()
    now_s, due_s = clock.first_rollout_s, validate_s
    batch, iteration = samples(0, job.samples_per_iteration), 0
    while now_s < until_s:
        following = samples(iteration + 1, max(clock.previews, job.samples_per_iteration))
        engine.train(iteration, batch.prompts, batch.groups, batch.samples)
        batch, iteration = following, iteration + 1
        now_s += clock.iteration_s
        if now_s >= min(due_s, until_s):
            due_s += validate_s
            yield now_s, score()


@dataclass(frozen=True)
class _Samples:
    """What an iteration is trained on."""

    prompts: list[str]
    groups: list[int]
    samples: list[ScoredSamples]


def _chosen(texts: Sequence[str], made: Sequence[ScoredSamples], keep: int) -> _Samples:
    """Of each prompt the samples whose scores vary most; `made` goes round the prompts."""
    prompts, groups, samples = [], [], []
    for group, text in enumerate(texts):
        own = made[group :: len(texts)]
        scores = [one.scores[0] for one in own]
        for index in max_variance_subset(scores, keep, tie_break=range(len(own))):
            prompts.append(text)
            groups.append(group)
            samples.append(own[index])
    return _Samples(prompts, groups, samples)


def _each(part: ScoredSamples) -> Iterator[ScoredSamples]:
    """Its samples by themselves. Samplers without noise are all that previews here have."""
    for row, (rewards, score) in enumerate(zip(part.rewards, part.scores, strict=True)):
        yield ScoredSamples(
            SampleBatch(part.batch.latents[row : row + 1], None, None, 0), [rewards], [score]
        )
