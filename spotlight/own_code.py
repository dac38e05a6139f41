"""Where code of the user's own is, for workers on this machine; it is not loaded."""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path

from spotlight.errors import JobError


def find_module(name: str) -> ModuleSpec | None:
    """Where a module is, without importing the packages that it is in; None if it is nowhere."""
    # Workers look in the folder that Spotlight was started in, the command itself does not.
    path = [str(Path.cwd()), *sys.path]
    found: ModuleSpec | None = None
    parts = name.split(".")
    for number in range(1, len(parts) + 1):
        found = PathFinder.find_spec(".".join(parts[:number]), path)
        if found is None:
            return None
        path = list(found.submodule_search_locations or ())
    return found


def require_module(field: str, target: str) -> ModuleSpec:
    """Where the module of `module:Class` is. Raises `JobError` naming the field when it is nowhere
    here."""
    module = target.partition(":")[0]
    found = find_module(module)
    if found is None:
        raise JobError(
            field,
            f"`{target}`: there is no module `{module}` on this machine; install its package, start"
            " Spotlight in the folder that holds it, or name that folder in the environment"
            " variable PYTHONPATH",
        )
    return found
