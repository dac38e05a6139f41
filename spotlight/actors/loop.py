"""Which event loop a process runs on: uvloop where it is installed, plain asyncio otherwise."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from spotlight.errors import MissingDependency, UserError

Result = TypeVar("Result")

CHOICE_VARIABLE = "SPOTLIGHT_LOOP"
"""Environment variable: `asyncio` or `uvloop` forces one; unset or empty takes uvloop if it can be
imported."""


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop]:
    """The kind of loop that the environment asks for.

    Raises `UserError` for an unknown choice and `MissingDependency` when uvloop is forced but not
    installed.
    """
    choice = os.environ.get(CHOICE_VARIABLE, "")
    if choice not in ("", "asyncio", "uvloop"):
        raise UserError(f"{CHOICE_VARIABLE}={choice}: choose asyncio or uvloop, or leave it unset")
    if choice == "asyncio":
        return asyncio.SelectorEventLoop
    try:
        import uvloop
    except ImportError:
        if choice == "uvloop":
            raise MissingDependency(
                f"{CHOICE_VARIABLE}=uvloop, but uvloop is not installed: pip install uvloop"
            ) from None
        return asyncio.SelectorEventLoop
    return uvloop.new_event_loop


def run(main: Coroutine[Any, Any, Result]) -> Result:
    """Run a process's main coroutine on a new loop until it ends; what it leaves behind is
    cancelled."""
    try:
        factory = loop_factory()
    except UserError:
        main.close()
        raise
    with asyncio.Runner(loop_factory=factory) as runner:
        return runner.run(main)
