"""A `ProcessLauncher` that forks processes from one that has imported what they need, a template:
eight workers of however many nodes then cost one import.

What holds as for processes that are started one by one: each has the environment, the log file and
the session that it was asked for, and its exit code is reported. It ends with this process and with
the template, however either ends. A template belongs to its `fork_owner`, which starts it again;
this launcher then connects to it again. What libraries read of the environment as they are loaded,
the template has read from that of its owner.

A process that cannot be forked is started by itself, and the log says why.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
import structlog

from spotlight.actors.runtime.fork_template import (
    PACKET_LIMIT,
    Exited,
    Forked,
    ForkRequest,
    NotForked,
    Ready,
    Report,
)
from spotlight.actors.runtime.launcher import LocalLauncher, ProcessHandle, handed_over
from spotlight.timings import RuntimeTimings

log = structlog.get_logger(__name__)


class _TemplateFailed(Exception):
    """Why nothing can be forked, in words."""


class ForkedProcess:
    """A process that a template forked. See `ProcessHandle`."""

    def __init__(self, name: str, pid: int, pidfd: int, template: _Connection) -> None:
        self.name = name
        self.pid = pid
        self._pidfd = pidfd
        self._template = template
        self._loop = asyncio.get_running_loop()
        self._code: asyncio.Future[int] = self._loop.create_future()
        self._overdue: asyncio.TimerHandle | None = None
        self._loop.add_reader(pidfd, self._ended)

    async def wait(self) -> int:
        """Return its exit code once it ended; the negative signal number if a signal ended it, or
        the end of its template."""
        return await asyncio.shield(self._code)

    def terminate(self) -> None:
        """Ask it to end (SIGTERM)."""
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """End it (SIGKILL)."""
        self._signal(signal.SIGKILL)

    def exited(self, code: int) -> None:
        """The template says so."""
        if not self._code.done():
            self._code.set_result(code)
            self._loop.remove_reader(self._pidfd)
            os.close(self._pidfd)
            if self._overdue is not None:
                self._overdue.cancel()

    def _ended(self) -> None:
        self._loop.remove_reader(self._pidfd)
        if self._template.lost:
            self.exited(-signal.SIGKILL)
        else:
            self._overdue = self._loop.call_later(
                self._template.times.exit_report_limit_s, self._give_up_template
            )

    def template_lost(self) -> None:
        """Nobody will report its end; the kernel brings it about."""
        self.kill()
        if self._overdue is not None:
            self.exited(-signal.SIGKILL)

    def _give_up_template(self) -> None:
        log.error("template_hangs", name=self.name, pid=self.pid)
        self._template.kill()

    def _signal(self, number: signal.Signals) -> None:
        if not self._code.done():
            try:
                signal.pidfd_send_signal(self._pidfd, number)
            except ProcessLookupError:
                return


class _Connection:
    """A template process, as one of its launchers sees it."""

    def __init__(self, address: str, times: RuntimeTimings) -> None:
        """Raises `OSError` if nothing listens there."""
        self.times = times
        self._loop = asyncio.get_running_loop()
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.setblocking(False)
        try:
            self._socket.connect(f"\0{address}")
        except OSError:
            self._socket.close()
            raise
        self._pidfd: int | None = None
        """The descriptor of the template's process, once that is ready."""
        self._ready: asyncio.Future[None] = self._loop.create_future()
        self._requests: deque[tuple[str, asyncio.Future[ForkedProcess]]] = deque()
        """Names of processes that were asked for, in order."""
        self._processes: dict[int, ForkedProcess] = {}
        self.lost = False
        """Whether it is gone."""
        self._loop.add_reader(self._socket, self._read)

    async def ready(self) -> None:
        """Return once the template has imported everything."""
        try:
            async with asyncio.timeout(self.times.template_limit_s):
                await self._ready
        except TimeoutError:
            self._lose()
            raise

    async def fork(self, request: ForkRequest, name: str, stdin: int | None) -> ForkedProcess:
        """A process that runs what is asked for, with this descriptor as its standard input."""
        descriptors = [] if stdin is None else [stdin]
        # One at a time: there is room.
        socket.send_fds(self._socket, [msgspec.msgpack.encode(request)], descriptors)
        answer: asyncio.Future[ForkedProcess] = self._loop.create_future()
        self._requests.append((name, answer))
        try:
            async with asyncio.timeout(self.times.fork_limit_s):
                return await answer
        except TimeoutError:
            self.kill()
            raise

    def kill(self) -> None:
        """End the template, and so all that it forked, for whomever; its owner starts another."""
        if self._pidfd is not None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)

    async def aclose(self) -> None:
        """Leave it, and return when all that it forked for this launcher has ended."""
        for process in self._processes.values():
            process.kill()
        for process in list(self._processes.values()):
            await process.wait()
        if not self.lost:
            self._lose()

    def _read(self) -> None:
        try:
            packet, descriptors, _, _ = socket.recv_fds(self._socket, PACKET_LIMIT, 1)
        except BlockingIOError:
            return
        except ConnectionResetError:
            packet, descriptors = b"", []
        if not packet:
            self._lose()
            return
        try:
            report = msgspec.msgpack.decode(packet, type=Report)
        except msgspec.MsgspecError as error:  # it is of another build
            log.error("template_not_understood", reason=str(error))
            for descriptor in descriptors:
                os.close(descriptor)
            self._lose()
            return
        match report:
            case Ready(pid):
                with contextlib.suppress(ProcessLookupError):  # its end is read next
                    self._pidfd = os.pidfd_open(pid)
                if not self._ready.done():
                    self._ready.set_result(None)
            case Forked(pid):
                name, answer = self._requests.popleft()
                process = ForkedProcess(name, pid, descriptors[0], self)
                self._processes[pid] = process
                if answer.done():  # nobody waits for it any more
                    process.kill()
                else:
                    answer.set_result(process)
            case NotForked(reason):
                _, answer = self._requests.popleft()
                if not answer.done():
                    answer.set_exception(_TemplateFailed(reason))
            case Exited(pid, code):
                self._processes.pop(pid).exited(code)

    def _lose(self) -> None:
        self.lost = True
        self._loop.remove_reader(self._socket)
        self._socket.close()
        if self._pidfd is not None:
            os.close(self._pidfd)
            self._pidfd = None
        reason = "the template ended"
        if not self._ready.done():
            self._ready.set_exception(_TemplateFailed(reason))
        for _, answer in self._requests:
            if not answer.done():
                answer.set_exception(_TemplateFailed(reason))
        for process in self._processes.values():
            process.template_lost()


