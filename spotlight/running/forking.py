"""Forks a run: makes a run folder that begins from a checkpoint which another run has kept.

The other run stays as it is. What its journal still knows of that iteration is taken over; of an
older one only the weights, the optimizer's state and the metrics are left.
"""

from __future__ import annotations

import os
import random
import secrets
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from spotlight import __version__
from spotlight.actors.coordinator.tenant.job_journal import forked
from spotlight.errors import RunFolderError
from spotlight.jobs import JobSpec
from spotlight.jobs.resuming import job_with
from spotlight.jobs.start_names import StartName
from spotlight.record.run_events import encode_event
from spotlight.running.run_names import find_run
from spotlight.store.journal import NAME as JOURNAL
from spotlight.store.journal import Journal
from spotlight.store.run_folder import (
    RunFolder,
    checkpoint_path,
    metrics_until,
    next_run_folder,
    read_config,
    saved_iterations,
)
from spotlight.store.segments import Segment, records_of, segments_of


class Fork(NamedTuple):
    """A run folder that is about to be made."""

    run: Path
    """The run that it is forked from."""
    completed: int
    """The iterations after which it begins."""
    job: JobSpec
    folder: Path

    @property
    def source(self) -> str:
        """What it is forked from, in words."""
        return f"{self.run}@{self.completed}"


def plan_fork(name: str, changes: Sequence[str], folder: Path | None) -> Fork:
    """What `RUN@ITERATION` (or `RUN@last`) becomes with these changes, in a folder of its own; by
    default beside the run, which is named as `find_run` knows it.

    Raises `RunFolderError` or `JobError`; nothing is written.
    """
    path, which = StartName.parse(name)
    run = Path(os.path.abspath(find_run(str(path)) or path))
    saved, job = saved_iterations(run), read_config(run)
    there = f"kept are those after {', '.join(map(str, saved))}" if saved else "none is kept yet"
    completed = max(saved, default=-1) if which == "last" else which
    if completed not in saved or not isinstance(completed, int):
        wanted = f"no checkpoint after {which} iterations" if isinstance(which, int) else "no name"
        raise RunFolderError(f"{name}: {wanted}; write RUN@ITERATION ({there})")
    now = job_with(job, changes)
    if now.iterations <= completed:
        raise RunFolderError(
            f"{name}: {completed} iterations are done there, so the fork needs more than"
            f" {now.iterations}; set iterations higher"
        )
    return Fork(run, completed, now, (folder or next_run_folder(run.parent, job.name)).absolute())


def make_fork(fork: Fork) -> None:
    """Make the run folder, whole or not at all. Raises `RunFolderError`, also if the other run goes
    on just now."""
    part = fork.folder.with_name(f".{fork.folder.name}.partial")
    if fork.folder.exists() and (not fork.folder.is_dir() or any(fork.folder.iterdir())):
        raise RunFolderError(f"{fork.folder} is not empty; give another --run-folder")
    source = Journal.read(fork.run / JOURNAL, owner=None)
    try:
        shutil.rmtree(part, ignore_errors=True)
        _fill(part, fork, source)
        shutil.rmtree(fork.folder, ignore_errors=True)
        part.replace(fork.folder)
    except OSError as error:
        where = error.filename or fork.folder
        raise RunFolderError(
            f"{where}: {error.strerror or error}; free some space or give another --run-folder"
        ) from error
    finally:
        source.close()
        shutil.rmtree(part, ignore_errors=True)


def _fill(part: Path, fork: Fork, source: Journal) -> None:
    folder = RunFolder.create(part, fork.job)
    try:
        lines = metrics_until(fork.run, fork.completed)
        validated = [line["weights_version"] for line in lines if line["kind"] == "validation"]
        rng = random.Random(secrets.randbits(64))
        records = forked(source, fork.job, fork.completed, tuple(validated), rng)
        before = [each for each in segments_of(source) if each.first < fork.completed]
        job = msgspec.to_builtins(fork.job)
        segments = [*before, Segment(fork.completed, job, __version__, fork.source)]
        folder.journal.write(records | records_of(segments))
        for line in lines:
            folder.record_metrics(line)
        time_s = max((line["time_s"] for line in lines), default=0.0)
        for began in folder.segments_begun():
            folder.record_event(encode_event(began, time_s))
        _share(fork.run / checkpoint_path(fork.completed), part / checkpoint_path(fork.completed))
    finally:
        folder.close()


def _share(file: Path, place: Path) -> None:
    """The same file where the disk gives it a second name, else a copy."""
    place.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(file, place)
    except OSError:
        shutil.copyfile(file, place)
