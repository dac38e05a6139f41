"""The table of memory that `spotlight plan` prints."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

from rich.console import RenderableType
from rich.table import Table

from spotlight.cli.plan import amount
from spotlight.diffusion.activations import FLOAT32
from spotlight.jobs import JobSpec
from spotlight.preflight.checkpoint_facts import CheckpointInfo
from spotlight.preflight.gpus import gpu_nbytes, require_fit
from spotlight.preflight.memory import PHASES, MemoryPlan, memory_plan
from spotlight.store.memory_folder import default_base


def memory_table(
    job: JobSpec,
    checkpoint: CheckpointInfo,
    gpu: str,
    store: Path | None,
    *,
    images: int = 0,
) -> RenderableType:
    """Bytes of both kinds of workers by part.

    Args:
        gpu: its name, or empty for workers on CPUs, which compute in float32.
        images: bytes of the files of images that prompts come with.

    Raises the `JobError` of a job that does not fit into the GPU, and `UserError` for one that is
    not known.
    """
    if gpu:
        nbytes = gpu_nbytes(gpu)
        plan = require_fit(job, checkpoint, nbytes)
        title = f"Memory of {gpu} ({nbytes / 1e9:.1f} GB)"
    else:
        plan, title = memory_plan(job, checkpoint, nbytes=FLOAT32), "Memory on CPUs"
    table = Table(title=f"{title}, computed from the checkpoint's files", title_justify="left")
    table.add_column("")
    table.add_column("trains", justify="right")
    table.add_column("denoises", justify="right")
    for row in _rows(plan, store or default_base(), images):
        table.add_row(*row)
    return table


def _rows(plan: MemoryPlan, store: Path, images: int) -> Iterator[tuple[str, str, str]]:
    there = {part.name: part.nbytes for part in plan.denoiser.parts}
    for phase in PHASES:
        said = "" if phase == "always" else f"while {phase}: "
        for part in plan.trainer.parts:
            if part.phase == phase and part.nbytes:
                yield said + part.name, _said(part.nbytes), _said(there.get(part.name, 0))
    yield "most at one time", _said(plan.trainer.most), _said(plan.denoiser.most)
    yield "host memory while loading", _said(plan.loading), _said(plan.loading)
    yield "host memory for encoders", _said(plan.resting), _said(plan.resting)
    if images:
        fetched = 2 * images  # the bundle, and the files in it
        yield "host memory while images are fetched", _said(fetched), _said(fetched)
        yield "host memory for images", _said(images), _said(images)
    yield "host memory for training", _said(plan.training), ""
    yield "host memory while saving", _said(plan.saving), ""
    free = shutil.disk_usage(store).free
    said = f"the node's store ({store}: {_said(free)} free here)"
    yield said, _said(plan.trainer_store), _said(plan.denoiser_store)


def _said(nbytes: int) -> str:
    return f"{amount(nbytes)}B" if nbytes else ""
