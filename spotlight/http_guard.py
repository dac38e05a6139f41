"""Before a web application of ours: who may ask it anything, and how.

What a browser may be made to send by a page of somebody else is refused, and so is what could be
read on its way. Nothing of a body is read before that.

| status | when |
|---|---|
| 401 | the token is missing or wrong |
| 403 | a page in a browser asks; or the request came from another machine and is not encrypted |
| 421 | the request names another host (as after DNS rebinding, where a foreign name leads here) |
| 431 | the headers are too large |
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import NamedTuple

import msgspec
from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from spotlight.http_rules import LARGEST_HEADERS, LONGEST_HOST_TOLD, borne, is_meant, same_secret
from spotlight.transport.addresses import is_loopback

_OWN = ("none", "same-origin")
"""What `Sec-Fetch-Site` says of a request that no page of another site began."""


class _Refusal(NamedTuple):
    status: int
    error: str


@dataclass(frozen=True)
class HttpGuard:
    """An ASGI application around another one; see the module's docstring."""

    app: ASGIApp
    token: str | None = None
    """The token that requests bear (`Authorization: Bearer TOKEN`); None: somebody else looks at
    that."""
    hosts: Collection[str] | None = ()
    """Names by which requests call this server, besides its address and those of loopback; None:
    any. Who needs to know a secret is not found by a page that knows a name alone."""
    plain: bool = False
    """Other machines may ask without TLS: their network is private, or a proxy encrypts."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Called by the server."""
        refusal = self._refusal(scope) if scope["type"] == "http" else None
        if refusal is None:
            return await self.app(scope, receive, send)
        headers = {"Connection": "close"}
        if refusal.status == 401:
            headers["WWW-Authenticate"] = "Bearer"
        body = msgspec.json.encode({"error": refusal.error})
        answer = Response(body, refusal.status, headers, "application/json")
        await answer(scope, receive, send)

    def _refusal(self, scope: Scope) -> _Refusal | None:
        headers, server = Headers(scope=scope), scope.get("server")
        address, port = server or ("localhost", None)
        here = port is None or is_loopback(address)  # without a port it is a socket of this machine
        if sum(len(name) + len(value) for name, value in headers.raw) > LARGEST_HEADERS:
            return _Refusal(431, f"the headers have more than {LARGEST_HEADERS:,} bytes")
        if not self._is_meant(headers.getlist("host"), address):
            named = ", ".join(headers.getlist("host"))[:LONGEST_HOST_TOLD]
            return _Refusal(421, f"this is not the server {named!r}; call it by its address")
        if "origin" in headers or headers.get("sec-fetch-site", "none") not in _OWN:
            return _Refusal(403, "pages in a browser may not ask anything here")
        if scope.get("scheme") != "https" and not (here or self.plain):
            return _Refusal(
                403,
                "other machines may ask over TLS alone; serve it with a certificate, or say that"
                " the network is private (`plain`)",
            )
        if self.token is not None and not self._bears(headers.getlist("authorization")):
            return _Refusal(401, "the header `Authorization: Bearer TOKEN` is missing or wrong")
        return None

    def _is_meant(self, named: list[str], address: str) -> bool:
        return self.hosts is None or is_meant(named, address, self.hosts)

    def _bears(self, given: list[str]) -> bool:
        assert self.token is not None
        return same_secret(borne(given), self.token)
