"""Addresses as users write them: `HOST:PORT`, `tcp://HOST:PORT`, `[IPV6]:PORT`, or a host alone.

What is none of these is refused at once, in one line that names the option.
"""

from __future__ import annotations

import ipaddress
import re
import socket

from spotlight.errors import UserError

_LONGEST = 200
"""Characters; the greeting between two processes has room for so many."""
_NAME = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_.-]*[A-Za-z0-9_])?")
_GREATEST_PORT = 65_535


def read_address(option: str, text: str, *, to_bind: bool) -> tuple[str, int | None]:
    """Host without brackets, and the port if there is one. Only what is bound may have the port 0,
    for any free one, and the host `*`, for all interfaces.

    Raises `UserError` that names the option.
    """
    place = text.removeprefix("tcp://")
    bracketed = re.fullmatch(r"\[([^\]]*)\](?::(.*))?", place, re.DOTALL)
    if bracketed is not None:
        host, port = bracketed[1], bracketed[2]
        known = _is_ipv6(host)
    elif place.count(":") > 1:  # an IPv6 address has several
        host, port, known = place, None, _is_ipv6(place)
    else:
        host, separator, rest = place.partition(":")
        port = rest if separator else None
        known = _NAME.fullmatch(host) is not None or (to_bind and host == "*")
    if not known or len(text) > _LONGEST:
        raise refusal(option, text, "names no host")
    if port is None:
        return host, None
    lowest = 0 if to_bind else 1
    if not (re.fullmatch("[0-9]{1,5}", port) and lowest <= int(port) <= _GREATEST_PORT):
        problem = f"the port must be a number from {lowest} to {_GREATEST_PORT}"
        raise refusal(option, text, problem)
    return host, int(port)


def control_address(option: str, text: str) -> str:
    """The control address of a process that is to be reached, `tcp://HOST:PORT`; raises `UserError`
    that names the option.
    """
    host, port = read_address(option, text, to_bind=False)
    if port is None:
        raise refusal(option, text, "names no port")
    return tcp_address(host, port)


def require_known(option: str, host: str) -> None:
    """Raise `UserError` that names the option if there is no such host: nobody would ever reach it,
    and try for ever. A name is looked up, which takes as long as the system's resolver allows."""
    try:
        socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        problem = getattr(error, "strerror", None) or str(error)
        raise UserError(
            f"{option}: the host `{host}` cannot be found ({problem}); give a name that this"
            " machine's resolver knows, or a number"
        ) from error


def tcp_address(host: str, port: int) -> str:
    """The control address of a host without brackets."""
    return f"tcp://[{host}]:{port}" if ":" in host else f"tcp://{host}:{port}"


def host_of(address: str) -> str:
    """The host of a control address, without brackets."""
    return address.removeprefix("tcp://").rpartition(":")[0].strip("[]")


def is_loopback(host: str) -> bool:
    """Whether a host without brackets is reached from this machine alone. Of the names only
    `localhost` is known to be."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def refusal(option: str, text: str, problem: str) -> UserError:
    """The error of what was given as an option."""
    return UserError(
        f"{option} {text[:_LONGEST]!r}: {problem}; give HOST:PORT, such as 10.0.0.1:7070"
    )


def _is_ipv6(host: str) -> bool:
    """Perhaps with the name of an interface behind a percent sign."""
    try:
        ipaddress.IPv6Address(host)
    except ValueError:
        return False
    return re.fullmatch(r"[0-9A-Fa-f:.]+(%[A-Za-z0-9_.-]+)?", host) is not None
