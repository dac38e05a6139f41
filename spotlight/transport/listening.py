"""The address on which a daemon listens, and the one by which others reach it."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass

from spotlight.errors import UserError
from spotlight.transport.addresses import is_loopback, read_address, refusal, tcp_address


@dataclass(frozen=True)
class Listening:
    """What `--listen` (or `--host`) and `--advertise` say. A port of 0 stands for a free one, or
    for the one that was bound."""

    host: str
    """The host to bind, without brackets."""
    port: int
    advertised_host: str
    """Empty if it is the same."""
    advertised_port: int

    @property
    def is_loopback(self) -> bool:
        """Whether nobody reaches it from another machine."""
        return is_loopback(self.host) and is_loopback(self.advertised_host or self.host)

    @property
    def bind(self) -> str:
        """Control address to bind."""
        return tcp_address(self.host, self.port)

    @property
    def advertise(self) -> str | None:
        """Control address that others use; None if it is the bound one."""
        if not self.advertised_host:
            return None
        return tcp_address(self.advertised_host, self.advertised_port)


def listening(option: str, listen: str, advertise: str, *, takes_port: bool) -> Listening:
    """Read what was given as `option`, and as `--advertise`; that may be empty, unless `listen`
    means all interfaces. Without `takes_port` the system chooses the port.

    Raises `UserError` that names the option.
    """
    host, port = read_address(option, listen, to_bind=True)
    host = "0.0.0.0" if host == "*" else host
    if takes_port and port is None:
        raise refusal(option, listen, "names no port")
    if not advertise:
        if _is_any(host):
            raise UserError(
                f"{option} {listen} listens on all interfaces: say with --advertise HOST which"
                " address others reach it by"
            )
        advertised_host, advertised_port = "", None
    else:
        advertised_host, advertised_port = read_address("--advertise", advertise, to_bind=False)
        if _is_any(advertised_host):
            raise UserError(f"--advertise {advertise}: name one address, which others reach")
    if not takes_port and (port, advertised_port) != (None, None):
        raise UserError(f"{option} and --advertise take no port here: the system chooses them")
    return Listening(host, port or 0, advertised_host, advertised_port or port or 0)


def data_listening(listen: str, control: Listening) -> Listening:
    """Read what was given as `--data-listen`; if nothing, a free port of the host of `control`.
    Others reach it by the advertised host of `control`.

    Raises `UserError` that names the option.
    """
    if not listen:
        return Listening(control.host, 0, control.advertised_host, 0)
    return listening("--data-listen", listen, control.advertised_host, takes_port=True)


def _is_any(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False