class ForkLauncher:
    """See the module's docstring. Close it before the loop.

    Args:
        template: the address of a template; see `TemplateOwner`.
        timings: how long the template may take.
    """

    def __init__(self, template: str, timings: RuntimeTimings = RuntimeTimings()) -> None:
        self._address = template
        self._times = timings
        self._template: _Connection | None = None
        self._forking = asyncio.Lock()
        self._refusal = ""
        """Why there cannot be a template; empty while there may be one."""

    async def start(
        self,
        argv: Sequence[str],
        env: Mapping[str, str],
        name: str,
        log_path: Path,
        secret: bytes = b"",
    ) -> ProcessHandle:
        """See `ProcessLauncher.start`. `argv` is `sys.executable -m MODULE` and arguments."""
        _, _, module, *arguments = argv
        request = ForkRequest(module, arguments, dict(env), str(log_path))
        try:
            log_path.parent.mkdir(parents=True, exist_ok=True)
            async with self._forking:
                template = await self._ready_template()
                with handed_over(secret) as stdin:
                    return await template.fork(request, name, stdin)
        except (_TemplateFailed, OSError) as error:  # a time limit is an OSError, too
            reason = str(error) or "it took too long"
        log.error("process_not_forked", name=name, reason=reason)
        return await LocalLauncher().start(argv, env, name, log_path, secret)

    async def aclose(self) -> None:
        """End all that was forked."""
        if self._template is not None:
            await self._template.aclose()

    async def _ready_template(self) -> _Connection:
        if self._refusal:
            raise _TemplateFailed(self._refusal)
        if self._template is None or self._template.lost:
            try:
                self._template = _Connection(self._address, self._times)
                await self._template.ready()
            except (_TemplateFailed, OSError) as error:
                self._refusal = f"no template: {error or 'it took too long'}; see template.log"
                raise _TemplateFailed(self._refusal) from error
        return self._template
