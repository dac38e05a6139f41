"""The metrics of a run: one record per line of `metrics.jsonl`, tagged by its kind. Who writes a
run folder and who reads one use these very types; they use nothing of ours.

Times are in seconds, and spreads are standard deviations. None stands for what was not measured;
an older Spotlight did not write all of these.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec


class RunMetrics(msgspec.Struct, kw_only=True, tag_field="kind"):
    """What was measured of a part of a run."""

    time_s: float = 0.0
    """Seconds of run time when the part was over; whoever writes the line fills them in."""


class IterationMetrics(RunMetrics, kw_only=True, tag="iteration"):
    """What was measured during one iteration, besides the further metrics of the loss, which stand
    in the same line.
    """

    iteration: int
    """Number of the iteration, from 0."""
    weights_version: int = 0
    """Version of the weights that made the samples."""

    publish_s: float | None = None
    """Time from the end of training to the first grant with the new weights."""
    explore_s: float | None = None
    """Time of exploration that nothing else went on beside: with fresh weights."""
    rollout_s: float | None = None
    """Time from the beginning of the rollout until all samples were there."""
    train_s: float | None = None
    """Time that training took."""
    scoring_s: float | None = None
    """Time that scoring took since the iteration before, all workers together, whatever their
    states were."""

    samples: int = 0
    """Number of the samples that were trained on."""
    samples_restored: int = 0
    """Number of those that were made before a coordinator came back, and are not in `rollout_s`."""
    images_per_s: float | None = None
    """Samples made per second of the rollout."""
    reward_mean: float | None = None
    """Mean of the rewards of the samples; of several rewards the mean by their weights."""
    reward_std: float | None = None
    """Spread of the rewards of the samples, averaged by their weights in each."""
    rewards: dict[str, float] = {}
    """Mean over the samples of each reward, by its name."""
    reward_stds: dict[str, float] = {}
    """Spread over the samples of each reward, by its name."""
    group_std_mean: float | None = None
    """Mean over the prompt groups of the spread of their rewards; several rewards are summed, here
    and below, each by its weight over its usual spread within a prompt group."""
    zero_variance_groups: int = 0
    """Number of the prompt groups whose samples all have the same rewards."""
    contrast: float | None = None
    """Root mean square over the prompt groups of the spread of their rewards."""
    contrast_at_random: float | None = None
    """The same, to expect of as many seeds taken at random, from the rewards of probes."""
    loss: float | None = None
    """Mean loss of the update."""
    grad_norm: float | None = None
    """Norm of the gradient before it is clipped."""
    learning_rate: float | None = None
    """Mean learning rate of the updates."""

    previews: int = 0
    """Number of the scored previews that chose the seeds of this iteration."""
    previews_late: int = 0
    """Number of the previews that came too late for that."""
    explored_prompts: int = 0
    """Number of the prompt groups of which several samples had a preview."""
    preview_group_std_mean: float | None = None
    """Mean spread, over these groups, of the previews of the kept seeds."""
    explored_std_mean: float = 0.0
    """Mean spread, over these groups, of the samples of the same seeds."""
    realised_share: float | None = None
    """Share that samples had of the gain in spread over any seeds that previews promised."""
    rank_correlation: float | None = None
    """Spearman correlation of preview and sample rewards, median over the prompt groups."""
    probes: int = 0
    """Number of the previewed seeds, drawn at random, that were regenerated whether or not they
    were chosen, to see whether previews are true."""
    probe_correlation: float | None = None
    """Spearman correlation of the preview and fresh rewards of probes."""
    probe_tau: float | None = None
    """Kendall's tau-b of these, with those of earlier iterations, which fade."""
    preview_steps: int | None = None
    """Denoising steps of the previews that chose the seeds of this iteration."""
    prompt_pool: int | None = None
    """Over how many times the iteration's prompts these previews were spread."""
    window_s: float | None = None
    """Time to explore in for the next iteration: what training was predicted to take, less what
    open validations need of it; None if there was no prediction."""
    exploration_share: float = 1.0
    """Share that was made of the previews that the job allows, for the next iteration; with fresh
    weights for this one."""


class ValidationMetrics(RunMetrics, kw_only=True, tag="validation"):
    """What was measured of one weights version by validation."""

    weights_version: int
    """Version of the weights that were validated."""
    score: float
    """Mean reward of the validation images; of several rewards the mean by their weights."""
    score_error: float | None = None
    """Standard error of the score, by the spread of the images."""
    rewards: dict[str, float] = {}
    """Mean of each reward, by its name, those that are not trained on included."""
    reward_errors: dict[str, float] = {}
    """Standard error of each of these."""
    checks: float | None = None
    """Mean by their weights of the rewards that are not trained on; None if there are none."""
    iteration: int = 0
    """Number of the iterations that were trained before."""
    images: int = 0
    """Number of the validation images."""


_DECODER = msgspec.json.Decoder(IterationMetrics | ValidationMetrics)


def with_update(
    metrics: IterationMetrics, update: Mapping[str, float]
) -> tuple[IterationMetrics, dict[str, float]]:
    """An iteration with what was measured of its update, as its line says it, and the further
    metrics of the loss.
    """
    known = {field.name for field in msgspec.structs.fields(IterationMetrics)}
    filled = {name: value for name, value in update.items() if name in known}
    further = {name: value for name, value in update.items() if name not in known}
    return msgspec.structs.replace(metrics, **filled), further


def further_metrics(line: bytes) -> dict[str, float]:
    """The further metrics of the loss in the line of an iteration."""
    said: dict[str, object] = msgspec.json.decode(line)
    known = {"kind", *(field.name for field in msgspec.structs.fields(IterationMetrics))}
    return {
        name: float(value)
        for name, value in said.items()
        if name not in known and isinstance(value, int | float)
    }


def decode_metrics(line: bytes) -> IterationMetrics | ValidationMetrics:
    """The record of a line that this Spotlight wrote; raises `msgspec.MsgspecError` for others."""
    return _DECODER.decode(line)
