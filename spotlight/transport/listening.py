"""The address on which a daemon listens, and the one by which others reach it."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass

from spotlight.errors import UserError

_HOST = re.compile(r"[A-Za-z0-9._:%-]{1,253}")
_GREATEST_PORT = 65_535


@dataclass(frozen=True)
class Listening:
    """What `--listen` (or `--host`) and `--advertise` say. A port of 0 stands for a free one, or
    for the one that was bound."""

    host: str
    """To bind, without brackets."""
    port: int
    advertised_host: str
    """Empty if it is the same."""
    advertised_port: int

    @property
    def bind(self) -> str:
        """Control address to bind."""
        return _address(self.host, self.port)

    @property
    def advertise(self) -> str | None:
        """Control address that others use; None if it is the bound one."""
        if not self.advertised_host:
            return None
        return _address(self.advertised_host, self.advertised_port)


def listening(option: str, listen: str, advertise: str, *, takes_port: bool) -> Listening:
    """Read what was given as `option`, and as `--advertise`; that may be empty, unless `listen`
    means all interfaces. Without `takes_port` the system chooses the port.

    Raises `UserError` that names the option.
    """
    host, port = _split(option, listen)
    if takes_port and port is None:
        raise UserError(f"{option} {listen!r}: must be HOST:PORT, such as 10.0.0.1:7070")
    if not advertise:
        if _is_any(host):
            raise UserError(
                f"{option} {listen} listens on all interfaces: say with --advertise HOST which"
                " address others reach it by"
            )
        advertised_host, advertised_port = "", None
    else:
        advertised_host, advertised_port = _split("--advertise", advertise)
        if _is_any(advertised_host):
            raise UserError(f"--advertise {advertise}: name one address, which others reach")
    if not takes_port and (port, advertised_port) != (None, None):
        raise UserError(f"{option} and --advertise take no port here: the system chooses them")
    return Listening(host, port or 0, advertised_host, advertised_port or port or 0)


def _split(option: str, text: str) -> tuple[str, int | None]:
    """Host without brackets, and the port if there is one."""
    place = text.removeprefix("tcp://")
    bracketed = re.fullmatch(r"\[([^\]]*)\](?::(.*))?", place, re.DOTALL)
    if bracketed is not None:
        host, port = bracketed[1], bracketed[2]
    elif place.count(":") == 1:
        host, _, port = place.partition(":")
    else:
        host, port = place, None  # an IPv6 address has several
    if port is not None and not (re.fullmatch("[0-9]{1,5}", port) and int(port) <= _GREATEST_PORT):
        raise UserError(f"{option} {text!r}: the port must be a number from 0 to {_GREATEST_PORT}")
    if host != "*" and not _HOST.fullmatch(host):
        raise UserError(f"{option} {text!r}: names no host")
    return "0.0.0.0" if host == "*" else host, None if port is None else int(port)


def _is_any(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False


def _address(host: str, port: int) -> str:
    return f"tcp://[{host}]:{port}" if ":" in host else f"tcp://{host}:{port}"
