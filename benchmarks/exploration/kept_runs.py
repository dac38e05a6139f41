"""Runs that are kept, each as a file of a few kB, so that none is made twice on any machine.

A run is found again by its name, and counts only if it was made with the same job, and with the
same of all else that decides what comes of it. A field that jobs have had only since then does not
matter: it has its default.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.report import commit
from spotlight.errors import JobError, UserError
from spotlight.jobs import JobSpec, job_from_data

RUNS = Path(__file__).parents[1] / "exploration_runs"

NUMERICS = 1
"""The version of the numerics: it is to be raised when the same job gives other samples, scores,
weights or decisions than before."""

Run = dict[str, Any]


class Made(msgspec.Struct, frozen=True):
    """All that decides what comes of a run."""

    job: JobSpec
    facts: dict[str, Any]
    """Whatever is not in the job, as JSON has it."""


class _Kept(msgspec.Struct):
    """A file."""

    run: Run
    numerics: int
    commit: str
    facts: dict[str, Any]
    job: dict[str, Any]


class KeptRuns:
    """Those in a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def read(self, name: str, made: Made) -> Run | None:
        """None if it was not made yet, or of something else. Raises `UserError` for a file that is
        none of ours.
        """
        file = self._file(name)
        try:
            kept = msgspec.json.decode(file.read_bytes(), type=_Kept)
        except FileNotFoundError:
            return None
        except msgspec.MsgspecError as error:
            raise UserError(f"{file} is damaged; remove it, and its run is made again") from error
        if kept.numerics != NUMERICS or kept.facts != made.facts:
            return None
        try:
            same = job_from_data(kept.job) == made.job
        except JobError:
            return None  # of fields that jobs have no more
        return kept.run if same else None

    def keep(self, name: str, made: Made, run: Run) -> None:
        """Whole or not at all, whenever this process is ended."""
        job = msgspec.to_builtins(made.job)
        kept = msgspec.to_builtins(_Kept(run, NUMERICS, commit(), made.facts, job))
        file = self._file(name)
        file.parent.mkdir(parents=True, exist_ok=True)
        begun = file.with_suffix(f".{os.getpid()}")
        begun.write_text(json.dumps(kept, separators=(",", ":")).replace("],[", "],\n[") + "\n")
        begun.replace(file)

    def _file(self, name: str) -> Path:
        return self._folder / f"{name}.json"
