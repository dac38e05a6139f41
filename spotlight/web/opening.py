"""Where a page is served and who may look, from what the command line says.

Only this machine: everybody on it, without a token. Elsewhere: TLS, unless the network is private,
and a token: a coordinator's for people, or that of the link that the command prints.
"""

from __future__ import annotations

import socket
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlencode, urlsplit

from spotlight.errors import UserError
from spotlight.transport.addresses import is_loopback, read_address
from spotlight.transport.tensors.certificates import Certificate, certificate_in, new_certificate
from spotlight.web.admission import DoorAdmission, LinkAdmission, new_link_token
from spotlight.web.page_server import PageServer, PageSettings
from spotlight.web.shown_runs import ShownRuns

ANY_PORT = "127.0.0.1:0"


@dataclass(frozen=True)
class PagePlace:
    """What options say of a page; see `page_place`."""

    option: str
    host: str
    port: int
    certificate: Certificate | None
    is_own_certificate: bool
    """It was made for this process, so browsers ask whether to trust it."""
    is_local: bool


@dataclass(frozen=True)
class OpenedPage:
    """A page that is yet to be served."""

    server: PageServer
    place: PagePlace
    token: str
    """The token in the link is this; it is empty if none is part of it."""

    def link(self, run: str = "") -> str:
        """Where the page is, once its server has started: opened on a run, if one is named."""
        parts = urlsplit(self.server.url)
        host = parts.netloc
        if parts.hostname in ("0.0.0.0", "::"):
            host = f"{socket.gethostname()}:{parts.port}"
        query = f"?{urlencode({'run': run})}" if run else ""
        token = f"#token={self.token}" if self.token else ""
        return f"{parts.scheme}://{host}/{query}{token}"

    @property
    def fingerprint(self) -> str:
        """SHA-256 of its certificate; empty if it speaks no TLS."""
        return "" if self.place.certificate is None else self.place.certificate.fingerprint

    def notes(self) -> list[str]:
        """What whoever opens the page should know besides."""
        if self.place.certificate is None or not self.place.is_own_certificate:
            return []
        return [
            "the browser will ask about the certificate, which nobody has signed; its SHA-256 is"
            f" {self.fingerprint}"
        ]


def page_place(
    option: str,
    address: str,
    *,
    certificate: Path | None = None,
    key: Path | None = None,
    plain: bool = False,
) -> PagePlace:
    """Where a page is to be served. Raises `UserError` that names the option."""
    host, port = read_address(option, address, to_bind=True)
    if port is None:
        raise UserError(f"{option} {address}: names no port; give HOST:PORT, with 0 for any port")
    host = "0.0.0.0" if host == "*" else host
    if (certificate is None) != (key is None):
        raise UserError("give both --web-certificate and --web-key, or neither of them")
    if plain and certificate is not None:
        raise UserError("--web-plain: leave it out, or --web-certificate and --web-key")
    local = is_loopback(host)
    used: Certificate | None = None
    if certificate is not None and key is not None:
        used = certificate_in(("--web-certificate", certificate), ("--web-key", key))
    elif not (local or plain):
        used = new_certificate()
    return PagePlace(option, host, port, used, certificate is None, local)


def open_page(place: PagePlace, runs: ShownRuns, door: Path | None = None) -> OpenedPage:
    """A page of these runs. `door`: where the coordinator writes down whom it knows; without it,
    the page's link has a token of its own where one is needed."""
    admission: LinkAdmission | DoorAdmission | None = None
    token = ""
    if not place.is_local:
        token = "" if door is not None else new_link_token()
        admission = LinkAdmission(token) if door is None else DoorAdmission(door)
    settings = PageSettings(
        runs,
        place.host,
        place.port,
        option=place.option,
        admission=admission,
        certificate=place.certificate,
    )
    return OpenedPage(PageServer(settings), place, token)
