"""Before the page's server: which requests are looked at, and as whose.

Where only this machine reaches the server everybody there may look, so a request must name the
server by an address of this machine: a page of somebody else's, whose name leads here by DNS
rebinding, names another. Elsewhere each request shows a token, or the cookie for one. What a page
of another site began is refused, but for following a link to the page.

| status | when |
|---|---|
| 401 | no token is shown, or one that is not good any more |
| 403 | a page of another site asks |
| 421 | the request names another host |
| 431 | the headers are too large |
"""

from __future__ import annotations

from dataclasses import dataclass
from http import HTTPStatus

from aiohttp import web

from spotlight.http_rules import LARGEST_HEADERS, LONGEST_HOST_TOLD, borne, is_meant
from spotlight.web.admission import Admission, Cookies
from spotlight.web.refusing import Refused

_OWN = ("none", "same-origin")
"""What `Sec-Fetch-Site` says of a request that no page of another site began."""


@dataclass(frozen=True)
class PageGuard:
    """See the module's docstring."""

    scheme: str
    admission: Admission | None
    """Who may look; None: everybody who reaches the server."""
    cookies: Cookies | None
    cookie_name: str

    def check(self, request: web.BaseRequest) -> None:
        """Raise `Refused` for a request that is not to be looked at, whoever sent it."""
        headers = request.headers
        if sum(len(name) + len(value) for name, value in request.raw_headers) > LARGEST_HEADERS:
            raise Refused(
                HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE,
                f"the headers have more than {LARGEST_HEADERS:,} bytes",
            )
        named = headers.getall("Host", [])
        if self.admission is None and not is_meant(named, _address(request)):
            told = ", ".join(named)[:LONGEST_HOST_TOLD]
            raise Refused(
                HTTPStatus.MISDIRECTED_REQUEST,
                f"this is not the server {told!r}; call it by its address",
            )
        # What encrypts for this server may stand before it: then pages are of https.
        schemes = {self.scheme, "https"}
        own = {f"{scheme}://{host}".lower() for scheme in schemes for host in named}
        origins = [origin.lower() for origin in headers.getall("Origin", [])]
        site = headers.get("Sec-Fetch-Site", "none")
        is_link = request.method == "GET" and headers.get("Sec-Fetch-Dest") == "document"
        if not own.issuperset(origins) or not (site in _OWN or is_link):
            raise Refused(HTTPStatus.FORBIDDEN, "pages of other sites may not ask anything here")

    def viewer(self, request: web.BaseRequest) -> str:
        """The name of the token that a request shows; empty where none is needed. Raises
        `Refused`."""
        if self.admission is None or self.cookies is None:
            return ""
        if token := borne(request.headers.getall("Authorization", [])):
            return self.admission.name_of(token)
        if cookie := request.cookies.get(self.cookie_name):
            return self.cookies.name_in(cookie)
        raise Refused(
            HTTPStatus.UNAUTHORIZED,
            "sign in with a token first, or send `Authorization: Bearer TOKEN`",
            {"WWW-Authenticate": "Bearer"},
        )

    def still_looks(self, viewer: str) -> None:
        """Raise `Refused` if the token of that name is not good any more."""
        if self.admission is not None:
            self.admission.key_of(viewer)


def _address(request: web.BaseRequest) -> str:
    """By which the client has reached this server."""
    transport = request.transport
    name = transport.get_extra_info("sockname") if transport is not None else None
    return str(name[0]) if name else ""
