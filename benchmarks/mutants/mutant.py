"""A mutant: one place of the package that is written otherwise, and the promise that this breaks.

Each is a file of the folder `broken`. It is applied to a copy of the repository, not to the
checkout.
"""

from __future__ import annotations

import shutil
import subprocess
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from fnmatch import fnmatchcase
from importlib.util import cache_from_source
from pathlib import Path, PurePosixPath

import msgspec

ROOT = Path(__file__).parents[2]
_FOLDER = Path(__file__).parent / "broken"


class Mutant(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is changed, and which promise that breaks."""

    name: str
    promise: str
    """What holds no more."""
    file: str
    """The path below the root of the repository."""
    line: str
    """The text as it stands there, exactly once; it may be several lines."""
    becomes: str
    tests: tuple[str, ...]
    """The files of the tests that are most likely to notice, the likeliest first."""

    @property
    def room(self) -> str:
        """The innermost folder of tests that mirrors the folder of the file."""
        folder = PurePosixPath("tests", *PurePosixPath(self.file).parent.parts[1:])
        return next(str(each) for each in (folder, *folder.parents) if (ROOT / each).is_dir())

    def matches(self, pattern: str) -> bool:
        """Whether its name or its file is like this pattern of a shell."""
        return fnmatchcase(self.name, pattern) or fnmatchcase(self.file, pattern)

    def changed(self, root: Path) -> str:
        """The text of its file in a copy of the repository, with the change. Raises `ValueError` if
        the line is not there once."""
        path = root / self.file
        text = path.read_text(encoding="utf-8") if path.is_file() else ""
        count = text.count(self.line)
        if count != 1:
            raise ValueError(
                f"{self.name}: its line is in {self.file} {count} times; write it anew"
            )
        return text.replace(self.line, self.becomes)


def mutants() -> list[Mutant]:
    """All that there are, by name."""
    return [
        msgspec.convert({"name": path.stem, **tomllib.loads(path.read_text())}, Mutant)
        for path in sorted(_FOLDER.glob("*.toml"))
    ]


@contextmanager
def copied(scratch: Path) -> Iterator[Path]:
    """The root of a copy of what git knows of the checkout, or would add; gone when the context
    ends."""
    root = scratch / "copy"
    listed = ("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard")
    done = subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=True)
    for name in filter(None, done.stdout.split("\0")):
        if (ROOT / name).is_file():  # one that was deleted is listed until that is committed
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, root / name)
    try:
        yield root
    finally:
        shutil.rmtree(root)


@contextmanager
def applied(mutant: Mutant, root: Path) -> Iterator[None]:
    """Within, the copy is the mutant."""
    path, changed = root / mutant.file, mutant.changed(root)
    sound = path.read_text(encoding="utf-8")
    _rewrite(path, changed)
    try:
        yield
    finally:
        _rewrite(path, sound)


def _rewrite(path: Path, text: str) -> None:
    """Python takes a compiled file for new if its source is as long and of the same second."""
    path.write_text(text, encoding="utf-8")
    Path(cache_from_source(path)).unlink(missing_ok=True)
