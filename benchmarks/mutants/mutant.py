"""A mutant: one place of the package that is written otherwise, and the promise that this breaks.

Each is a file of the folder `broken`. It is applied to a copy of the package, not to the checkout.
"""

from __future__ import annotations

import os
import shutil
import sys
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import msgspec

ROOT = Path(__file__).parents[2]
_FOLDER = Path(__file__).parent / "broken"
_COPIED = ("spotlight", "tests")


class Mutant(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is changed, and which promise that breaks."""

    name: str
    promise: str
    """What holds no more."""
    file: str
    """Below the root of the repository."""
    line: str
    """As it is there, once; it may be several."""
    becomes: str
    tests: tuple[str, ...]
    """Files of the tests that are nearest."""

    def apply(self, root: Path) -> None:
        """Change a copy of the repository. Raises `ValueError` if the line is not there once."""
        text = (root / self.file).read_text(encoding="utf-8")
        count = text.count(self.line)
        if count != 1:
            raise ValueError(
                f"{self.name}: its line is in {self.file} {count} times; write it anew"
            )
        (root / self.file).write_text(text.replace(self.line, self.becomes), encoding="utf-8")


def mutants() -> list[Mutant]:
    """All that there are, by name."""
    return [
        msgspec.convert({"name": path.stem, **tomllib.loads(path.read_text())}, Mutant)
        for path in sorted(_FOLDER.glob("*.toml"))
    ]


@contextmanager
def copied(scratch: Path) -> Iterator[Path]:
    """The root of a copy of the package and its tests; of the original when the context begins."""
    root = scratch / "copy"
    for name in _COPIED:
        shutil.copytree(ROOT / name, root / name)
    shutil.copy2(ROOT / "pyproject.toml", root)
    try:
        yield root
    finally:
        shutil.rmtree(root)


@contextmanager
def applied(mutant: Mutant, root: Path) -> Iterator[None]:
    """Within, the copy is the mutant."""
    mutant.apply(root)
    try:
        yield
    finally:
        shutil.copy2(ROOT / mutant.file, root / mutant.file)


def environment(root: Path) -> Mapping[str, str]:
    """Of a process that imports the copy, and the benchmarks of the checkout."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join((str(root), str(ROOT)))}


def python(*arguments: str) -> list[str]:
    """The command line of a Python like this one."""
    return [sys.executable, *arguments]
