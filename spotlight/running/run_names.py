"""The runs of this machine as people name them: by a path, by the name of a folder or of a job
below `runs`, or as the last one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from spotlight.store.run_folder import is_run

LAST = "last"
_RUNS = Path("runs")
_FILES = ("events.jsonl", "metrics.jsonl", "config.yaml")


def find_run(name: str, runs: Path = _RUNS) -> Path | None:
    """The folder of a run that is on this machine: the path itself; or below `runs` the folder of
    that name; or the newest run of a job of that name; or with `last` the newest of all. None if
    there is none."""
    if name != LAST and is_run(Path(name)):
        return Path(name)
    there = _below(runs)
    if name == LAST:
        return _newest(there)
    of_job = [it for it in there if re.fullmatch(rf"{re.escape(name)}-\d{{3,}}", it.name)]
    return _newest([it for it in there if it.name == name] or of_job)


def runs_here(runs: Path = _RUNS) -> list[str]:
    """The names of all runs below `runs`."""
    return [folder.name for folder in _below(runs)]


def _below(runs: Path) -> list[Path]:
    return [folder for folder in sorted(runs.glob("*")) if is_run(folder)]


def _newest(folders: Iterable[Path]) -> Path | None:
    return max(folders, key=_written_at, default=None)


def _written_at(folder: Path) -> float:
    """When something was written there last."""
    files = (folder / name for name in _FILES)
    return max((file.stat().st_mtime for file in files if file.exists()), default=0.0)
