"""What a study of staleness will do, checked before a model is loaded. Imports no torch."""

from __future__ import annotations

import random
from pathlib import Path

import msgspec

from spotlight.assets import read_prompts
from spotlight.errors import UserError
from spotlight.jobs import JobSpec
from spotlight.policies.exploration.planners import derived_seed
from spotlight.store.run_folder import read_config

_LEAST_SEEDS = 16
_MOST_SEEDS = 4096
_LONGEST_LAG = 1000


class StalenessPlan(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Whose seeds are scored with which weights."""

    run: str
    """The run folder."""
    job: JobSpec
    checkpoint: str
    """The checkpoint from which training goes on; empty for the job's initial weights."""
    prompts: tuple[str, ...]
    seeds: tuple[tuple[int, ...], ...]
    """The seeds of every prompt."""
    lags: tuple[int, ...]
    """Iterations between two weights, ascending, above 0. As many as the last are trained."""
    seed: int
    """Decides prompts, seeds and resamples."""


def plan_staleness(
    run: Path, *, seeds: int | None, prompts: int, lags: str, seed: int
) -> StalenessPlan:
    """The study of a run.

    Args:
        run: its folder; nothing in it is changed.
        seeds: per prompt; by default twice the job's group size, and 16 at least.
        prompts: how many of the training prompts.
        lags: as `1,2,4,8`.
        seed: decides every random choice.

    Raises `RunFolderError`, `JobError`, or `UserError` naming the option that does not fit.
    """
    job = read_config(run)
    if seeds is None:
        seeds = max(_LEAST_SEEDS, 2 * job.group_size)
    if seeds <= job.group_size:
        raise UserError(
            f"--seeds: must be more than the job's group size of {job.group_size}, not {seeds}:"
            " otherwise all are kept and there is nothing to choose"
        )
    if seeds > _MOST_SEEDS:
        raise UserError(f"--seeds: must be at most {_MOST_SEEDS:,}, not {seeds:,}")
    texts = list(dict.fromkeys(read_prompts(job.prompts.train)))
    if not 1 <= prompts <= len(texts):
        raise UserError(
            f"--prompts: must be from 1 to {len(texts)}, the prompts in {job.prompts.train}, not"
            f" {prompts}"
        )
    checkpoints = sorted((run / "checkpoints").glob("iteration-*.safetensors"))
    drawn = sorted(random.Random(seed).sample(range(len(texts)), prompts))
    return StalenessPlan(
        run=str(run),
        job=job,
        checkpoint=str(checkpoints[-1]) if checkpoints else "",
        prompts=tuple(texts[index] for index in drawn),
        seeds=tuple(
            tuple(derived_seed(seed, "staleness", index, number) for number in range(seeds))
            for index in drawn
        ),
        lags=_read_lags(lags),
        seed=seed,
    )


def _read_lags(text: str) -> tuple[int, ...]:
    try:
        lags = {int(part) for part in text.split(",")}
    except ValueError:
        lags = set()
    lags.discard(0)  # the newest weights are always scored
    if not lags or min(lags) < 0:
        raise UserError(
            f"--lags: must be whole numbers of iterations such as `1,2,4,8`, not `{text}`"
        )
    if max(lags) > _LONGEST_LAG:
        raise UserError(
            f"--lags: must be at most {_LONGEST_LAG:,}, not {max(lags):,}: so many iterations are"
            " trained"
        )
    return tuple(sorted(lags))
