"""One request to a metadata service.

Answers come from outside, so they are bounded in time and size, and nothing in them makes us ask
elsewhere: no redirects, no proxies of the environment, no cookies, no compressed bodies. Each
request has a connection of its own: at a few requests a second that costs little, and there is
nothing to close and no half-dead connection to find out about.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeVar

import aiohttp
import msgspec

from spotlight.cloud.notices import SourceFailed

BODY_LIMIT = 64 * 1024
"""Bytes of a body that are read at most."""

Document = TypeVar("Document")


@dataclass(frozen=True)
class Answer:
    """What a metadata service answered."""

    url: str
    status: int
    headers: Mapping[str, str]
    """The headers by name, without regard to case."""
    text: str

    def decode(self, type_: type[Document]) -> Document:
        """The text as a JSON document of this type. Raises `SourceFailed`."""
        try:
            return msgspec.json.decode(self.text, type=type_)
        except (msgspec.DecodeError, RecursionError) as error:
            raise SourceFailed(f"{self.url}: not the JSON that was expected: {error}") from error

    def unexpected(self) -> SourceFailed:
        """The error to raise for a status that the platform's protocol does not have here."""
        return SourceFailed(f"{self.url}: answered {self.status}")


async def request(
    method: Literal["GET", "PUT"], url: str, headers: Mapping[str, str], limit_s: float
) -> Answer:
    """Send a request and read the whole answer, whatever its status, in `limit_s` seconds.

    Raises `SourceFailed` when there is no answer in time, or one that is cut off, too long, or not
    text.
    """
    try:
        async with asyncio.timeout(limit_s):
            return await _request(method, url, headers)
    except TimeoutError:
        raise SourceFailed(f"{url}: no answer within {limit_s:g} s") from None
    except (aiohttp.ClientError, OSError, ValueError) as error:
        # ValueError: an address that is none, or a header that cannot be sent.
        reason = str(error) or type(error).__name__
        raise SourceFailed(f"{url}: {reason}") from error


async def _request(method: str, url: str, headers: Mapping[str, str]) -> Answer:
    async with (
        aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(force_close=True),
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(total=None),  # the caller's limit covers everything
            trust_env=False,
            auto_decompress=False,
            headers={"Accept-Encoding": "identity"},
        ) as session,
        session.request(method, url, headers=headers, allow_redirects=False) as response,
    ):
        body = bytearray()
        async for chunk in response.content.iter_any():
            body += chunk
            if len(body) > BODY_LIMIT:
                raise SourceFailed(f"{url}: answered more than {BODY_LIMIT} bytes")
        return Answer(url, response.status, response.headers, body.decode())
