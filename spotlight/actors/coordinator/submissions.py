"""Reads what a submission names, and says why it cannot start. For a thread: it waits for disks.

Whoever submits a job is answered with the reason, so no error holds what stands in a file.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import structlog

from spotlight.actors.protocol.sessions import TensorShape
from spotlight.actors.protocol.users import SubmitJob
from spotlight.diffusion.checkpoint_names import files_on_hub
from spotlight.errors import JobError, RequestRefused, RunFolderError
from spotlight.jobs import JobSpec, WorkSpec, parse_job_of_run
from spotlight.jobs.hub_names import HubFile
from spotlight.jobs.resuming import job_with
from spotlight.permissions import Permissions
from spotlight.preflight.budget_checks import check_budget_left
from spotlight.preflight.checkpoint_facts import CheckpointInfo
from spotlight.preflight.checks import (
    JobFiles,
    check,
    check_room,
    check_work,
    read_job_files,
    settled,
)
from spotlight.preflight.trainable import trainable_shapes
from spotlight.store.run_folder import read_config, read_config_text
from spotlight.store.runs_folder import RunsFolder

log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class Submission:
    """A job that can start."""

    run_folder: Path
    job: JobSpec
    files: JobFiles
    hub_files: tuple[HubFile, ...] = ()
    """The files of the checkpoint, if it is one of the hub."""


@dataclass(frozen=True)
class SessionFiles:
    """What the checkpoint of a session says."""

    checkpoint: CheckpointInfo
    tensors: tuple[TensorShape, ...]
    """Those that a publication holds."""
    hub_files: tuple[HubFile, ...] = ()
    """The files of the checkpoint, if it is one of the hub."""


def read_session_files(work: WorkSpec, permissions: Permissions) -> SessionFiles:
    """Read and check what another program wants done; raises `CheckpointError` or `JobError`."""
    permissions.require(work)
    checkpoint, shapes = check_work(work), trainable_shapes(work.model)
    tensors = tuple(TensorShape(*each) for each in shapes.items())
    return SessionFiles(checkpoint, tensors, files_on_hub(work.model.checkpoint))


def read_submission(message: SubmitJob, runs: RunsFolder, permissions: Permissions) -> Submission:
    """Read and check all that a user's message names; raises `UserError`.

    The run lies in `runs`, and does only what `permissions` allow. Nothing is written.
    """
    if message.resume and not message.run_folder:
        raise RequestRefused("the path of the run folder must not be empty")
    path, job = runs.place(message.job.name, message.run_folder), message.job
    if message.resume:
        job = job_with(_saved_job(path), message.changes)
        check_budget_left(job, path)
    permissions.require(job)
    files = check(job, run_folder=path, local_workers=False)
    job = job if message.resume else settled(job, files)
    return Submission(path, job, files, files_on_hub(job.model.checkpoint))


def read_interrupted(
    path: Path, permissions: Permissions, changes: Sequence[str] = ()
) -> Submission:
    """What a run goes on with that waited, or whose coordinator was killed, with the changes with
    which it came into the queue. It was checked then, but this coordinator may be allowed less;
    raises `UserError`.
    """
    job = job_with(read_config(path), changes)
    permissions.require(job)
    return Submission(path, job, read_job_files(job), files_on_hub(job.model.checkpoint))


def no_room(submission: Submission) -> str:
    """Why the disk has no room for a run; empty if it has."""
    try:
        check_room(submission.job, submission.files, submission.run_folder)
    except RunFolderError as error:
        return str(error)
    return ""


def _saved_job(path: Path) -> JobSpec:
    config = path / "config.yaml"
    text = read_config_text(path)
    try:
        return parse_job_of_run(text, source=str(config))
    except JobError as error:
        log.warning("config_not_taken", reason=str(error))
        raise RunFolderError(
            f"{config} is not a valid job; the coordinator's log says why"
        ) from error
