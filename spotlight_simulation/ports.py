"""Ports for processes that are told one before they listen on it."""

from __future__ import annotations

import os
import random
import socket
from pathlib import Path

_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
_FIRST = 10_000


def unused_port() -> int:
    """One of loopback that nobody listens on, and that the system gives to nobody who asks for any:
    neither a listener nor a connection of another process takes it in the meantime.
    """
    first_given = int(_RANGE.read_text().split()[0])
    rng = random.Random(os.urandom(8))  # processes that look at the same time find others
    while True:
        port = rng.randrange(_FIRST, max(first_given, 2 * _FIRST))
        try:
            with socket.create_server(("127.0.0.1", port)):
                return port
        except OSError:
            continue
