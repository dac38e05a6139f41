"""A process that has imported what others need, and forks one of them on each request of a
`ForkLauncher`: what `fork_owner` starts.

Run as `python -m spotlight.actors.runtime.fork_template MODULE`, with a listening socket as
standard input, to which launchers connect. MODULE has a function `prepare_to_fork`, which imports
and raises if what it imported does not stand a fork.

Invariants: one thread runs here at every fork, for a fork copies the locks of others as they are,
and nobody would release them; this process ends with its parent, and what it forked ends with it.
What a launcher asked for ends with that launcher's connection, too. Launchers of other users are
not listened to.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import os
import runpy
import select
import signal
import socket
import struct
import sys
from pathlib import Path

import msgspec

from spotlight.actors.runtime.launcher import PARENT, die_with_parent
from spotlight.process_start import outlive_notices

PACKET_LIMIT = 1 << 20
"""Bytes of the largest message between a template and its launcher."""

_CREDENTIALS = struct.Struct("3i")
"""The credentials of a peer: its process, user and group."""
_ENDING_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class ForkRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Asks for a process that runs `python -m MODULE` with these arguments. A descriptor that comes
    along becomes its standard input: what it shall read there, the template never has."""

    module: str
    arguments: list[str]
    env: dict[str, str]
    """The whole environment of the new process."""
    log_path: str
    """Its output is appended to this file."""


class Ready(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    """The template has imported everything; its first message on each connection."""

    pid: int
    """The template's process id."""


class Forked(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    """Answers a request; the process's pidfd comes along."""

    pid: int


class NotForked(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    """Answers a request that cannot be met."""

    reason: str


class Exited(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    """A forked process ended."""

    pid: int
    code: int
    """Its exit code; the negative signal number if a signal ended it."""


Report = Ready | Forked | NotForked | Exited
"""What a template says. Requests are answered in their order."""


class _Launcher:
    """One that is connected, and what was forked for it."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.children: dict[int, int] = {}
        """Process ids by pidfd."""

    def send(self, report: Report, *descriptors: int) -> None:
        """Others do not wait for one that does not read: it is taken to be gone, which shows when
        its next request is read."""
        packet = [msgspec.msgpack.encode(report)]
        try:
            socket.send_fds(self.connection, packet, descriptors, socket.MSG_DONTWAIT)
        except OSError:
            with contextlib.suppress(OSError):
                self.connection.shutdown(socket.SHUT_RDWR)

    def receive(self) -> tuple[ForkRequest, int | None] | None:
        """The next request and its descriptor; None if it is gone, or asks what this template does
        not know, and so is of another build."""
        try:
            packet, descriptors, _, _ = socket.recv_fds(self.connection, PACKET_LIMIT, 1)
        except ConnectionError:
            return None
        if not packet:
            return None
        stdin = descriptors[0] if descriptors else None
        try:
            return msgspec.msgpack.decode(packet, type=ForkRequest), stdin
        except msgspec.MsgspecError as error:
            sys.stderr.write(f"a request to fork was refused: {error}\n")
            if stdin is not None:
                os.close(stdin)
            return None


class _Template:
    """Forks on request until it is ended."""

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        self._pid = os.getpid()
        self._launchers: dict[int, _Launcher] = {}
        """The launchers by the descriptors of their connections."""
        self._children: dict[int, _Launcher] = {}
        """The launcher that each child was forked for, by the child's pidfd."""
        self._poll = select.poll()
        self._poll.register(listener, select.POLLIN)

    def serve(self) -> ForkRequest:
        """Returns in every process that was forked, with what it shall run."""
        while True:
            for descriptor, _ in self._poll.poll():
                if descriptor == self._listener.fileno():
                    self._accept()
                elif descriptor in self._children:
                    self._reap(descriptor)
                else:
                    launcher = self._launchers[descriptor]
                    asked = launcher.receive()
                    if asked is None:
                        self._drop(launcher)
                        continue
                    request, stdin = asked
                    if self._fork(request, stdin, launcher):
                        return request
                    if stdin is not None:
                        os.close(stdin)

    def _accept(self) -> None:
        connection, _ = self._listener.accept()
        credentials = connection.getsockopt(
            socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size
        )
        _, user, _ = _CREDENTIALS.unpack(credentials)
        if user != os.getuid():
            connection.close()
            return
        launcher = self._launchers[connection.fileno()] = _Launcher(connection)
        self._poll.register(connection, select.POLLIN)
        launcher.send(Ready(self._pid))

    def _drop(self, launcher: _Launcher) -> None:
        """End what was forked for a launcher that is gone."""
        for pidfd in launcher.children:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        self._poll.unregister(launcher.connection)
        del self._launchers[launcher.connection.fileno()]
        launcher.connection.close()

    def _fork(self, request: ForkRequest, stdin: int | None, launcher: _Launcher) -> bool:
        """True in the new process."""
        threads = len(os.listdir("/proc/self/task"))
        if threads != 1:
            launcher.send(NotForked(f"{threads} threads run in the template"))
            return False
        try:
            output = os.open(request.log_path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
        except OSError as error:
            launcher.send(NotForked(f"{request.log_path}: {error.strerror}"))
            return False
        try:
            pid = os.fork()
        except OSError as error:
            os.close(output)
            launcher.send(NotForked(f"cannot fork: {error.strerror}"))
            return False
        if pid == 0:
            self._become(request, stdin, output)
            return True
        os.close(output)
        pidfd = os.pidfd_open(pid)
        launcher.children[pidfd] = pid
        self._children[pidfd] = launcher
        self._poll.register(pidfd, select.POLLIN)
        launcher.send(Forked(pid), pidfd)
        return False

    def _become(self, request: ForkRequest, stdin: int | None, output: int) -> None:
        """In the new process: be as one that was started by itself."""
        die_with_parent(self._pid)
        os.setsid()
        self._listener.close()
        for launcher in self._launchers.values():
            launcher.connection.close()
        for pidfd in self._children:
            os.close(pidfd)
        if stdin is not None:
            os.dup2(stdin, 0)
            os.close(stdin)
        for number in (1, 2):
            os.dup2(output, number)
        os.close(output)
        os.environ.clear()
        os.environ.update(request.env)
        os.environ[PARENT] = str(self._pid)

    def _reap(self, pidfd: int) -> None:
        self._poll.unregister(pidfd)
        launcher = self._children.pop(pidfd)
        pid = launcher.children.pop(pidfd)
        os.close(pidfd)
        _, status = os.waitpid(pid, 0)
        launcher.send(Exited(pid, os.waitstatus_to_exitcode(status)))


def main() -> None:
    """Entry point of the process, and of all that it forks."""
    die_with_parent(int(os.environ[PARENT]))
    listener = socket.socket(fileno=os.dup(0))
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    # Its owner ends it; what a service manager sends to all processes is not for this one.
    # Blocked and not ignored: what a new process is sent before it is itself waits for it.
    outlive_notices()
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING_SIGNALS)
    gc.disable()  # what is imported never goes: no collection need look at it, here or in a worker
    importlib.import_module(sys.argv[1]).prepare_to_fork()
    gc.collect()
    gc.freeze()
    gc.enable()
    sys.stdout.flush()
    sys.stderr.flush()
    request = _Template(listener).serve()
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
