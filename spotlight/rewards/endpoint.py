"""Posts JSON to a server until it answers: several requests at a time, each tried again after what
may pass (no connection, no answer in time, a busy or broken server), with a growing wait between.

Synchronous, as scorers are, and called in their thread, which must have no event loop running. It
keeps no connection and no thread between calls, so there is nothing to close.
"""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from spotlight.errors import MissingDependency, ScoringError, how_to_install
from spotlight.permissions import is_link_local
from spotlight.text import error_text, plain

try:
    import httpx2
except ModuleNotFoundError as error:
    raise MissingDependency(
        f"a reward over HTTP needs {error.name}; {how_to_install('rewards')}"
    ) from error

LONGEST_WAIT_S = 15.0
"""Seconds; a server that asks for more patience gets no more."""
LARGEST_ANSWER = 16 * 1024 * 1024
"""Bytes. An answer is some numbers and reasons."""
_LONGEST_ANSWER_TOLD = 300
"""Characters of an answer that is none."""

_MAY_PASS = frozenset({408, 425, 429, *range(500, 600)})
"""Status codes that another try may not see."""


@dataclass(frozen=True)
class Endpoint:
    """A server, and how long and how often it is tried."""

    url: str
    authorization: str | None = None
    """Value of the `Authorization` header."""
    attempts: int = 5
    """Tries for a request. [tries]"""
    timeout_s: float = 60.0
    """The longest time of one try, from connecting to the last byte of the answer. [seconds]"""
    concurrency: int = 4
    """Requests at a time. [requests]"""
    link_local: bool = False
    """Whether the server may have a link-local address."""
    first_wait_s: float = 0.5
    """The wait before the second try; each wait is twice as long as the one before. [seconds]"""


class _MayPass(Exception):
    """A try failed, but another one may succeed."""

    def __init__(self, problem: str, wait_s: float = 0.0) -> None:
        super().__init__(problem)
        self.wait_s = wait_s
        """What the server asks for."""


class Poster:
    """Posts to one endpoint."""

    def __init__(
        self,
        endpoint: Endpoint,
        *,
        transport: httpx2.AsyncBaseTransport | None = None,
        new_loop: Callable[[], asyncio.AbstractEventLoop] | None = None,
    ) -> None:
        """`transport` and `new_loop` stand in for the network and for time."""
        self._endpoint = endpoint
        self._transport = transport
        self._new_loop = new_loop
        # Reading the certificates of all authorities takes longer than a request: once, then.
        self._tls = httpx2.create_ssl_context() if endpoint.url.startswith("https") else False

    def post_all(self, bodies: Sequence[bytes]) -> list[bytes | ScoringError]:
        """Of each body the answer with status 200, or why there is none. Takes at most `attempts`
        times `timeout_s` and the waits between, for each `concurrency` bodies.
        """
        with asyncio.Runner(loop_factory=self._new_loop) as runner:
            return runner.run(self._post_all(bodies))

    async def _post_all(self, bodies: Sequence[bytes]) -> list[bytes | ScoringError]:
        # What is compressed has no bound until it is unpacked.
        headers = {"content-type": "application/json", "accept-encoding": "identity"}
        if self._endpoint.authorization is not None:
            headers["authorization"] = self._endpoint.authorization
        turns = asyncio.Semaphore(self._endpoint.concurrency)
        async with httpx2.AsyncClient(
            headers=headers, timeout=None, verify=self._tls, transport=self._transport
        ) as client:

            async def one(body: bytes) -> bytes | ScoringError:
                async with turns:
                    try:
                        return await self._post(client, body)
                    except ScoringError as error:
                        return error

            return await asyncio.gather(*map(one, bodies))

    async def _post(self, client: httpx2.AsyncClient, body: bytes) -> bytes:
        endpoint, wait_s = self._endpoint, self._endpoint.first_wait_s
        for attempt in range(1, endpoint.attempts + 1):
            try:
                async with asyncio.timeout(endpoint.timeout_s):
                    return await self._try(client, body)
            except TimeoutError:
                failure = _MayPass(f"no answer within {endpoint.timeout_s:g} s")
            except httpx2.TransportError as error:
                failure = _MayPass(error_text(error))
            except (httpx2.HTTPError, httpx2.InvalidURL) as error:
                raise ScoringError(f"{endpoint.url}: {error_text(error)}") from error
            except _MayPass as error:
                failure = error
            if attempt < endpoint.attempts:
                await asyncio.sleep(min(max(wait_s, failure.wait_s), LONGEST_WAIT_S))
                wait_s *= 2
        raise ScoringError(
            f"{endpoint.url}: no answer in {endpoint.attempts} tries; the last one: {failure}"
        )

    async def _try(self, client: httpx2.AsyncClient, body: bytes) -> bytes:
        watch = {} if self._endpoint.link_local else {"trace": _refuse_link_local}
        if watch and self._transport is None:
            await _require_elsewhere(self._endpoint.url)
        async with client.stream(
            "POST", self._endpoint.url, content=body, extensions=watch
        ) as response:
            if response.headers.get("content-encoding", "identity") != "identity":
                raise ScoringError(f"{self._endpoint.url}: the answer is compressed unasked")
            answer = bytearray()
            async for part in response.aiter_bytes():
                answer += part
                if len(answer) > LARGEST_ANSWER:
                    raise ScoringError(
                        f"{self._endpoint.url}: the answer has more than {LARGEST_ANSWER:,} bytes"
                    )
        if response.status_code == 200:
            return bytes(answer)
        problem = f"status {response.status_code}{_told(answer)}"
        if response.status_code in _MAY_PASS:
            raise _MayPass(problem, _asked_wait_s(response.headers.get("retry-after", "")))
        raise ScoringError(f"{self._endpoint.url}: {problem}")


def _told(answer: bytearray) -> str:
    """The beginning of what the server says, in one line."""
    text = plain(answer[:2000].decode("utf-8", "replace"), _LONGEST_ANSWER_TOLD)
    return f": {text}" if text else ""


async def _require_elsewhere(url: str) -> None:
    """Raise `ScoringError` for a server at a link-local address, however it is written: such an
    address is often that of a service that trusts whoever asks. A name that only a proxy knows is
    the proxy's to look up."""
    parts = httpx2.URL(url)
    try:
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(parts.host, parts.port or 0, type=socket.SOCK_STREAM)
    except OSError:
        return
    for *_, place in found:
        _require_not_link_local(str(place[0]))


async def _refuse_link_local(event: str, info: Mapping[str, Any]) -> None:
    """The same of the connection that was made, before anything is sent: a name may mean another
    address by now."""
    if event == "connection.connect_tcp.complete":
        stream = info["return_value"]
        peer = stream.get_extra_info("server_addr")
        try:
            _require_not_link_local(str(peer[0]) if peer else "")
        except ScoringError:
            await stream.aclose()
            raise


def _require_not_link_local(address: str) -> None:
    if is_link_local(address):
        raise ScoringError(
            f"url: its server has the link-local address {address}, to which nothing is sent unless"
            " the node was started with --allow-link-local"
        )


def _asked_wait_s(retry_after: str) -> float:
    return float(retry_after) if re.fullmatch(r"\d{1,6}", retry_after.strip()) else 0.0
