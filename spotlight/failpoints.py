"""Named places in the code where a test, or a run that rehearses faults, may act.

A handler may kill the process, raise an `OSError` to play a bad disk, or raise a `BaseException`
of a simulation to play a kill. Without a handler a place costs nothing.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

from spotlight.errors import UserError

Handler = Callable[[str], None]
"""Called with the name of each place that is reached."""

_VARIABLE = "SPOTLIGHT_FAILPOINT"
_handler: Handler | None = None


def reach(name: str) -> None:
    """The process is at the place `name`; raises what the handler raises."""
    if _handler is not None:
        _handler(name)


def install(handler: Handler | None) -> None:
    """From now on `handler` acts, in place of the one before; None lets nobody act."""
    global _handler
    _handler = handler


def from_environment() -> None:
    """Install what the environment asks for: `name:count` kills this process (SIGKILL) when it
    reaches `name` for the `count`-th time. Without the variable nothing changes.

    Raises `UserError` if the variable says something else.
    """
    text = os.environ.get(_VARIABLE, "")
    if not text:
        return
    name, _, count = text.rpartition(":")
    if not name or not count.isdecimal() or int(count) < 1:
        raise UserError(f"{_VARIABLE} is `{text}`; give name:count, such as journal.commit:3")
    install(_kill_at(name, int(count)))


def _kill_at(name: str, count: int) -> Handler:
    left = count

    def handler(reached: str) -> None:
        nonlocal left
        if reached == name:
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    return handler
