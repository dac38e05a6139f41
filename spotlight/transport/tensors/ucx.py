"""Bytes from process to process by UCX: over RDMA where the machines have it, through shared memory
on one machine.

Who wants a bundle asks for it over HTTP, as ever, and names the address of a UCX worker and a tag
that are of this one transfer; the sender's own worker sends to it. So nobody listens for strangers,
and the token is checked first. Every chunk has a deadline: UCX notices that a process has ended,
and not that it stands still.

The library is `ucxx`, which is imported when the first transfer needs it.
"""

from __future__ import annotations

import base64
import binascii
import functools
import itertools
import os
import re
import secrets
import select
import socket
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from time import monotonic
from typing import Any, BinaryIO

import structlog

from spotlight.errors import TransferFailed

CHUNK = 8 * 1024 * 1024
_TARGET = re.compile("([0-9a-f]{16}) ([A-Za-z0-9+/]{8,8000}={0,2})")
_AT_ONCE = 3
"""Chunks under way: while one is written, or read, others move."""
_LOOK_MS = 20
"""Whether the other side has gone is looked at so often."""
_CLOSE_NS = 1_000_000_000
_CONFIGURATION = {
    # Of shared memory: larger pieces than 8 KiB wake up the other side less often.
    "POSIX_SEG_SIZE": "32768",
    "POSIX_FIFO_SIZE": "512",
}
_ENVIRONMENT = {
    # Without it two processes of one machine use TCP: only ways that tell of a lost peer are used.
    "UCX_POSIX_ERROR_HANDLING": "y",
    "UCX_LOG_FILE": "stderr",
    "UCX_WARN_UNUSED_ENV_VARS": "n",
}
log = structlog.get_logger(__name__)


@functools.cache
def is_installed() -> bool:
    """Whether UCXX can be imported; if not, the log says why, once."""
    try:
        _library()
    except ImportError as error:
        log.warning("ucx_not_used", reason=str(error))
        return False
    return True


def _library() -> Any:
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    from ucxx._lib import libucxx

    return libucxx


@dataclass(frozen=True)
class Target:
    """Where the chunks of one transfer are to be sent."""

    address: bytes
    tag: int

    def __str__(self) -> str:
        """As it travels in a header."""
        return f"{self.tag:016x} {base64.b64encode(self.address).decode()}"

    @classmethod
    def parse(cls, text: str) -> Target:
        """What a header says; raises `TransferFailed` for what is no target."""
        found = _TARGET.fullmatch(text)
        try:
            if found is not None:
                return cls(base64.b64decode(found[2], validate=True), int(found[1], 16))
        except binascii.Error:
            pass
        raise TransferFailed("names no tag and address of UCX")


class Receiver:
    """Takes the chunks of one transfer, in the order in which they are sent."""

    def __init__(self, worker: Any) -> None:
        self._worker = worker
        self.target = Target(bytes(worker.address), secrets.randbits(64))

    def chunks(self, nbytes: int, connection: socket.socket, idle_s: float) -> Iterator[memoryview]:
        """So many bytes in chunks. Each is overwritten soon after the next one was asked for.

        Raises `TransferFailed` when the sender closes the connection on which it was asked, and
        `TimeoutError` when a chunk has not come after `idle_s`.
        """
        from ucxx._lib.arr import Array
        from ucxx.types import Tag, TagMaskFull

        tag, under_way = Tag(self.target.tag), deque[tuple[memoryview, Any]]()
        buffers = _buffers(nbytes)
        events = select.poll()
        events.register(connection, select.POLLIN)
        while nbytes or under_way:
            while nbytes and len(under_way) < _AT_ONCE:
                part = next(buffers)[:nbytes]
                under_way.append((part, self._worker.tag_recv(Array(part), tag, TagMaskFull)))
                nbytes -= len(part)
            part, request = under_way[0]
            give_up_at = monotonic() + idle_s
            while not request.completed:
                self._worker.progress_worker_event(_LOOK_MS)
                if events.poll(0) and not request.completed:
                    raise TransferFailed("the connection closed in the middle of a bundle")
                if monotonic() > give_up_at:
                    raise TimeoutError
            with _explaining():
                request.check_error()
            yield part
            under_way.popleft()


@contextmanager
def receiver() -> Iterator[Receiver]:
    """Ready to take the chunks of one transfer."""
    with _explaining(), _worker() as worker:
        yield Receiver(worker)


def send(
    target: Target, file: BinaryIO, first: int, nbytes: int, idle_s: float, gone: threading.Event
) -> None:
    """Send so many bytes of a file from `first` on, and wait until the receiver is `gone`.

    Raises `TransferFailed` when it goes before that, is lost, or takes no chunk within `idle_s`.
    """
    with _explaining(), _worker() as worker:
        # UCX ends the process that reads an address of another version of the format.
        if target.address[:1] != bytes(worker.address)[:1]:
            raise TransferFailed("the receiver has another version of UCX")
        address = _library().UCXAddress.create_from_buffer(target.address)
        endpoint = worker.create_endpoint_from_worker_address(address, True)
        try:
            _send(worker, endpoint, target.tag, file, first, nbytes, idle_s, gone)
        finally:
            endpoint.close_blocking(_CLOSE_NS, 1)


def _send(
    worker: Any,
    endpoint: Any,
    tag: int,
    file: BinaryIO,
    first: int,
    nbytes: int,
    idle_s: float,
    gone: threading.Event,
) -> None:
    from ucxx._lib.arr import Array
    from ucxx.types import Tag

    under_way, buffers = deque[Any](), _buffers(nbytes)
    while nbytes or under_way:
        while nbytes and len(under_way) < _AT_ONCE:
            part = next(buffers)[:nbytes]
            if os.preadv(file.fileno(), [part], first) < len(part):
                raise TransferFailed("somebody has cut the file")
            under_way.append(endpoint.tag_send(Array(part), Tag(tag)))
            first, nbytes = first + len(part), nbytes - len(part)
        give_up_at = monotonic() + idle_s
        while not under_way[0].completed:
            worker.progress_worker_event(_LOOK_MS)
            if gone.is_set() or monotonic() > give_up_at:
                raise TransferFailed("the receiver has gone, or stands still")
        under_way.popleft().check_error()
    give_up_at = monotonic() + idle_s
    while not gone.is_set() and monotonic() < give_up_at:  # it takes what is still on the way
        worker.progress_worker_event(_LOOK_MS)


def _buffers(nbytes: int) -> Iterator[memoryview]:
    """For the chunks of so many bytes, as many as may be under way, in turn."""
    return itertools.cycle([memoryview(bytearray(min(CHUNK, nbytes))) for _ in range(_AT_ONCE)])


@contextmanager
def _worker() -> Iterator[Any]:
    """A UCX worker that shares nothing with another: what one transfer leaves harms no other. Its
    bytes move while somebody waits for them: UCXX's own thread for that does not end when a peer
    stands still.
    """
    library = _library()
    worker = library.UCXWorker(
        library.UCXContext(_CONFIGURATION),
        enable_delayed_submission=False,
        enable_python_future=False,
    )
    worker.init_blocking_progress_mode()
    try:
        yield worker
    finally:
        worker.cancel_inflight_requests(_CLOSE_NS, 1)


@contextmanager
def _explaining() -> Iterator[None]:
    try:
        yield
    except _library().UCXError as error:
        raise TransferFailed(f"UCX: {error}") from error
