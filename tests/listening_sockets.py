"""Where processes listen, as the kernel says."""

from __future__ import annotations

import contextlib
import ipaddress
import os
from collections.abc import Collection
from pathlib import Path

_LISTENS = "0A"


def listening_sockets(pid: int) -> set[tuple[str, str]]:
    """The listening TCP sockets of a process: the inode of each, and the address, without its port,
    to which it is bound."""
    inodes, found = _inodes(pid), set[tuple[str, str]]()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            _, local, _, state, *_, inode = line.split()[:10]
            if state == _LISTENS and inode in inodes:
                found.add((inode, str(_address(local.partition(":")[0]))))
    return found


def listening_addresses(pid: int, *, but: Collection[tuple[str, str]] = ()) -> set[str]:
    """The addresses of these sockets, of those that are not among `but`: what other tests left
    open in the same process says nothing about this one."""
    return {address for inode, address in listening_sockets(pid) - set(but)}


def _inodes(pid: int) -> set[str]:
    found = set()
    for entry in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(OSError):  # it may be closed by now
            target = os.readlink(f"/proc/{pid}/fd/{entry}")
            if target.startswith("socket:["):
                found.add(target[len("socket:[") : -1])
    return found


def _address(words: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """From hexadecimal digits: words of four bytes, each as this machine has it in memory."""
    data = bytes.fromhex(words)
    parts = [data[first : first + 4][::-1] for first in range(0, len(data), 4)]
    address = ipaddress.ip_address(b"".join(parts))
    mapped = getattr(address, "ipv4_mapped", None)
    return mapped or address
