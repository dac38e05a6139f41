"""Which runs are shown: those of one folder, or one of them alone, known by the names of their
folders.

A name comes from a request: it is looked up and never made into a path by itself.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from spotlight.store.run_folder import is_run
from spotlight.web.refusing import not_found

MOST_LISTED = 500
"""Runs of the list; those that were written to last."""


@dataclass(frozen=True)
class ShownRuns:
    """See the module's docstring."""

    folder: Path
    """The folder of runs."""
    only: str = ""
    """The name of the run that alone is shown; empty for all."""

    @classmethod
    def at(cls, path: Path) -> ShownRuns:
        """A run by its folder, or all runs of a folder."""
        path = path.resolve()
        return cls(path.parent, path.name) if is_run(path) else cls(path)

    def names(self) -> list[str]:
        """The names of the runs, those that were written to last first."""
        if self.only:
            return [self.only]
        written = sorted(map(_written, self._folders()), reverse=True)
        return [name for _, name in written[:MOST_LISTED]]

    def find(self, name: str) -> Path:
        """The folder of a run. Raises `Refused` if none of that name is shown."""
        if name in ("", ".", "..") or "/" in name or "\0" in name:
            raise not_found(f"`{name[:100]}` is not the name of a run")
        folder = self.folder / name
        if (self.only and name != self.only) or not is_run(folder):
            raise not_found(f"there is no run `{name[:100]}`; /api/runs lists those there are")
        return folder

    def _folders(self) -> list[Path]:
        try:
            with os.scandir(self.folder) as entries:
                paths = [Path(each.path) for each in entries if each.name.isprintable()]
                return [path for path in paths if is_run(path)]
        except OSError:  # the folder is gone
            return []


def _written(folder: Path) -> tuple[float, str]:
    times = [0.0]
    for name in ("metrics.jsonl", "events.jsonl", "config.yaml"):
        try:
            times.append(os.stat(folder / name).st_mtime)
        except OSError:
            continue
    return max(times), folder.name
