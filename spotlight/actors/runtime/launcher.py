"""How one process starts another, and makes sure that it does not outlive it.

`ProcessLauncher` is the port that actors use; `LocalLauncher` starts real child processes, and
tests and the simulation put something else there. A child calls `die_with_parent` in its first
lines: an orphan that holds an accelerator is worse than a lost worker.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from spotlight.errors import UserError

PARENT = "SPOTLIGHT_PARENT"
"""Environment variable with the process id of whoever started this process."""

LONGEST_SECRET = 1 << 16
"""Bytes: what a pipe holds before anybody reads from it."""

_PR_SET_PDEATHSIG = 1
_POLL_S = 1.0


class ProcessHandle(Protocol):
    """A process that was started."""

    @property
    def name(self) -> str:
        """What the launcher was told to call it."""
        ...

    @property
    def pid(self) -> int:
        """Its process id."""
        ...

    async def wait(self) -> int:
        """Return its exit code once it ended; the negative signal number if a signal ended it."""
        ...

    def terminate(self) -> None:
        """Ask it to end (SIGTERM). Nothing happens if it has."""
        ...

    def kill(self) -> None:
        """End it (SIGKILL). Nothing happens if it has."""
        ...


class ProcessLauncher(Protocol):
    """Starts processes."""

    async def start(
        self,
        argv: Sequence[str],
        env: Mapping[str, str],
        name: str,
        log_path: Path,
        secret: bytes = b"",
    ) -> ProcessHandle:
        """Start `argv` with exactly the environment `env`; its output is appended to `log_path`.
        What it reads from its standard input is `secret` and nothing after it (`read_secret`): it
        stands in no argument, no environment and no file, where others of this machine look.

        Raises `UserError` naming the command when it cannot be started, and `ValueError` for a
        secret of more than `LONGEST_SECRET` bytes.
        """
        ...


class LocalProcess:
    """A child process of this one."""

    def __init__(self, name: str, process: asyncio.subprocess.Process) -> None:
        self.name = name
        self._process = process

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    async def wait(self) -> int:
        """Return its exit code once it ended; the negative signal number if a signal ended it."""
        return await self._process.wait()

    def terminate(self) -> None:
        """Ask it to end (SIGTERM)."""
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """End it (SIGKILL)."""
        self._signal(signal.SIGKILL)

    def _signal(self, number: signal.Signals) -> None:
        # The process may have ended without our knowing yet; its id is not reused before it is
        # reaped.
        if self._process.returncode is None:
            try:
                self._process.send_signal(number)
            except ProcessLookupError:
                return


class LocalLauncher:
    """Starts children on this machine, in sessions of their own: what a terminal or a service
    manager sends to all of a group is for their parent to handle."""

    def __init__(self, stdin: int = asyncio.subprocess.DEVNULL) -> None:
        """`stdin` is the descriptor that becomes the standard input of what is started without a
        secret."""
        self._stdin = stdin

    async def start(
        self,
        argv: Sequence[str],
        env: Mapping[str, str],
        name: str,
        log_path: Path,
        secret: bytes = b"",
    ) -> LocalProcess:
        """See `ProcessLauncher.start`."""
        try:
            log_path.parent.mkdir(parents=True, exist_ok=True)
            with log_path.open("ab") as output, handed_over(secret) as stdin:
                process = await asyncio.create_subprocess_exec(
                    *argv,
                    stdin=self._stdin if stdin is None else stdin,
                    stdout=output,
                    stderr=asyncio.subprocess.STDOUT,
                    env=dict(env),
                    start_new_session=True,
                )
        except OSError as error:
            raise UserError(f"cannot start {name} ({argv[0]}): {error}") from error
        return LocalProcess(name, process)


@contextmanager
def handed_over(secret: bytes) -> Iterator[int | None]:
    """A descriptor from which another process reads `secret`, once, to its end; None for an empty
    one. Raises `ValueError` for one that is too long, and `OSError` if there can be no pipe."""
    if not secret:
        yield None
        return
    if len(secret) > LONGEST_SECRET:
        raise ValueError(f"a secret of {len(secret)} bytes; at most {LONGEST_SECRET} fit a pipe")
    reading, writing = os.pipe()
    try:
        with os.fdopen(writing, "wb", buffering=0) as pipe:
            pipe.write(secret)
        yield reading
    finally:
        os.close(reading)


def read_secret() -> bytes:
    """What whoever started this process handed it over its standard input, which is empty from then
    on. A process that may have been handed something calls this first of all."""
    with open(0, "rb", buffering=0, closefd=False) as stream:
        return stream.read()


def die_with_parent(expected_parent_pid: int) -> None:
    """Make this process end when its parent does. Call it first thing in a child, in its main
    thread.

    `expected_parent_pid` is the starter's id, handed over by argument or environment: if the parent
    is another by now, it died before this call and this raises `SystemExit`. On Linux the kernel
    then kills this process when the *thread* that started it ends, so start children from a thread
    that lives as long as they should. Elsewhere a thread looks every second.
    """
    _require_parent(expected_parent_pid)
    if sys.platform != "linux" or not _ask_kernel_for_death_signal():
        _watch_parent(expected_parent_pid)
    _require_parent(expected_parent_pid)  # it may have died before the kernel was asked


def _require_parent(expected_parent_pid: int) -> None:
    if os.getppid() != expected_parent_pid:
        raise SystemExit(f"the process {expected_parent_pid} that started this one is gone")


def _ask_kernel_for_death_signal() -> bool:
    library = ctypes.CDLL(None, use_errno=True)
    return bool(library.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) == 0)


def _watch_parent(expected_parent_pid: int) -> None:
    threading.Thread(
        target=_exit_with, args=(expected_parent_pid,), name="die-with-parent", daemon=True
    ).start()


def _exit_with(parent_pid: int) -> None:
    while os.getppid() == parent_pid:
        time.sleep(_POLL_S)
    os._exit(1)
