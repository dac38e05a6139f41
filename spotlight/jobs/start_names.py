"""What `model.start` names."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, NamedTuple

Which = Literal["best", "last"] | int


class StartName(NamedTuple):
    """A path, and of a run which of its checkpoints."""

    path: Path
    which: Which | None
    """The best or the last one, or the one after so many iterations; None if nothing is said."""

    @classmethod
    def parse(cls, text: str) -> StartName:
        """`PATH`, `PATH@best`, `PATH@last` or `PATH@ITERATION`; a path may have an `@`, too."""
        path, _, end = text.rpartition("@")
        if path and (end in ("best", "last") or (end.isascii() and end.isdecimal())):
            which: Which = "best" if end == "best" else "last" if end == "last" else int(end)
            return cls(Path(path), which)
        return cls(Path(text), None)
