"""The page's server: a thread with a loop of its own, so that whoever looks keeps nothing else from
its work.

It reads the folder of runs and nothing else, and shares nothing with who started it. When it breaks
down, the log says so, and everything else goes on. Connections, viewers, what waits for each of
them, headers, bodies and times are bounded; whoever is one too many is told when to come again.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from http import HTTPStatus
from types import TracebackType
from typing import Any, Self

import structlog
from aiohttp import web

from spotlight.errors import AddressInUse, UserError
from spotlight.resolved_structs import resolve_structs
from spotlight.transport import descriptors
from spotlight.transport.tensors.certificates import Certificate
from spotlight.transport.wary_server import WaryServer
from spotlight.web.admission import Admission, Cookies
from spotlight.web.page_app import PageApp
from spotlight.web.page_guard import PageGuard
from spotlight.web.shown_runs import ShownRuns

log = structlog.get_logger(__name__)

MOST_CONNECTIONS = 256
"""Connections at once, if that leaves descriptors for others."""
HEADER_LIMIT_S = 10.0
"""The head of a request comes within so long."""
IDLE_LIMIT_S = 30.0
"""A connection may be without a request for so long."""
_LINGER_S = 2.0
_BACKLOG = 256
_JOIN_LIMIT_S = 10.0
_AGAIN_S = 5


@dataclass(frozen=True)
class PageSettings:
    """What is served, where and to whom."""

    runs: ShownRuns
    host: str = "127.0.0.1"
    port: int = 0
    """0 for a free one."""
    option: str = "--web"
    """What errors call the address."""
    admission: Admission | None = None
    """Who may look; None: everybody who reaches it."""
    certificate: Certificate | None = None
    """It speaks TLS with this one, and nothing else; None: it speaks plain HTTP."""


class PageServer:
    """See the module's docstring. A context, which serves until it ends."""

    def __init__(self, settings: PageSettings) -> None:
        self._settings = settings
        self._listener: socket.socket | None = None
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._server: WaryServer | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def url(self) -> str:
        """Where it is, once it has started; without a token."""
        assert self._listener is not None
        host, port = self._listener.getsockname()[:2]
        return f"{self._scheme}://[{host}]:{port}/" if ":" in host else self._plain_url(host, port)

    @property
    def is_alive(self) -> bool:
        """Whether it serves."""
        return self._thread is not None and self._thread.is_alive()

    def start(self) -> None:
        """Listen. Raises `UserError` that names the option when the address cannot be bound."""
        self._listener = _listening(self._settings)
        resolve_structs()  # this process may read some of what the server reads
        started: Future[None] = Future()
        self._thread = threading.Thread(
            target=self._run, args=(started,), name="spotlight-web", daemon=True
        )
        self._thread.start()
        started.result()

    def close(self) -> None:
        """End all connections, and release the port. Idempotent."""
        thread, self._thread = self._thread, None
        if thread is None:
            return
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # it has ended by itself
                self._loop.call_soon_threadsafe(self._begin_to_end)
        thread.join(_JOIN_LIMIT_S)
        if thread.is_alive():  # a file system that does not answer
            log.warning("page_server_does_not_end", waited_s=_JOIN_LIMIT_S)

    # --- on the server's thread ---

    def _run(self, started: Future[None]) -> None:
        assert self._listener is not None
        try:
            with (
                self._listener as listener,
                asyncio.Runner(loop_factory=asyncio.SelectorEventLoop) as runner,
            ):
                runner.run(self._serve(listener, started))
        except BaseException as error:
            if not started.done():
                started.set_exception(error)
                return
            # Who only looked has lost something, and nobody else.
            log.exception("page_server_ended", reason=str(error))

    async def _serve(self, listener: socket.socket, started: Future[None]) -> None:
        loop = asyncio.get_running_loop()
        self._app = PageApp(self._settings.runs, self._guard())
        self._answering: set[asyncio.Task[Any]] = set()
        most = min(MOST_CONNECTIONS, descriptors.limit() // 16)
        server = self._server = WaryServer(
            self._answer,
            HEADER_LIMIT_S,
            most,
            keepalive_timeout=IDLE_LIMIT_S,
            lingering_time=_LINGER_S,
        )
        certificate = self._settings.certificate
        connected = server if certificate is None else server.secured(loop, certificate.context)

        def enter() -> asyncio.Protocol:
            return _Entrance(connected, lambda: server.held < most)

        listening = await loop.create_server(enter, sock=listener, backlog=_BACKLOG)
        self._loop = loop
        started.set_result(None)
        await server.until_closed(listening, self._answering)
        if self._app.refusals:
            log.info("page_requests_refused", requests=dict(self._app.refusals))

    def _begin_to_end(self) -> None:
        assert self._server is not None
        self._app.broadcasts.cancel()
        self._server.closing.set()

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        assert self._server is not None
        task = asyncio.current_task()
        assert task is not None
        self._server.is_known(request.protocol)
        self._answering.add(task)
        try:
            return await self._app.answer(request)
        finally:
            self._answering.discard(task)

    # --- inside ---

    @property
    def _scheme(self) -> str:
        return "http" if self._settings.certificate is None else "https"

    def _plain_url(self, host: str, port: int) -> str:
        return f"{self._scheme}://{host}:{port}/"

    def _guard(self) -> PageGuard:
        assert self._listener is not None
        admission = self._settings.admission
        cookies = None if admission is None else Cookies(admission)
        port = self._listener.getsockname()[1]  # all ports of a host have their cookies in common
        return PageGuard(self._scheme, admission, cookies, f"spotlight-{port}")


class _Entrance(asyncio.Protocol):
    """Where a connection begins; one that is one too many is told so, whatever it asks."""

    def __init__(
        self, connected: Callable[[], asyncio.BaseProtocol], has_room: Callable[[], bool]
    ) -> None:
        self._connected = connected
        self._has_room = has_room

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        if self._has_room():
            protocol = self._connected()
            transport.set_protocol(protocol)
            protocol.connection_made(transport)
        else:
            self._limit = asyncio.get_running_loop().call_later(_LINGER_S, transport.abort)

    def data_received(self, data: bytes) -> None:
        body = b'{"error": "too many connections; close some of these pages, or try again"}'
        status = HTTPStatus.SERVICE_UNAVAILABLE
        self._transport.write(
            b"HTTP/1.1 %d %b\r\nContent-Type: application/json\r\nContent-Length: %d\r\n"
            b"Retry-After: %d\r\nConnection: close\r\n\r\n%b"
            % (status, status.phrase.encode(), len(body), _AGAIN_S, body)
        )
        self._transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._limit.cancel()


def _listening(settings: PageSettings) -> socket.socket:
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    try:
        listener = socket.create_server((settings.host, settings.port), family=family)
    except OSError as error:
        problem = f"{settings.option} {settings.host}:{settings.port}: {error.strerror or error}"
        if error.errno == errno.EADDRINUSE:
            raise AddressInUse(f"{problem}; choose another port, or 0 for any") from error
        raise UserError(f"{problem}; name an address of this machine") from error
    listener.setblocking(False)
    return listener
