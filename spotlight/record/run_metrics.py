"""The metrics of a run: one record per line of `metrics.jsonl`, tagged by its kind. Writers and
readers of run folders use these same types, which import nothing of ours.

Times are in seconds, and spreads are standard deviations. None stands for what was not measured;
older versions of Spotlight did not write all fields.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec


class RunMetrics(msgspec.Struct, kw_only=True, tag_field="kind"):
    """What was measured of a part of a run."""

    time_s: float = 0.0
    """Seconds of run time when this part was over; filled in when the line is written."""
    at: float | None = None
    """The same moment in seconds since 1970 (UTC); filled in, too. None in older records."""


class IterationMetrics(RunMetrics, kw_only=True, tag="iteration"):
    """Measurements of one iteration. The same line also has the loss's own metrics."""

    iteration: int
    """Number of the iteration, from 0."""
    weights_version: int = 0
    """Version of the weights that made the samples, but for those that were previews, or were made
    again."""

    publish_s: float | None = None
    """Time from the end of training to the first grant with the new weights."""
    explore_s: float | None = None
    """Time of exploration while nothing else ran, which happens with
    `exploration.weights: fresh`."""
    rollout_s: float | None = None
    """Time from the beginning of the rollout until all samples were there."""
    train_s: float | None = None
    """Time that training took."""
    slices: int = 0
    """Number of slices of updates whose gradients were added, with `training.slices` above 1."""
    slices_by_others: int = 0
    """How many of these workers computed that are no trainer ranks."""
    scoring_s: float | None = None
    """Time that scoring took since the previous iteration, summed over all workers, whatever their
    states were."""

    samples: int = 0
    """Number of samples that were made and scored, to be trained on."""
    samples_left_out: int = 0
    """How many of these were not trained on, because the rewards of their prompt groups vary too
    little (`training.variance_share`)."""
    samples_reused: int = 0
    """How many of these were there before the rollout began: previews, or seeds that were finished,
    made with the weights of the iteration before, or with `exploration.weights: fresh` with those
    of the iteration."""
    samples_finished: int = 0
    """How many of these were chosen by previews of fewer steps and then denoised in full with the
    same weights, while the iteration before was trained."""
    samples_made_again: int = 0
    """How many of these had been made with the weights of the iteration before, were lost with the
    machine that kept them, and were made again with the same weights."""
    samples_restored: int = 0
    """How many of these were made before a restart of the coordinator, and are not in
    `rollout_s`."""
    images_per_s: float | None = None
    """Samples made per second of the rollout."""
    reward_mean: float | None = None
    """Mean reward of the samples; with several rewards, their weighted mean."""
    reward_std: float | None = None
    """Spread of the samples' weighted mean rewards."""
    rewards: dict[str, float] = {}
    """Mean over the samples of each reward, by its name."""
    reward_stds: dict[str, float] = {}
    """Spread over the samples of each reward, by its name."""
    group_std_mean: float | None = None
    """Mean over the prompt groups of the spread of their rewards. Here and below, several rewards
    are summed, each with its weight divided by its usual spread within a prompt group."""
    zero_variance_groups: int = 0
    """Number of prompt groups whose samples all have the same rewards."""
    contrast: float | None = None
    """Root mean square over the prompt groups of the spread of their rewards."""
    contrast_at_random: float | None = None
    """The same for as many random seeds, by the rewards of random groups and of probes, or of the
    first previews of each prompt where those are trained on."""
    random_groups: int = 0
    """Number of prompt groups whose random seeds tell this."""
    contrast_beside_random: float | None = None
    """The same as `contrast`, of these prompt groups alone; with a prompt pool of all, as their
    choice is a part of exploration."""
    random_late: int = 0
    """Number of images of random groups that came too late to tell, or not at all."""
    loss: float | None = None
    """Mean loss of the update."""
    drift: float | None = None
    """Mean squared change of the velocity in the update, divided by its mean square; where samples
    may be one iteration old only."""
    reuse_weight: float | None = None
    """How much a sample's noisy step counts on average, by how probable the newest weights find it;
    1 where they made it themselves. It is there with `exploration.reuse` and Flow-GRPO or
    GRPO-Guard, is nearly 1 always, and corrects nothing: log-probabilities are means over the
    latents."""
    reuse_truncated: float | None = None
    """Share of the noisy steps that would count more than twice, which is the most."""
    grad_norm: float | None = None
    """Norm of the gradient before it is clipped."""
    learning_rate: float | None = None
    """Mean learning rate of the updates."""

    previews: int = 0
    """Number of scored previews from which the seeds of this iteration were chosen."""
    previews_late: int = 0
    """Number of previews that came too late for that."""
    explored_prompts: int = 0
    """Number of prompt groups with a preview of more than one sample."""
    preview_group_std_mean: float | None = None
    """Spread of the preview rewards of the kept seeds, mean over these groups."""
    explored_std_mean: float = 0.0
    """Spread of the sample rewards of the same seeds, mean over these groups."""
    realised_share: float | None = None
    """Previews promise a gain in spread over random seeds; the share of it that the samples
    have."""
    rank_correlation: float | None = None
    """Spearman correlation of preview rewards and sample rewards, median over the prompt groups."""
    probes: int = 0
    """Number of previewed seeds, drawn at random, that were regenerated whether or not they were
    chosen, to see whether previews predict rewards."""
    probe_correlation: float | None = None
    """Spearman correlation of the preview and fresh rewards of probes."""
    probe_tau: float | None = None
    """Kendall's tau-b of the same, over this and earlier iterations; older ones count less."""
    choice_worth: float | None = None
    """How many times as much a kept sample is estimated to teach as a random one, since so many
    previews were made of which the best are kept: the growth of the variance of rewards within a
    prompt group, by the previews of this and earlier iterations, older ones of which count less."""
    choice_worth_doubled: float | None = None
    """The same if twice as many previews were made."""
    window_s: float | None = None
    """Time for exploring the next iteration: the predicted time of training, less the time that
    open validations need; None if there was no prediction."""
    exploration_share: float = 1.0
    """Share of the job's previews that exploration may make, for the next iteration; with fresh
    weights, for this one."""

    @property
    def rolled_out(self) -> int:
        """Number of samples that were made in `rollout_s`."""
        return self.samples - self.samples_restored - self.samples_reused


