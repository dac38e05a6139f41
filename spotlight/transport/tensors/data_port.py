"""Where a process serves its bundles: HTTP/1.1 on one port, for all its stores.

It runs on a thread and an event loop of its own, so that no transfer keeps the process's loop from
turning. The token of a request says which store is meant, and who leaves something. A connection
carries one request, with TLS if the port has a certificate. It is a stranger's until the request's
head has come and is allowed; strangers are few and have little time, and when others come the
oldest goes. A transfer may take its time as long as it goes on, and its token is good. What is
refused is counted.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Self

import structlog
from aiohttp import web

from spotlight.errors import TransferFailed, TransferRefused
from spotlight.timings import TransferTimings
from spotlight.transport import descriptors
from spotlight.transport.tensors.certificates import Certificate
from spotlight.transport.tensors.serving import (
    READ_AHEAD,
    ConnectionBroken,
    refusal,
)
from spotlight.transport.wary_server import SecuredConnection, WaryServer

if TYPE_CHECKING:
    from spotlight.transport.tensors.store import BundleStore

_BACKLOG = 1024
_MOST_BROKEN_BY_UCX = 8
_events = structlog.get_logger(__name__)


def connection_limit() -> int:
    """Transfers at once that leave descriptors for others; each takes two."""
    return min(1024, descriptors.limit() // 16)


class DataPort:
    """See the module's docstring. A context, which listens until it ends.

    Args:
        host: address to bind.
        port: to bind; 0 for a free one.
        advertise: the host by which others reach it; `host` unless given.
        advertise_port: the port by which others reach it; the bound one unless given.
        certificate: with which it speaks TLS, and nothing else.
        ucx: send by UCX to whoever asks for that.
        timings: how long it waits for a client.
    """

    def __init__(
        self,
        host: str = "127.0.0.1",
        port: int = 0,
        *,
        advertise: str = "",
        advertise_port: int = 0,
        certificate: Certificate | None = None,
        ucx: bool = False,
        timings: TransferTimings = TransferTimings(),
    ) -> None:
        self.host = advertise or host
        """The host by which others reach it."""
        self.port = advertise_port
        """The port by which others reach it; it is there only after `start`."""
        self.fingerprint = "" if certificate is None else certificate.fingerprint
        """The fingerprint by which others know it; empty if it speaks no TLS."""
        self.ucx = ucx
        """Whether it sends by UCX to whoever asks for that; else they get HTTP."""
        self._broken_by_ucx = 0
        self.refusals: Counter[int] = Counter()
        """Requests that were refused, by status of HTTP."""
        self._certificate = certificate
        self._bind = (host, port)
        self._timings = timings
        self._limit = connection_limit()
        self._stores: list[BundleStore] = []
        self._server: WaryServer | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._answering: set[asyncio.Task[Any]] = set()
        self._transfers: Counter[str] = Counter()
        """How many transfers are under way, by who asked for them."""
        self._scopes: dict[asyncio.Timeout, tuple[BundleStore, str]] = {}
        """What ends each of them, of which store it is, and who asked for it."""

    @property
    def connections(self) -> int:
        """How many are connected."""
        return 0 if self._server is None else len(self._server.connections)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def start(self) -> None:
        """Listen. Raises `OSError` when the address cannot be bound."""
        bound: Future[int] = Future()
        self._thread = threading.Thread(target=self._run, args=(bound,), name="data-port")
        self._thread.start()
        port = await asyncio.to_thread(bound.result)
        self.port = self.port or port

    def attach(self, store: BundleStore) -> None:
        """Serve this store, too."""
        self._stores = [*self._stores, store]

    def detach(self, store: BundleStore) -> None:
        """Serve it no longer; what is under way goes on."""
        self._stores = [each for each in self._stores if each is not store]

    def break_off(self, store: BundleStore, owner: str) -> None:
        """End what one has under way with a store, whose token is good no longer."""
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # it has ended
                self._loop.call_soon_threadsafe(self._end_transfers, (store, owner))

    def broke_by_ucx(self) -> None:
        """A transfer by UCX was broken off. UCXX keeps a dozen descriptors of each for ever, so
        after some of them there is only HTTP.
        """
        self._broken_by_ucx += 1
        if self._broken_by_ucx >= _MOST_BROKEN_BY_UCX and self.ucx:
            self.ucx = False
            _events.warning("ucx_no_longer_used", broken_transfers=self._broken_by_ucx)

    async def aclose(self) -> None:
        """End all connections. Idempotent."""
        thread, self._thread = self._thread, None
        if thread is None:
            return
        if self._loop is not None and self._server is not None:
            with contextlib.suppress(RuntimeError):  # it has ended by itself
                self._loop.call_soon_threadsafe(self._server.closing.set)
        await asyncio.to_thread(thread.join)
        if self.refusals:
            _events.info("data_port_refused", requests=dict(self.refusals))

    # --- on the port's thread ---

    def _run(self, bound: Future[int]) -> None:
        # Its own kind of loop: uvloop has no sendfile.
        with asyncio.Runner(loop_factory=asyncio.SelectorEventLoop) as runner:
            runner.run(self._serve(bound))

    async def _serve(self, bound: Future[int]) -> None:
        loop = asyncio.get_running_loop()
        server = WaryServer(
            self._handle,
            self._timings.header_limit_s,
            self._limit,
            read_bufsize=READ_AHEAD,
            auto_decompress=False,
        )
        try:
            connected = self._secured(server, loop) if self._certificate else server
            listener = await loop.create_server(connected, *self._bind, backlog=_BACKLOG)
        except OSError as error:
            bound.set_exception(error)
            return
        self._loop, self._server = loop, server
        bound.set_result(listener.sockets[0].getsockname()[1])
        await server.until_closed(listener, self._answering)

    def _secured(
        self, server: WaryServer, loop: asyncio.AbstractEventLoop
    ) -> Callable[[], SecuredConnection]:
        assert self._certificate is not None
        return server.secured(loop, self._certificate.context)

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        task = asyncio.current_task()
        assert task is not None
        self._answering.add(task)
        try:
            response = await self._answer(request)
        except TransferFailed as error:
            response = refusal(error)
            self.refusals[response.status] += 1
        except ConnectionBroken:
            assert request.transport is not None
            request.transport.abort()
            response = web.Response()
        finally:
            self._answering.discard(task)
        response.force_close()
        return response

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        for store in self._stores:
            owner = store.owner_of(request)
            if owner is not None:
                async with self._transfer(request, store, owner):
                    return await store.answer(owner, request)
        raise TransferRefused(HTTPStatus.UNAUTHORIZED, "wrong token")

    @contextlib.asynccontextmanager
    async def _transfer(
        self, request: web.BaseRequest, store: BundleStore, owner: str
    ) -> AsyncIterator[None]:
        # None may take all places: others could leave nothing, and read nothing.
        if self._transfers.total() >= self._limit or self._transfers[owner] >= self._limit // 2:
            raise TransferFailed(f"{self._transfers.total()} transfers are under way; try again")
        assert self._server is not None
        self._server.is_known(request.protocol)
        self._transfers[owner] += 1
        scope = asyncio.timeout(None)
        self._scopes[scope] = store, owner
        try:
            async with scope:
                yield
        except TimeoutError as error:
            if not scope.expired():
                raise
            raise ConnectionBroken from error  # not even an answer that it could keep waiting
        finally:
            del self._scopes[scope]
            self._transfers[owner] -= 1
            if not self._transfers[owner]:
                del self._transfers[owner]

    def _end_transfers(self, of: tuple[BundleStore, str]) -> None:
        for scope, whose in self._scopes.items():
            if whose == of and not scope.expired():
                scope.reschedule(asyncio.get_running_loop().time())
