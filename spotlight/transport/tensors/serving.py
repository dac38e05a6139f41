"""The port of a store: how many may be connected, and for how long.

A connection is a stranger's until its header has come and is allowed; few strangers are allowed,
for a short time, and when new ones come the oldest is closed. A transfer may take long as long as
it makes progress.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator

import msgspec

from spotlight.errors import TransferFailed
from spotlight.timings import TransferTimings
from spotlight.transport import descriptors
from spotlight.transport.tensors.records import (
    Answer,
    Header,
    read_record,
    write_record,
)

_BACKLOG = 1024


def connection_limit() -> int:
    """Transfers at once that leave descriptors for others; each takes two."""
    return min(1024, descriptors.limit() // 16)


class StoreServer:
    """See the module's docstring.

    Args:
        owner_of: who asks for this; raises `TransferFailed` if it is not allowed.
        answer: does what was asked; raises `TransferFailed` with the reason why it cannot.
        timings: how long it waits for a client.
    """

    def __init__(
        self,
        owner_of: Callable[[Header], str],
        answer: Callable[
            [str, Header, asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]
        ],
        timings: TransferTimings,
    ) -> None:
        self._timings = timings
        self._owner_of = owner_of
        self._answer = answer
        self._limit = connection_limit()
        self._server: asyncio.Server | None = None
        self._connections: dict[asyncio.Task[None], asyncio.StreamWriter] = {}
        self._strangers: dict[asyncio.Task[None], None] = {}
        """In the order in which they came."""
        self._transfers: Counter[str] = Counter()
        """Under way, by who asked for them."""

    def __len__(self) -> int:
        """How many are connected."""
        return len(self._connections)

    async def start(self, host: str) -> int:
        """Listen on a free port; returns it."""
        self._server = await asyncio.start_server(self._accept, host, 0, backlog=_BACKLOG)
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    async def aclose(self) -> None:
        """End all connections. Idempotent."""
        server, self._server = self._server, None
        if server is None:
            return
        server.close()
        connections = dict(self._connections)
        for task in connections:
            self._end(task)
        await asyncio.gather(*connections, return_exceptions=True)
        await server.wait_closed()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._server is None:  # it closed while this connection was on its way
            writer.transport.abort()
            return
        task = asyncio.get_running_loop().create_task(self._converse(reader, writer))
        self._connections[task] = writer
        self._strangers[task] = None
        task.add_done_callback(self._forget)
        if len(self._strangers) > self._limit:
            self._end(next(iter(self._strangers)))

    def _end(self, task: asyncio.Task[None]) -> None:
        self._strangers.pop(task, None)
        self._connections[task].transport.abort()
        task.cancel()

    def _forget(self, task: asyncio.Task[None]) -> None:
        self._strangers.pop(task, None)
        del self._connections[task]

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await self._serve(reader, writer)
            writer.close()
            async with asyncio.timeout(self._timings.idle_limit_s):
                await writer.wait_closed()
        except (OSError, EOFError, msgspec.MsgspecError):
            pass  # the other side is gone, stuck, or talks nonsense: it sees a closed connection
        finally:
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            encoded = await read_record(reader, self._timings.header_limit_s)
            header = msgspec.msgpack.decode(encoded, type=Header)
            owner = self._owner_of(header)
            with self._transfer(owner):
                await self._answer(owner, header, reader, writer)
        except TransferFailed as error:
            refusal = Answer(False, problem=str(error))
            await write_record(writer, refusal, self._timings.idle_limit_s)

    @contextlib.contextmanager
    def _transfer(self, owner: str) -> Iterator[None]:
        # None may take all places: others could leave nothing, and read nothing.
        if self._transfers.total() >= self._limit or self._transfers[owner] >= self._limit // 2:
            raise TransferFailed(f"{self._transfers.total()} transfers are under way; try again")
        task = asyncio.current_task()
        assert task is not None
        self._strangers.pop(task, None)
        self._transfers[owner] += 1
        try:
            yield
        finally:
            self._transfers[owner] -= 1
            if not self._transfers[owner]:
                del self._transfers[owner]
