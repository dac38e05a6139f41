"""Rules of all HTTP servers of ours: how much of a request they take, and whom it must name."""

from __future__ import annotations

import hmac
from collections.abc import Collection, Sequence

from spotlight.transport.addresses import is_loopback

LARGEST_HEADERS = 16 * 1024
"""Most bytes of all headers."""
LONGEST_HOST_TOLD = 100
"""Most characters of a host that a refusal repeats."""


def is_meant(named: Sequence[str], address: str, hosts: Collection[str] = ()) -> bool:
    """Whether a request whose `Host` headers are these is for the server that it came to, at this
    address or known by these names. A page of somebody else's, whose name leads here by DNS
    rebinding, names another."""
    if len(named) != 1:
        return False
    host = bare_host(named[0])
    return is_loopback(host) or host in (address.lower(), *(each.lower() for each in hosts))


def bare_host(named: str) -> str:
    """The host of a `Host` header in small letters, without a port and without brackets."""
    host = named.lower()
    return host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]


def borne(given: Sequence[str]) -> str:
    """The bearer token in the `Authorization` headers of a request; empty if there is none."""
    if len(given) != 1:
        return ""
    scheme, _, shown = given[0].partition(" ")
    return shown.strip() if scheme.lower() == "bearer" else ""


def same_secret(shown: str, secret: str) -> bool:
    """Whether they are the same, in a time that tells nothing of either."""
    as_sent = shown.encode(errors="surrogateescape")
    return hmac.compare_digest(as_sent, secret.encode())
