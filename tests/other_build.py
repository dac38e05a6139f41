"""Another build of Spotlight: the package with some lines that are others."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import spotlight

PACKAGE = Path(spotlight.__file__).parent
PARTS = ("actors/protocol/trainer.py", '    part: Part = "whole"\n    publish:', "    publish:")
"""Of `Train`: without it a build knows no orders for a part of an iteration."""

Change = tuple[str, str, str]
"""A file of the package, a text that it has once, and what stands there instead."""


def make_build(folder: Path, *changes: Change) -> dict[str, str]:
    """Make a build in a folder without one; returns the environment in which Python imports it."""
    package = folder / PACKAGE.name
    _copy(PACKAGE, package)
    for file, old, new in changes:
        path = package / file
        for each in reversed(path.relative_to(package).parents[:-1]):
            if (package / each).is_symlink():
                (package / each).unlink()
                _copy(PACKAGE / each, package / each)
        text = path.read_text(encoding="utf-8")
        if text.count(old) != 1:
            raise ValueError(f"{file} has {text.count(old)} times {old!r}")
        path.unlink()
        path.write_text(text.replace(old, new), encoding="utf-8")
    places = os.pathsep.join([str(folder), *filter(None, sys.path)])
    return {**os.environ, "PYTHONPATH": places, "PYTHONSAFEPATH": "1"}


def _copy(original: Path, folder: Path) -> None:
    """With links to what is inside, all but what Python has compiled: that would be mixed up."""
    folder.mkdir(parents=True)
    for each in original.iterdir():
        if each.name != "__pycache__":
            (folder / each.name).symlink_to(each)
