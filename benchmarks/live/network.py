"""How real processes on one machine are joined: by loopback, or each node in a network namespace of
its own, so that it can be cut off.

Namespaces are unnamed: they and all that is in them vanish with their processes. This process must
be in one of its own already (`namespace_command`).
"""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

_TOOLS = ("ip", "nsenter", "unshare", "ss", "tc")
_WAYS = (["unshare", "--net"], ["unshare", "--user", "--map-root-user", "--net"])
_PROBE = (
    "ip link add probe0 type bridge && ip link add probe1 type veth peer name probe2"
    " && nsenter -t $$ -n unshare --net true"
)
_LIMIT_S = 10.0
_HERE = "10.77.0.1"
_BRIDGE = "spotlight0"
_NOBODY = "02:00:00:00:00:01"
_WAIT_FOR_GO = 'read go && exec "$@"'


@dataclass(frozen=True)
class Attachment:
    """Where a process of a node is in the network."""

    host: str
    link: str = ""
    pid: int = 0


class LiveNetwork(Protocol):
    """Joins the coordinator, which is with this process, and nodes."""

    host: str
    """The host of the coordinator."""
    partitions: bool
    """Whether nodes can be cut off."""

    def new_host(self) -> str:
        """An address for a node that is about to start."""
        ...

    def command(self, argv: Sequence[str]) -> list[str]:
        """How to start a node; it waits for a line on its standard input."""
        ...

    async def attach(self, host: str, pid: int) -> Attachment:
        """Join the node that was started; raises `OSError` when it is gone."""
        ...

    def cut(self, node: Attachment, *, inwards: bool, outwards: bool) -> None:
        """Let nothing through between the node and the coordinator; both ways: nor to others."""
        ...

    def heal(self, node: Attachment) -> None:
        """Let everything through again. A node that ended meanwhile is no error."""
        ...

    def part(self, one: Attachment, other: Attachment, *, reset: bool) -> None:
        """Let nothing through between two machines, or inside one if both are the same: packets
        vanish, or (`reset`) connections end and new ones are refused.
        """
        ...

    def join(self, one: Attachment, other: Attachment) -> None:
        """Undo `part`. A machine that is gone meanwhile is no error."""
        ...


class Loopback:
    """All on 127.0.0.1; nobody can be cut off."""

    host = "127.0.0.1"
    partitions = False

    def new_host(self) -> str:
        """The only one."""
        return self.host

    def command(self, argv: Sequence[str]) -> list[str]:
        """It waits all the same."""
        return ["sh", "-c", _WAIT_FOR_GO, "sh", *argv]

    async def attach(self, host: str, pid: int) -> Attachment:
        """Nothing to do."""
        return Attachment(host, pid=pid)

    def cut(self, node: Attachment, *, inwards: bool, outwards: bool) -> None:
        """Not possible."""
        raise NotImplementedError

    def heal(self, node: Attachment) -> None:
        """Not possible."""
        raise NotImplementedError

    def part(self, one: Attachment, other: Attachment, *, reset: bool) -> None:
        """Not possible."""
        raise NotImplementedError

    def join(self, one: Attachment, other: Attachment) -> None:
        """Not possible."""
        raise NotImplementedError


