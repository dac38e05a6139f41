"""Measurements of samples and of validation images."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from spotlight.actors.protocol.artifacts import picture_key
from spotlight.jobs import JobSpec
from spotlight.policies.exploration.planners import SeedChoice
from spotlight.policies.exploration.ranking import median_or_none, spearman, spread
from spotlight.policies.exploration.reward_scales import combined, reward_scale, weighted_mean
from spotlight.policies.reward_hacking import Estimate, Validation
from spotlight.record.run_metrics import IterationMetrics, ValidationMetrics
from spotlight.types import Result


class Picture(msgspec.Struct, frozen=True, kw_only=True):
    """A validation picture of the run folder."""

    prompt: str
    reward: float
    """The mean by weight, of several."""
    file: str
    seed: int


def sample_scale(samples: Iterable[Result], weights: Sequence[float]) -> tuple[float, ...]:
    """What each reward is multiplied with before they are summed, by the samples themselves."""
    groups: dict[int, list[tuple[float, ...]]] = {}
    for sample in samples:
        groups.setdefault(sample.request.group, []).append(sample.rewards)
    return tuple(reward_scale(groups.values(), weights))


def measure_rollout(
    metrics: IterationMetrics,
    results: Sequence[Result],
    choices: Sequence[SeedChoice],
    job: JobSpec,
    scale: Sequence[float],
) -> None:
    """Fill in what follows from the finished samples of an iteration.

    Args:
        choices: of each prompt group; their preview rewards are sums on that `scale`.
    """
    names = [reward.name for reward in job.rewards]
    by_group: dict[int, dict[int, float]] = {}
    for result in results:
        value = combined(result.rewards, scale)
        by_group.setdefault(result.request.group, {})[result.request.seed] = value
    means = [weighted_mean(result.rewards, job.reward_weights) for result in results]
    columns = list(zip(*(result.rewards for result in results), strict=True))
    spreads = [spread(list(group.values())) for group in by_group.values()]
    metrics.samples = len(results)
    metrics.reward_mean = sum(means) / len(means)
    metrics.reward_std = spread(means)
    metrics.rewards = {
        name: sum(column) / len(column) for name, column in zip(names, columns, strict=True)
    }
    metrics.reward_stds = {
        name: spread(list(column)) for name, column in zip(names, columns, strict=True)
    }
    metrics.group_std_mean = sum(spreads) / len(spreads)
    metrics.zero_variance_groups = sum(value == 0 for value in spreads)
    metrics.contrast = math.sqrt(sum(value * value for value in spreads) / len(spreads))
    pairs = [
        [
            (preview, by_group[group][seed])
            for seed, preview in zip(choice.seeds, choice.preview_rewards, strict=True)
            if preview is not None and seed in by_group[group]
        ]
        for group, choice in enumerate(choices)
        if group in by_group
    ]
    explored = [group for group in pairs if len(group) > 1]
    metrics.explored_prompts = len(explored)
    metrics.rank_correlation = median_or_none(
        [spearman([p for p, _ in group], [r for _, r in group]) for group in explored]
    )
    if explored:
        previewed = [spread([preview for preview, _ in group]) for group in explored]
        metrics.preview_group_std_mean = sum(previewed) / len(previewed)
        realised = [spread([reward for _, reward in group]) for group in explored]
        metrics.explored_std_mean = sum(realised) / len(realised)


def measure_validation(version: int, results: Sequence[Result], job: JobSpec) -> ValidationMetrics:
    """The scores of a weights version, of which there is at least one image."""
    names = [reward.name for reward in job.measured_rewards]
    scores = [_score(result, job) for result in results]
    columns = list(zip(*(result.rewards for result in results), strict=True))
    return ValidationMetrics(
        weights_version=version,
        iteration=version,
        score=sum(scores) / len(scores),
        score_error=_error(scores),
        rewards={
            name: sum(column) / len(column) for name, column in zip(names, columns, strict=True)
        },
        reward_errors={name: _error(column) for name, column in zip(names, columns, strict=True)},
        checks=_checks(results, job),
        images=len(results),
    )


def _checks(results: Sequence[Result], job: JobSpec) -> float | None:
    weights = [reward.weight for reward in job.validation.rewards]
    if not weights:
        return None
    means = [weighted_mean(result.rewards[len(job.rewards) :], weights) for result in results]
    return sum(means) / len(means)


def as_validation(metrics: ValidationMetrics, checks: Iterable[str]) -> Validation:
    """What of a validation says whether the model games its reward.

    Args:
        checks: names of the rewards that are not trained on.
    """
    return Validation(
        metrics.weights_version,
        Estimate(metrics.score, metrics.score_error or 0.0),
        {
            name: Estimate(metrics.rewards[name], metrics.reward_errors.get(name, 0.0))
            for name in checks
            if name in metrics.rewards
        },
    )


def pictures(results: Iterable[Result], job: JobSpec) -> list[Picture]:
    """Those of the images that were left as pictures, by prompt."""
    shown = [result for result in results if result.request.image_key]
    return [
        Picture(
            prompt=result.request.prompt,
            reward=_score(result, job),
            file=Path(result.request.image_key).name,
            seed=result.request.seed,
        )
        for result in sorted(shown, key=lambda result: result.request.group)
    ]


def left_pictures(results: Iterable[Result]) -> dict[str, str]:
    """By file the key under which a worker has left it in the run's store."""
    return {
        Path(result.request.image_key).name: picture_key(result)
        for result in results
        if result.request.image_key
    }


def _score(result: Result, job: JobSpec) -> float:
    """The mean, by weight, of the rewards that are trained on."""
    return weighted_mean(result.rewards[: len(job.rewards)], job.reward_weights)


def _error(values: Sequence[float]) -> float:
    """Standard error of the mean; 0 for a single value."""
    return spread(list(values)) / math.sqrt(max(1, len(values) - 1))