class ValidationMetrics(RunMetrics, kw_only=True, tag="validation"):
    """Measurements of one weights version by validation."""

    weights_version: int
    """Version of the weights that were validated."""
    score: float
    """Mean reward of the validation images; with several rewards, their weighted mean."""
    score_error: float | None = None
    """Standard error of the score, from the spread between images."""
    rewards: dict[str, float] = {}
    """Mean of each reward, by its name, including those that are not trained on."""
    reward_errors: dict[str, float] = {}
    """Standard error of each of these."""
    checks: float | None = None
    """Weighted mean of the rewards that are not trained on; None if there are none."""
    iteration: int = 0
    """Number of iterations that were trained before."""
    images: int = 0
    """Number of validation images."""


MEASURED_BESIDE = frozenset(
    {
        "contrast_at_random",
        "contrast_beside_random",
        "random_groups",
        "random_late",
        "slices_by_others",
    }
)
"""What depends on who had time: it may differ between runs that train on the same samples."""

_DECODER = msgspec.json.Decoder(IterationMetrics | ValidationMetrics)
_OF_ITERATION = frozenset(field.name for field in msgspec.structs.fields(IterationMetrics))


def with_update(
    metrics: IterationMetrics, update: Mapping[str, float]
) -> tuple[IterationMetrics, dict[str, float]]:
    """An iteration's record with the measurements of its update, and the loss's own metrics."""
    filled = {name: value for name, value in update.items() if name in _OF_ITERATION}
    further = {name: value for name, value in update.items() if name not in _OF_ITERATION}
    return msgspec.structs.replace(metrics, **filled), further


def further_metrics(line: bytes) -> dict[str, float]:
    """The further metrics of the loss in the line of an iteration."""
    said: dict[str, object] = msgspec.json.decode(line)
    return {
        name: float(value)
        for name, value in said.items()
        if name not in _OF_ITERATION and name != "kind" and isinstance(value, int | float)
    }


def decode_metrics(line: bytes) -> IterationMetrics | ValidationMetrics:
    """The record of a line that this Spotlight wrote; raises `msgspec.MsgspecError` for others."""
    record: IterationMetrics | ValidationMetrics = _DECODER.decode(line)
    return record
