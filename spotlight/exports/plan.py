"""Which weights of a run are exported, and where to: decided before torch is loaded."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Literal

import msgspec

from spotlight.assets import read_prompts
from spotlight.diffusion.checkpoint_files import read_header
from spotlight.diffusion.checkpoint_names import folder_here
from spotlight.diffusion.families.base import SECOND
from spotlight.diffusion.families.registry import changes_images
from spotlight.errors import CheckpointError, RunFolderError, UnreadableFile, UserError
from spotlight.exports.card import NAME as CARD
from spotlight.exports.card import CardFacts, model_card
from spotlight.files import MEBIBYTE, read_text
from spotlight.jobs import JobSpec, ModelSpec
from spotlight.jobs.plain_yaml import PlainYAMLError, read_yaml
from spotlight.policies.checkpoint_retention import best_version, checks_of, scores_of
from spotlight.store.run_folder import (
    checkpoint_path,
    read_config,
    saved_iterations,
    validations_of,
)
from spotlight.types import ADAPTER_FORMATS, ExportedWeights, ExportFormat


class ExportPlan(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is written where."""

    model: ModelSpec
    """The model of the job."""
    checkpoint: str
    """The file with the weights."""
    role: Literal["ema", "weights"]
    """Which of its weights: the average that validation scores, or the newest."""
    format: ExportFormat
    """The library that it is written for."""
    folder: str
    """Where to; new or empty."""
    iteration: int
    """Iterations that the weights were trained."""
    score: float | None
    """Validation score of the average; None if this iteration was not validated."""
    card: str
    """The model card, as Markdown."""


def plan_export(
    run: Path, *, weights: ExportedWeights, format: ExportFormat, folder: Path | None = None
) -> ExportPlan:
    """The export of a run, whether or not it has ended.

    Args:
        run: its folder; nothing in it is changed but for the new folder.
        weights: `best` is the average with the best validation score, of the checkpoints that are
            there, and `checked` the one that is best by the rewards that nobody trains on; `ema` is
            the average, and `newest` the trained weights, of the newest checkpoint.
        format: for whom; `peft` and `comfyui` take only adapters.
        folder: new or empty; by default one in the run folder's `exports/`.

    Raises `RunFolderError`, or `UserError` naming the option that does not fit.
    """
    job = read_config(run)
    model = job.model
    if format in ADAPTER_FORMATS and model.tuning != "lora":
        raise UserError(
            f"--format {format}: this job trains all weights, but {format} reads only adapters"
            " (`model.tuning: lora`) here; use `--format diffusers`"
        )
    saved, validations = saved_iterations(run), validations_of(run)
    if not saved:
        raise RunFolderError(
            f"{run / 'checkpoints'} holds no checkpoint yet; wait for the first"
            " (`checkpoint_every` in the job says when)"
        )
    iteration = saved[-1]
    if weights == "best":
        iteration = _best(saved, scores_of(validations), "no checkpoint of this run is validated")
    elif weights == "checked":
        problem = "no checkpoint of this run has a validation with `validation.rewards`"
        iteration = _best(saved, checks_of(validations), problem)
    base = folder_here(model.checkpoint)
    folder = folder or run / "exports" / f"iteration-{iteration:06d}-{weights}-{format}"
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"--to: {folder} already exists; give a new or an empty folder")
    return ExportPlan(
        model=model,
        checkpoint=str(run / checkpoint_path(iteration)),
        role="weights" if weights == "newest" else "ema",
        format=format,
        folder=str(folder),
        iteration=iteration,
        score=None if weights == "newest" else scores_of(validations).get(iteration),
        card=model_card(
            job,
            CardFacts(
                format=format,
                iteration=iteration,
                validations=validations,
                prompts=_prompts(job),
                of_two=_is_of_two(run / checkpoint_path(iteration)),
                changes_images=changes_images(base),
                licence=_licence(base),
            ),
        ),
    )


def _prompts(job: JobSpec) -> list[str]:
    """The validation prompts, if their file is still there."""
    with suppress(UserError):
        return read_prompts(job.prompts.validation)
    return []


def _is_of_two(checkpoint: Path) -> bool:
    """Whether two transformers were trained, by the names of their weights."""
    with suppress(CheckpointError):  # who exports it says what is wrong with it
        return any(f"/{SECOND}." in name for name in read_header(checkpoint).tensors)
    return False


def _licence(base: Path | None) -> str | None:
    """What the card of a checkpoint calls its licence, if there is one in its folder."""
    with suppress(UnreadableFile, PlainYAMLError):
        if base is None:
            return None
        text = read_text(base / CARD, most=MEBIBYTE)
        head = re.match(r"---\n(.*?\n)---\n", text, flags=re.DOTALL)
        said = read_yaml(head[1]) if head else None
        licence = said.get("license") if isinstance(said, dict) else None
        return licence if isinstance(licence, str) else None
    return None


def _best(saved: Sequence[int], by: Mapping[int, float], problem: str) -> int:
    best = best_version({one: by[one] for one in saved if one in by})
    if best is None:
        raise UserError(f"--weights: {problem}; use `--weights ema`")
    return best
