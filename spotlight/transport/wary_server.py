"""An HTTP server that knows its strangers: connections that have proved nothing yet.

There are few of them and they have little time, and when others come the oldest goes. A connection
that does not agree on TLS is a stranger, as well. What serves says of a connection that it is known
once the head of a request has come and is allowed.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from asyncio.sslproto import SSLProtocol
from collections.abc import Callable, Collection
from typing import Any

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.web_protocol import RequestHandler

_log = logging.getLogger(__name__)
Abort = Callable[[], None]


def _is_ours(record: logging.LogRecord) -> bool:
    # What strangers send that is no HTTP is answered, and must not fill the log.
    error = record.exc_info[1] if record.exc_info else None
    return not isinstance(error, HttpProcessingError)


_log.addFilter(_is_ours)


class WaryServer(web.Server):
    """See the module's docstring.

    Args:
        handler: answers a request.
        header_limit_s: how long one may be a stranger.
        limit: how many strangers there may be.
        options: of the connections, as `RequestHandler` has them.
    """

    def __init__(self, handler: Any, header_limit_s: float, limit: int, **options: Any) -> None:
        super().__init__(
            handler, handler_cancellation=True, access_log=None, logger=_log, **options
        )
        self.closing = asyncio.Event()
        self._header_limit_s = header_limit_s
        self._limit = limit
        self._strangers: dict[RequestHandler, tuple[asyncio.TimerHandle, Abort]] = {}
        """Connections that have proved nothing yet, in the order in which they came: what ends each
        in time, or now."""

    @property
    def held(self) -> int:
        """How many are connected, strangers or not."""
        return len(self._strangers.keys() | set(self.connections))

    def secured(
        self, loop: asyncio.AbstractEventLoop, context: ssl.SSLContext
    ) -> Callable[[], SecuredConnection]:
        """What makes its connections when they speak TLS, and nothing else."""
        return lambda: SecuredConnection(self, loop, context, self._header_limit_s)

    async def until_closed(
        self, listener: asyncio.Server, answering: Collection[asyncio.Task[Any]]
    ) -> None:
        """Serve until it is `closing`; then end `answering` and all connections, and wait for all
        else that goes on in this loop."""
        await self.closing.wait()
        # Closing the listener at once would leave open what it has just accepted.
        for each in listener.sockets:
            asyncio.get_running_loop().remove_reader(each)
        for task in answering:  # a connection that is aborted in a sendfile is an error
            task.cancel()
        self.abort()
        while others := asyncio.all_tasks() - {asyncio.current_task()}:
            await asyncio.wait(others)
            self.abort()
        await asyncio.sleep(0)  # what was aborted last closes its socket
        listener.close()

    def connection_made(self, handler: RequestHandler, transport: asyncio.Transport) -> None:
        """Called by the library."""
        super().connection_made(handler, transport)
        self.is_stranger(handler, transport.abort)

    def is_stranger(self, handler: RequestHandler, abort: Abort) -> None:
        """Somebody is connected, or was, and has agreed on TLS since."""
        if self.closing.is_set():
            abort()
            return
        if handler in self._strangers:
            return
        later = asyncio.get_running_loop().call_later
        self._strangers[handler] = later(self._header_limit_s, abort), abort
        if len(self._strangers) > self._limit:
            oldest = next(iter(self._strangers))
            _, abort_oldest = self._strangers[oldest]
            self.is_known(oldest)
            abort_oldest()

    def connection_lost(self, handler: RequestHandler, exc: BaseException | None = None) -> None:
        """Called by the library."""
        self.is_known(handler)
        super().connection_lost(handler, exc)

    def is_known(self, handler: RequestHandler) -> None:
        """One is no stranger any more."""
        timer, _ = self._strangers.pop(handler, (None, None))
        if timer is not None:
            timer.cancel()

    def abort(self) -> None:
        """End all connections."""
        for _, abort in list(self._strangers.values()):
            abort()
        for handler in self.connections:
            if handler.transport is not None:
                handler.transport.abort()


class SecuredConnection(SSLProtocol):
    """A connection with TLS. Who does not agree on it is a stranger, as well: the loop's own way
    to listen with TLS says nothing of a connection before that.
    """

    def __init__(
        self,
        server: WaryServer,
        loop: asyncio.AbstractEventLoop,
        context: ssl.SSLContext,
        limit_s: float,
    ) -> None:
        self._server = server
        self._handler = server()
        super().__init__(
            loop,
            self._handler,
            context,
            None,  # type: ignore[arg-type]  # nobody waits for it
            server_side=True,
            ssl_handshake_timeout=limit_s,  # type: ignore[arg-type]
            ssl_shutdown_timeout=limit_s,
        )

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by the loop."""
        assert isinstance(transport, asyncio.Transport)
        self._server.is_stranger(self._handler, transport.abort)
        super().connection_made(transport)

    def connection_lost(self, exc: BaseException | None) -> None:
        """Called by the loop."""
        self._server.is_known(self._handler)
        super().connection_lost(exc)
