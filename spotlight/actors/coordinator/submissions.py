"""Reads what a submission names, and says why it cannot start. For a thread: it waits for disks.

Whoever submits a job is answered with the reason, so no error holds what stands in a file.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import structlog

from spotlight.actors.protocol import SubmitJob, TensorShape
from spotlight.errors import JobError, RequestRefused, RunFolderError
from spotlight.files import path_problem
from spotlight.jobs import JobSpec, WorkSpec, parse_job
from spotlight.preflight.checkpoint_facts import CheckpointInfo
from spotlight.preflight.checks import JobFiles, check, check_work, read_job_files, settled
from spotlight.preflight.trainable import trainable_shapes
from spotlight.store.run_folder import next_run_folder, read_config, read_config_text

log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class Submission:
    """A job that can start."""

    run_folder: Path
    job: JobSpec
    files: JobFiles


@dataclass(frozen=True)
class SessionFiles:
    """What the checkpoint of a session says."""

    checkpoint: CheckpointInfo
    tensors: tuple[TensorShape, ...]
    """Those that a publication holds."""


def read_session_files(work: WorkSpec) -> SessionFiles:
    """Read and check what another program wants done; raises `CheckpointError` or `JobError`."""
    checkpoint, shapes = check_work(work), trainable_shapes(work.model)
    return SessionFiles(checkpoint, tuple(TensorShape(*each) for each in shapes.items()))


def read_submission(message: SubmitJob, runs: Path) -> Submission:
    """Read and check all that a user's message names; raises `UserError`.

    `runs` is the folder for run folders that are not named. Nothing is written.
    """
    problem = path_problem(message.run_folder) if message.run_folder or message.resume else None
    if problem is not None:
        raise RequestRefused(f"the path of the run folder {problem}")
    path, job = Path(message.run_folder), message.job
    if message.resume:
        job = _saved_job(path)
    elif not message.run_folder:
        path = next_run_folder(runs, job.name)
    files = check(job, run_folder=path, local_workers=False)
    return Submission(path, job if message.resume else settled(job, files), files)


def read_interrupted(path: Path) -> Submission:
    """What a run goes on with whose coordinator was killed. It was checked when it began; raises
    `UserError`.
    """
    job = read_config(path)
    return Submission(path, job, read_job_files(job))


def _saved_job(path: Path) -> JobSpec:
    config = path / "config.yaml"
    text = read_config_text(path)
    try:
        return parse_job(text, source=str(config))
    except JobError as error:
        log.warning("config_not_taken", reason=str(error))
        raise RunFolderError(
            f"{config} is not a valid job; the coordinator's log says why"
        ) from error
