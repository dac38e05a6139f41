"""Where code of the user's own is, for workers on this machine; it is not loaded."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path

from spotlight.errors import JobError


def find_module(name: str) -> ModuleSpec | None:
    """Where a module is, without importing the packages that it is in; None if it is nowhere."""
    package, _, inner = name.partition(".")
    # Workers look in the folder that Spotlight was started in, the command itself does not.
    here = [str(Path.cwd()), *sys.path]
    found = PathFinder.find_spec(package, here) or _installed(package, None)
    while found is not None and inner:
        name, _, inner = inner.partition(".")
        found = _installed(f"{found.name}.{name}", found.submodule_search_locations or ())
    return found


def _installed(name: str, path: Sequence[str] | None) -> ModuleSpec | None:
    # Every finder is asked, as an import does: packages installed as editable have one of their
    # own, and are not on the path.
    specs = (finder.find_spec(name, path) for finder in sys.meta_path)
    return next((spec for spec in specs if spec is not None), None)


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