class Namespaces:
    """A bridge in this process's namespace, and a link from it into each node's."""

    host = _HERE
    partitions = True

    def __init__(self) -> None:
        self._hosts = 1
        _ip("link", "set", "lo", "up")
        _ip("link", "add", _BRIDGE, "type", "bridge")
        _ip("addr", "add", f"{_HERE}/16", "dev", _BRIDGE)
        _ip("link", "set", _BRIDGE, "up")

    def new_host(self) -> str:
        """Never one that was used: what is known of the old one must not mislead."""
        self._hosts += 1
        return f"10.77.{self._hosts // 250}.{self._hosts % 250 + 1}"

    def command(self, argv: Sequence[str]) -> list[str]:
        """In a namespace of its own, where nothing is until it is attached."""
        return ["unshare", "--net", "sh", "-c", _WAIT_FOR_GO, "sh", *argv]

    async def attach(self, host: str, pid: int) -> Attachment:
        """A pair of interfaces: one on the bridge here, the other in there."""
        node = Attachment(host, "-".join(["node", *host.split(".")[2:]]), pid)
        async with asyncio.timeout(_LIMIT_S):
            while _namespace(pid) == _namespace(os.getpid()):  # noqa: ASYNC110 - no event says so
                await asyncio.sleep(0.01)
        _ip(
            *("link", "add", node.link, "type", "veth"),
            *("peer", "name", "eth0", "netns", str(pid)),
        )
        _ip("link", "set", node.link, "master", _BRIDGE, "up")
        for words in ("link set lo up", f"addr add {host}/16 dev eth0", "link set eth0 up"):
            _ip(*words.split(), inside=pid)
        return node

    def cut(self, node: Attachment, *, inwards: bool, outwards: bool) -> None:
        """Both ways: its link is down. One way: whoever sends has no route."""
        if inwards and outwards:
            _ip("link", "set", node.link, "down")
        elif inwards:
            _ip("route", "replace", "blackhole", node.host)
        else:
            _ip("route", "replace", "blackhole", _HERE, inside=node.pid)

    def heal(self, node: Attachment) -> None:
        """Undo every cut."""
        _ip("link", "set", node.link, "up", must=False)
        _ip("route", "del", "blackhole", node.host, must=False)
        _ip("route", "del", "blackhole", _HERE, inside=node.pid, must=False)

    def part(self, one: Attachment, other: Attachment, *, reset: bool) -> None:
        """Packets go to a machine that is not there, or find no way; inside a machine none fits
        through a bucket.
        """
        if one == other:
            words = "qdisc replace dev lo root tbf rate 8bit burst 1 limit 1"
            _run("tc", *words.split(), inside=one.pid)
            return
        for here, there in ((one, other), (other, one)):
            if reset:
                _ip("route", "replace", "prohibit", there.host, inside=here.pid)
                _run("ss", "-K", "dst", there.host, inside=here.pid)
            else:
                _neighbour("replace", here, there, "lladdr", _NOBODY, "nud", "permanent")

    def join(self, one: Attachment, other: Attachment) -> None:
        """Undo whatever was done."""
        if one == other:
            _run("tc", *["qdisc", "del", "dev", "lo", "root"], inside=one.pid, must=False)
            return
        for here, there in ((one, other), (other, one)):
            _ip("route", "del", "prohibit", there.host, inside=here.pid, must=False)
            _neighbour("del", here, there, must=False)


def namespace_command() -> tuple[list[str], str]:
    """What to put before a command so that it runs in a network namespace of its own, and why that
    is not possible (then there is nothing to put).
    """
    missing = [tool for tool in _TOOLS if shutil.which(tool) is None]
    if missing:
        return [], f"there is no `{missing[0]}`"
    problem = ""
    for way in _WAYS:
        probed = subprocess.run(
            [*way, "sh", "-c", _PROBE], capture_output=True, text=True, timeout=_LIMIT_S
        )
        if probed.returncode == 0:
            return list(way), ""
        problem = problem or (probed.stderr.strip().splitlines() or ["no reason given"])[-1]
    return [], problem


def _namespace(pid: int) -> str:
    return os.readlink(f"/proc/{pid}/ns/net")


def _neighbour(
    action: str, here: Attachment, there: Attachment, *words: str, must: bool = True
) -> None:
    device = "eth0" if here.pid else _BRIDGE
    _ip("neigh", action, there.host, "dev", device, *words, inside=here.pid, must=must)


def _ip(*words: str, inside: int = 0, must: bool = True) -> None:
    _run("ip", *words, inside=inside, must=must)


def _run(*words: str, inside: int = 0, must: bool = True) -> None:
    prefix = ["nsenter", "-t", str(inside), "-n"] if inside else []
    done = subprocess.run([*prefix, *words], capture_output=True, text=True, timeout=_LIMIT_S)
    if must and done.returncode:
        raise OSError(f"`{' '.join(words)}`: {done.stderr.strip()}")
