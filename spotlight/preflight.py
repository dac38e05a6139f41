"""Checks a job against this machine before any process starts.

Checked are the checkpoint, sizes, SP degree, prompts and free disk space, and, where workers are to
run on this machine, their number and the packages that they need.

Reads JSON, the headers of safetensors files and file sizes, and asks which packages are installed;
it imports none of them and needs no torch. Each problem is one `UserError` whose message names the
field or the path and says what to do.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from spotlight.assets import read_prompts
from spotlight.checkpoint_info import CheckpointInfo, inspect_checkpoint
from spotlight.errors import JobError, MissingDependency, RunFolderError
from spotlight.jobs import JobSpec, SamplerSpec
from spotlight.rewards.quotes import quoted_text
from spotlight.rewards.shape_prompts import read_shape_metadata

__all__ = ["CheckpointInfo", "check", "disk_nbytes"]

_WORKER_MODULES = ("torch", "diffusers", "safetensors", "numpy", "PIL")
_SCORER_MODULES = {"ocr": ("rapidocr_onnxruntime", "onnxruntime"), "compositional": ("cv2",)}
_LARGEST_GRID = 4096  # tokens along an edge: Qwen-Image has a table of positions of this length


def check(
    job: JobSpec, *, run_folder: Path | None = None, local_workers: bool = True
) -> CheckpointInfo:
    """Raise what is wrong with a job on this machine; otherwise describe its checkpoint.

    `run_folder` is where the run will write (the working folder when absent); `local_workers` says
    that the workers are those of the job's `pools`, on this machine: they must be enough, and their
    packages must be installed here.

    Raises `CheckpointError`, `JobError`, `MissingDependency` or `RunFolderError`.
    """
    checkpoint = inspect_checkpoint(job.model)
    _check_size(job.sampler, checkpoint)
    _check_degree(job.sampler, checkpoint)
    _check_prompts(job)
    if local_workers:
        _check_pools(job)
        _check_packages(job, checkpoint)
    _check_disk(job, checkpoint, run_folder or Path.cwd())
    return checkpoint


def disk_nbytes(job: JobSpec, checkpoint: CheckpointInfo) -> int:
    """About how many bytes a run folder grows to.

    Two checkpoints (a new one is complete before the old one goes), the published weights, the
    exported model, and the validation pictures. Training keeps float32 weights, their average, two
    moments, and an old policy or a reference model where the job has one.
    """
    copies = 4 + (job.training.rollout_decay > 0) + (job.training.kl > 0)
    weights = 4 * checkpoint.trainable
    exported = checkpoint.weights_nbytes if job.model.tuning == "full" else weights
    picture = 3 * job.sampler.height * job.sampler.width
    pictures = 3 * picture * len(set(read_prompts(job.prompts.validation)))
    return 2 * copies * weights + 2 * weights + exported + pictures


def _check_size(sampler: SamplerSpec, checkpoint: CheckpointInfo) -> None:
    edge = checkpoint.pixels_per_token
    for field in ("height", "width"):
        pixels = getattr(sampler, field)
        if pixels % edge:
            below, above = pixels // edge * edge, (pixels // edge + 1) * edge
            choice = f"{below} or {above}" if below else f"{above}"
            raise JobError(
                f"sampler.{field}",
                f"{pixels} pixels cannot be cut into patches of {edge} pixels; use {choice}",
            )
        if pixels // edge > _LARGEST_GRID:
            raise JobError(
                f"sampler.{field}",
                f"{pixels} pixels are more than the model has positions for; use at most "
                f"{_LARGEST_GRID * edge}",
            )


def _check_degree(sampler: SamplerSpec, checkpoint: CheckpointInfo) -> None:
    degree, size = sampler.degree, (sampler.height, sampler.width)
    if degree == "auto":
        return
    reason = checkpoint.refusal(degree, *size)
    if reason is not None:
        possible = ", ".join(str(one) for one in checkpoint.degrees(degree, *size))
        raise JobError("sampler.degree", f"{reason}; use `auto` or one of {possible}")


def _check_prompts(job: JobSpec) -> None:
    train = _prompts("prompts.train", job.prompts.train)
    validation = _prompts("prompts.validation", job.prompts.validation)
    shared = [prompt for prompt in validation if prompt in set(train)]
    if shared:
        raise JobError(
            "prompts.validation",
            f"{len(shared)} of its prompts are in `prompts.train` too, such as {shared[0]!r}; "
            "validate on prompts that are not trained on",
        )
    distinct = len(set(train))
    if distinct < job.prompts.per_iteration:
        raise JobError(
            "prompts.per_iteration",
            f"{job.prompts.per_iteration} prompts are drawn for an iteration, but `prompts.train` "
            f"has only {distinct}; lower it or add prompts",
        )
    if distinct < job.explored_prompts:
        raise JobError(
            "exploration.prompt_pool",
            f"{job.explored_prompts} prompts are explored for an iteration, but `prompts.train` "
            f"has only {distinct}; lower it or add prompts",
        )
    if job.reward.kind == "ocr":
        _check_quotes("prompts.train", train)
        _check_quotes("prompts.validation", validation)
    else:
        _check_metadata(job.reward.metadata, train, validation)


def _prompts(field: str, name: str) -> list[str]:
    try:
        return read_prompts(name)
    except JobError as error:
        raise JobError(field, error.problem) from error


def _check_quotes(field: str, prompts: Sequence[str]) -> None:
    """The OCR reward compares with the first text in double quotes; without one it cannot score."""
    for prompt in prompts:
        if not quoted_text(prompt):
            raise JobError(
                field,
                f"{prompt!r} has no text in double quotes for the `ocr` reward to look for; add it",
            )


def _check_metadata(names: Sequence[str], train: Sequence[str], validation: Sequence[str]) -> None:
    """The compositional reward looks up what a prompt asks for; a prompt without that it cannot
    score.
    """
    metadata = read_shape_metadata(names)
    for field, prompts in (("prompts.train", train), ("prompts.validation", validation)):
        unknown = [prompt for prompt in prompts if prompt not in metadata]
        if unknown:
            raise JobError(
                "reward.metadata",
                f"has no line for {len(unknown)} prompts of `{field}`, such as {unknown[0]!r};"
                " add them",
            )


def _check_pools(job: JobSpec) -> None:
    """Nobody else joins whom the trainer ranks could wait for."""
    ranks, reserved = job.training.ranks, job.pools.reserved
    if ranks > reserved.nodes * reserved.workers:
        raise JobError(
            "training.ranks",
            f"{ranks} trainer ranks need as many reserved workers, but `pools.reserved` has only"
            f" {reserved.nodes * reserved.workers}; raise its `nodes` or `workers`",
        )


def _check_packages(job: JobSpec, checkpoint: CheckpointInfo) -> None:
    needed = list(_WORKER_MODULES)
    if job.model.tuning == "lora":
        needed.append("peft")
    if checkpoint.needs_transformers:
        needed.append("transformers")
    _require_packages(needed, "worker", "workers on this machine need")
    scorer = _SCORER_MODULES[job.reward.kind]
    _require_packages(scorer, "rewards", f"`reward.kind: {job.reward.kind}` needs")


def _require_packages(modules: Sequence[str], extra: str, who: str) -> None:
    missing = [module for module in modules if find_spec(module) is None]
    if missing:
        raise MissingDependency(
            f"{who} {', '.join(missing)}, which is not installed here: "
            f'pip install "spotlight-rl[{extra}]"'
        )


def _check_disk(job: JobSpec, checkpoint: CheckpointInfo, run_folder: Path) -> None:
    places = (run_folder, *run_folder.absolute().parents)
    try:
        free = shutil.disk_usage(next(path for path in places if path.exists())).free
    except OSError as error:
        raise RunFolderError(
            f"{run_folder}: {error.strerror}; choose another run folder"
        ) from error
    needed = disk_nbytes(job, checkpoint)
    if needed > free:
        raise RunFolderError(
            f"{run_folder}: the run needs about {needed / 1e9:.1f} GB, but only "
            f"{free / 1e9:.1f} GB are free; free some space or choose another run folder"
        )
