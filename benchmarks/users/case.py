"""A case: something that users bring or do, and what is right then."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
_LIMIT_S = 240.0

Figures = Mapping[str, float]
Check = Callable[[Path], Figures | None]


class Wrong(Exception):
    """What is seen is not what is right; the message says both."""


@dataclass(frozen=True)
class Case:
    """One situation, tried in an empty folder of its own."""

    kind: str
    """The module that it is in: `prompts`, `streams`, ..."""
    name: str
    """What the user brings or does, in words."""
    check: Check
    """Raises `Wrong`. It may return figures; of those with the same name the largest is shown."""
    quick: bool
    """Whether `--quick` tries it, too."""


CASES: list[Case] = []


def case(name: str, *, quick: bool = False) -> Callable[[Check], Check]:
    """Add the decorated function to the cases; its module is its kind."""

    def add(check: Check) -> Check:
        CASES.append(Case(check.__module__.rpartition(".")[2], name, check, quick))
        return check

    return add


def require(right: bool, seen: object) -> None:
    """Raise `Wrong` with what was seen, cut short."""
    if not right:
        raise Wrong(str(seen).strip()[-2000:])


@dataclass(frozen=True)
class Ended:
    """A command that has ended, and what it printed on both streams."""

    code: int
    text: str

    def says(self, code: int, *words: str) -> None:
        """Require this exit code, all these words, and no traceback."""
        require(self.code == code, f"exit {self.code} instead of {code}: {self.text}")
        missing = [word for word in words if word not in self.text]
        require(not missing, f"does not say {missing}: {self.text}")
        require("Traceback" not in self.text, self.text)


def spotlight(
    arguments: Sequence[str | Path], folder: Path, environment: Mapping[str, str] | None = None
) -> Ended:
    """Run the command line in `folder`, with an empty standard input."""
    done = subprocess.run(
        [sys.executable, "-m", "spotlight.cli", *map(str, arguments)],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), **(environment or {})},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=_LIMIT_S,
        check=False,
    )
    return Ended(done.returncode, done.stdout.decode(errors="replace"))
