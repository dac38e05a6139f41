"""A process that has imported what others need, and forks one of them on each request: what
`ForkLauncher` starts.

Run as `python -m spotlight.actors.runtime.fork_template MODULE`, with a socket to the launcher as
standard input. MODULE has a function `prepare_to_fork`, which imports and raises if what it
imported does not stand a fork.

Invariants: one thread runs here at every fork, for a fork copies the locks of others as they are,
and nobody would release them; this process ends with its parent, and what it forked ends with it.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import os
import runpy
import select
import signal
import socket
import sys
from pathlib import Path

import msgspec

from spotlight.actors.runtime.launcher import PARENT, die_with_parent
from spotlight.process_start import outlive_notices

PACKET_LIMIT = 1 << 20
"""Bytes of the largest message between a template and its launcher."""

_ENDING_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class ForkRequest(msgspec.Struct, frozen=True):
    """Asks for a process that runs `python -m MODULE` with these arguments."""

    module: str
    arguments: list[str]
    env: dict[str, str]
    """The whole environment of the new process."""
    log_path: str
    """Its output is appended to this file."""


class Ready(msgspec.Struct, frozen=True, tag=True):
    """The template has imported everything; its first message."""


class Forked(msgspec.Struct, frozen=True, tag=True):
    """Answers a request; the process's pidfd comes along."""

    pid: int


class NotForked(msgspec.Struct, frozen=True, tag=True):
    """Answers a request that cannot be met."""

    reason: str


class Exited(msgspec.Struct, frozen=True, tag=True):
    """A forked process ended."""

    pid: int
    code: int
    """Its exit code; the negative signal number if a signal ended it."""


Report = Ready | Forked | NotForked | Exited
"""What a template says. Requests are answered in their order."""


class _Template:
    """Forks on request until its launcher is gone."""

    def __init__(self, launcher: socket.socket) -> None:
        self._launcher = launcher
        self._pid = os.getpid()
        self._children: dict[int, int] = {}
        """Process ids by pidfd."""
        self._poll = select.poll()
        self._poll.register(launcher, select.POLLIN)

    def serve(self) -> ForkRequest | None:
        """Returns in every process that was forked, with what it shall run; and None here when the
        launcher is gone."""
        self._send(Ready())
        while True:
            for descriptor, _ in self._poll.poll():
                if descriptor in self._children:
                    self._reap(descriptor)
                    continue
                packet = self._launcher.recv(PACKET_LIMIT)
                if not packet:
                    return None
                request = msgspec.msgpack.decode(packet, type=ForkRequest)
                if self._fork(request):
                    return request

    def _fork(self, request: ForkRequest) -> bool:
        """True in the new process."""
        threads = len(os.listdir("/proc/self/task"))
        if threads != 1:
            self._send(NotForked(f"{threads} threads run in the template"))
            return False
        try:
            output = os.open(request.log_path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
        except OSError as error:
            self._send(NotForked(f"{request.log_path}: {error.strerror}"))
            return False
        try:
            pid = os.fork()
        except OSError as error:
            os.close(output)
            self._send(NotForked(f"cannot fork: {error.strerror}"))
            return False
        if pid == 0:
            self._become(request, output)
            return True
        os.close(output)
        pidfd = os.pidfd_open(pid)
        self._children[pidfd] = pid
        self._poll.register(pidfd, select.POLLIN)
        self._send(Forked(pid), pidfd)
        return False

    def _become(self, request: ForkRequest, output: int) -> None:
        """In the new process: be as one that was started by itself."""
        die_with_parent(self._pid)
        os.setsid()
        self._launcher.close()
        for pidfd in self._children:
            os.close(pidfd)
        for number in (1, 2):
            os.dup2(output, number)
        os.close(output)
        os.environ.clear()
        os.environ.update(request.env)
        os.environ[PARENT] = str(self._pid)

    def _reap(self, pidfd: int) -> None:
        self._poll.unregister(pidfd)
        pid = self._children.pop(pidfd)
        os.close(pidfd)
        _, status = os.waitpid(pid, 0)
        self._send(Exited(pid, os.waitstatus_to_exitcode(status)))

    def _send(self, report: Report, *descriptors: int) -> None:
        socket.send_fds(self._launcher, [msgspec.msgpack.encode(report)], descriptors)


def main() -> None:
    """Entry point of the process, and of all that it forks."""
    die_with_parent(int(os.environ[PARENT]))
    launcher = socket.socket(fileno=os.dup(0))
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    # Its launcher ends it; what a service manager sends to all processes is not for this one.
    # Blocked and not ignored: what a new process is sent before it is itself waits for it.
    outlive_notices()
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING_SIGNALS)
    importlib.import_module(sys.argv[1]).prepare_to_fork()
    gc.collect()
    gc.freeze()  # what is imported never goes: no collection of a worker need look at it
    sys.stdout.flush()
    sys.stderr.flush()
    try:
        request = _Template(launcher).serve()
    except (BrokenPipeError, ConnectionResetError):
        return
    if request is None:
        return
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    _show_as([sys.executable, "-m", request.module, *request.arguments])
    sys.argv[1:] = request.arguments
    runpy.run_module(request.module, run_name="__main__", alter_sys=True)


def _show_as(argv: list[str]) -> None:
    """Have `ps` and `/proc/PID/cmdline` show these arguments, as far as those of the template left
    room."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    start, end = int(fields[45]), int(fields[46])
    if start:  # the kernel tells a process this of itself, unless it is hardened
        room = end - start - 1
        text = "\0".join(argv).encode()[:room]
        ctypes.memmove(start, text.ljust(room, b"\0"), room)


if __name__ == "__main__":
    main()
