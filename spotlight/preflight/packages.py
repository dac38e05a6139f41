"""Whether packages are installed, without importing them."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec

from spotlight.errors import MissingDependency, how_to_install


def require_packages(modules: Sequence[str], extra: str, who: str) -> None:
    """Raise `MissingDependency` with what to install; `who` needs the modules of an `extra`."""
    missing = [module for module in modules if find_spec(module) is None]
    if missing:
        raise MissingDependency(
            f"{who} {', '.join(missing)}, which is not installed here: {how_to_install(extra)}"
        )
