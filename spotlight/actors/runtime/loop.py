"""Which event loop a process runs on (uvloop where it is installed, plain asyncio otherwise), and
when a daemon ends."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from spotlight.errors import MissingDependency, UserError

if TYPE_CHECKING:
    from spotlight.actors.runtime.system import ActorSystem

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


async def open_first_stream() -> None:
    """Have the loop take now what it holds from its first stream on: uvloop keeps a descriptor in
    reserve for the day on which all others are in use.
    """
    here, there = socket.socketpair()
    with there:
        _, writer = await asyncio.open_unix_connection(sock=here)
        writer.close()
        await writer.wait_closed()


def ending_signals() -> Sequence[signal.Signals]:
    """What tells a process to end: SIGTERM, Ctrl-C, and the end of its terminal, less what whoever
    started it wants ignored (`nohup`).
    """
    signals = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    return [each for each in signals if signal.getsignal(each) is not signal.SIG_IGN]


async def unless_told(work: Coroutine[Any, Any, Result]) -> Result | None:
    """What `work` comes to; None if a signal tells the process to end first, which cancels it."""
    loop, told = asyncio.get_running_loop(), asyncio.Event()
    numbers = ending_signals()
    for number in numbers:
        loop.add_signal_handler(number, told.set)
    working, waiting = asyncio.ensure_future(work), asyncio.ensure_future(told.wait())
    try:
        await asyncio.wait((working, waiting), return_when=asyncio.FIRST_COMPLETED)
        return working.result() if working.done() else None
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)
        for task in (working, waiting):
            task.cancel()
        await asyncio.wait((working, waiting))


async def until_told(system: ActorSystem, stop: asyncio.Event | None = None) -> None:
    """Return when `stop` is set, or on a signal that tells the process to end; with `stop`, of
    these only on Ctrl-C.

    Raises `ActorDied` when a crash closed the system: the process must not live on without it.
    """
    told_by = [each for each in ending_signals() if stop is None or each == signal.SIGINT]
    stop = stop or asyncio.Event()
    for each in told_by:
        asyncio.get_running_loop().add_signal_handler(each, stop.set)
    told = asyncio.ensure_future(stop.wait())
    closed = asyncio.ensure_future(system.wait_closed())
    await asyncio.wait((told, closed), return_when=asyncio.FIRST_COMPLETED)
    told.cancel()
    if closed.done():
        closed.result()
    closed.cancel()
