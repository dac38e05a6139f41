"""Reads the job file of a command, and says what it says in words of an earlier version."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from spotlight.cli.lines import one_line
from spotlight.errors import UserError
from spotlight.files import path_problem
from spotlight.jobs import JobSpec, job_from_data
from spotlight.jobs.former_fields import moved
from spotlight.jobs.loading import job_data
from spotlight.jobs.price_files import read_prices
from spotlight.policies.money.prices import Prices


def read_job(path: Path, changes: Sequence[str] = ()) -> JobSpec:
    """The job of a file, with `changes` (each `path=value`). Fields that have moved since the file
    was written are read as they were meant, and named on one line of stderr. Raises `JobError`."""
    data = job_data(path, changes)
    if former := moved(data):
        words = ", ".join(f"`{field}` is now `{to}`" for field, to in former)
        sys.stderr.write(f"spotlight: {one_line(f'{path}: {words}; write that')}\n")
    return job_from_data(data, base=path.parent)


def operator_prices(file: Path | None) -> Prices:
    """What `--prices` says; raises `JobError`."""
    return Prices() if file is None else read_prices("--prices", file)


def check_folder(option: str, folder: Path | None) -> None:
    """Raise `UserError` that names the option, for what can be the path of no folder."""
    problem = path_problem(os.path.abspath(folder)) if folder is not None else None
    if problem is not None:
        raise UserError(f"{option}: {problem}")
