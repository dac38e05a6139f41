"""Groups of a rollout as what `Trainer` takes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from spotlight.errors import JobError
from spotlight.jobs import SamplerSpec, TrainingSpec
from spotlight.policies.advantages import mixed_advantages
from spotlight.rollouts.groups import Group, Sample
from spotlight.training.batches import TrainingBatch


def training_batch(
    groups: Iterable[Group],
    training: TrainingSpec,
    sampler: SamplerSpec,
    weights: Mapping[str, float] | None = None,
) -> TrainingBatch:
    """The samples of the groups with their advantages, by the order of the requests: the order in
    which the groups were done makes no difference.

    Args:
        training: says how advantages are made of rewards.
        sampler: the session's.
        weights: of the session's rewards, by their names. Each reward is then normalised by itself
            before they are summed. Without `weights` the advantages are made of `Sample.reward`.

    Raises `JobError` naming the field, when there is no sample, when a sample has no reward or no
    tensors, or when samples were not denoised alike.
    """
    ordered = sorted(groups, key=lambda group: group.index)
    samples = [sample for group in ordered for sample in group.samples]
    if not samples:
        raise JobError("groups", "hold no sample; `Group.failed` says what became of each")
    advantages = mixed_advantages(
        [_rewards(sample, weights) for sample in samples],
        [number for number, group in enumerate(ordered) for _ in group.samples],
        [1.0] if weights is None else list(weights.values()),
        baseline=training.advantage_baseline,
        std=training.advantage_std,
        clip=training.largest_advantage,
    )
    noisy = sampler.kind != "ode"
    if noisy and {group.request.steps for group in ordered} - {None, sampler.steps}:
        raise JobError("steps", f"must be the sampler's {sampler.steps}: a loss repeats them")
    return TrainingBatch(
        prompts=[sample.prompt for sample in samples],
        latents=_rows(samples, "latents"),
        advantages=torch.tensor(advantages),
        window_states=_rows(samples, "states") if noisy else None,
        log_probs=_rows(samples, "log_probs") if noisy else None,
        window_start=_window_start(ordered, sampler) if noisy else 0,
        seeds=[sample.seed for sample in samples],
    )


def _rewards(sample: Sample, weights: Mapping[str, float] | None) -> list[float]:
    if weights is None:
        if sample.reward is None:
            raise JobError("rewards", "the session scores nothing; name its `rewards`")
        return [sample.reward]
    if sample.rewards.keys() != weights.keys():
        raise JobError(
            "weights",
            f"are of {sorted(weights)}, but the session's rewards are {sorted(sample.rewards)}",
        )
    return [sample.rewards[name] for name in weights]


def _rows(samples: Iterable[Sample], name: str) -> Tensor:
    rows: list[Tensor | None] = [getattr(sample, name) for sample in samples]
    found = [row for row in rows if row is not None]
    if len(found) < len(rows):
        raise JobError(name, f"{len(rows) - len(found)} of {len(rows)} samples came without them")
    if len({row.shape for row in found}) > 1:
        shapes = sorted({tuple(row.shape) for row in found})
        raise JobError(name, f"of these samples have the shapes {shapes}; train on them apart")
    return torch.stack(found)


def _window_start(groups: Iterable[Group], sampler: SamplerSpec) -> int:
    asked = {group.request.window_start for group in groups}
    starts = {sampler.window.earliest if start is None else start for start in asked}
    if len(starts) > 1:
        raise JobError("window_start", f"of these groups are {sorted(starts)}; train on them apart")
    return starts.pop()
