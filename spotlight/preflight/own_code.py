"""Whether code of the user's own is where this machine's workers look for it; it is not loaded."""

from __future__ import annotations

import sys
from importlib.machinery import PathFinder
from pathlib import Path

from spotlight.errors import JobError


def require_module(field: str, target: str) -> None:
    """Raise `JobError` naming the field when there is no such package for `module:Class` here."""
    package = target.partition(":")[0].partition(".")[0]
    # Workers look in the folder that Spotlight was started in, the command itself does not.
    if PathFinder.find_spec(package, [str(Path.cwd()), *sys.path]) is None:
        raise JobError(
            field,
            f"`{target}`: there is no module `{package}` on this machine; install its package, or"
            " start Spotlight in the folder that holds it",
        )
