"""The machines of the site: one network namespace each, joined by a switch on which the attacker
sits; or, where there are no namespaces, all of them this machine's loopback.

Namespaces are unnamed: they vanish with the processes that keep them. This process must be in one
of its own already (`benchmarks.live.network.namespace_command`). That is the attacker's machine, in
which the switch is: it sees every frame that anybody sends to another machine.
"""

from __future__ import annotations

import ctypes
import os
import select
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar

COORDINATOR = "coordinator"
RESERVED = "reserved"
SPOT = "spot"
ATTACKER = "attacker"
"""The machine of this process."""
_NAT = "nat"
_SWITCH = "switch"
_HOSTS = {
    COORDINATOR: "10.99.0.1",
    RESERVED: "10.99.0.2",
    _NAT: "10.99.0.3",
    ATTACKER: "10.99.0.66",
}
_BEHIND, _BEHIND_NAT = "192.168.77.1", "192.168.77.2"
_NET_BEHIND = "192.168.77.0/24"
_NEW_NETWORK = 0x40000000
_LIMIT_S = 20.0
_PORTS = 65_535
_AT_A_TIME = 800

T = TypeVar("T")


class Network(Protocol):
    """Where the machines are."""

    kind: str
    """`namespaces`, or `loopback: ` and why there are none."""
    nat: str
    """Why the spot node is not behind one; empty if it is."""
    is_real: bool
    """Whether there are machines, and an attacker who can sniff."""

    def host(self, machine: str) -> str:
        """By which others reach it."""
        ...

    def command(self, machine: str, argv: Sequence[str]) -> list[str]:
        """How to start a process there; its process id is that of the command."""
        ...

    def open_ports(self, machine: str) -> set[int]:
        """TCP ports that another machine can connect to: of a spot node, one of its own network,
        which no NAT keeps away."""
        ...

    def close(self) -> None:
        """Take it down. Idempotent."""
        ...


class Loopback:
    """All on one machine; nothing can be sniffed or scanned."""

    nat = "there are no namespaces"
    is_real = False

    def __init__(self, why: str) -> None:
        self.kind = f"loopback: {why}"

    def host(self, machine: str) -> str:
        """The only one."""
        return "127.0.0.1"

    def command(self, machine: str, argv: Sequence[str]) -> list[str]:
        """As it is."""
        return list(argv)

    def open_ports(self, machine: str) -> set[int]:
        """Not possible."""
        raise NotImplementedError

    def close(self) -> None:
        """Nothing to do."""


class Namespaces:
    """See the module's docstring."""

    kind = "namespaces"
    is_real = True

    def __init__(self) -> None:
        self.nat = ""
        self._keepers: dict[str, subprocess.Popen[bytes]] = {}
        try:
            self._build()
        except BaseException:
            self.close()
            raise

    def host(self, machine: str) -> str:
        """Of a machine behind NAT: the NAT's."""
        if machine == SPOT:
            return _BEHIND_NAT if self.nat else _HOSTS[_NAT]
        return _HOSTS[machine]

    def command(self, machine: str, argv: Sequence[str]) -> list[str]:
        """In its namespace, and under its name."""
        if machine == ATTACKER:
            return list(argv)
        return ["nsenter", "-t", str(self._keepers[machine].pid), "-n", "-u", "--", *argv]

    def open_ports(self, machine: str) -> set[int]:
        """Try all of them."""
        if machine == SPOT:
            return self.inside(_NAT, lambda: _connectable(_BEHIND_NAT))
        return _connectable(self.host(machine))

    def inside(self, machine: str, function: Callable[[], T]) -> T:
        """The result of a function that runs on a thread of its own, on that machine."""
        outcome: list[Any] = []

        def run() -> None:
            try:
                _enter(self._keepers[machine].pid)
                outcome.extend((True, function()))
            except BaseException as error:  # it is raised below
                outcome.extend((False, error))

        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
        is_right, value = outcome
        if not is_right:
            raise value
        result: T = value
        return result

    def close(self) -> None:
        """End who keeps the namespaces."""
        for keeper in self._keepers.values():
            assert keeper.stdin is not None
            keeper.stdin.close()
            keeper.wait()
        self._keepers.clear()

    def _build(self) -> None:
        _ip("link set lo up")
        _ip(f"link add {_SWITCH} type bridge")
        _ip(f"addr add {_HOSTS[ATTACKER]}/24 dev {_SWITCH}")
        _ip(f"link set {_SWITCH} up")
        for machine in (COORDINATOR, RESERVED, _NAT):
            self._keep(machine)
            self._plug(machine, _HOSTS[machine])
        self._keep(SPOT)
        nat, spot = (self._keepers[machine].pid for machine in (_NAT, SPOT))
        _ip(f"link add inner type veth peer name eth0 netns {spot}", inside=nat)
        _ip(f"addr add {_BEHIND}/24 dev inner", inside=nat)
        _ip("link set inner up", inside=nat)
        _ip(f"addr add {_BEHIND_NAT}/24 dev eth0", inside=spot)
        _ip("link set eth0 up", inside=spot)
        _ip(f"route add default via {_BEHIND}", inside=spot)
        self._translate(nat)

    def _keep(self, machine: str) -> None:
        """A new namespace with a name of its own, by which stores tell machines apart, for as long
        as this process does not close its pipe."""
        named = f"echo {machine} > /proc/sys/kernel/hostname && exec cat"
        argv = ["unshare", "--net", "--uts", "sh", "-c", named]
        keeper = subprocess.Popen(argv, stdin=subprocess.PIPE)
        self._keepers[machine] = keeper
        own, end = os.readlink("/proc/self/ns/net"), time.monotonic() + _LIMIT_S
        while os.readlink(f"/proc/{keeper.pid}/ns/net") == own:
            if keeper.poll() is not None or time.monotonic() > end:
                raise OSError("`unshare --net` made no namespace")
            time.sleep(0.01)
        _ip("link set lo up", inside=keeper.pid)

    def _plug(self, machine: str, host: str) -> None:
        pid, port = self._keepers[machine].pid, f"to-{machine}"[:15]
        _ip(f"link add {port} type veth peer name eth0 netns {pid}")
        _ip(f"link set {port} master {_SWITCH} up")
        _ip(f"addr add {host}/24 dev eth0", inside=pid)
        _ip("link set eth0 up", inside=pid)

    def _translate(self, nat: int) -> None:
        """Out with the NAT's address; in only what answers. Without the means the spot node gets
        no way out but through a router, and `nat` says why."""
        _run(["sh", "-c", "echo 1 > /proc/sys/net/ipv4/ip_forward"], inside=nat)
        rules = [
            f"iptables -t nat -A POSTROUTING -s {_BEHIND}/24 -o eth0 -j MASQUERADE",
            "iptables -A FORWARD -i eth0 -m conntrack --ctstate ESTABLISHED,RELATED -j ACCEPT",
            "iptables -A FORWARD -i eth0 -j DROP",
        ]
        if shutil.which("nft"):
            table = (
                "add table ip door; add chain ip door out { type nat hook postrouting priority 100"
                "; }; add rule ip door out oifname eth0 masquerade; add chain ip door through {"
                " type filter hook forward priority 0; }; add rule ip door through iifname eth0 ct"
                " state established,related accept; add rule ip door through iifname eth0 drop"
            )
            rules = [f"nft {table}"]
        elif not shutil.which("iptables"):
            self.nat = "there is neither `nft` nor `iptables`"
        try:
            for rule in [] if self.nat else rules:
                tool, _, words = rule.partition(" ")
                _run([tool, words] if tool == "nft" else [tool, *words.split()], inside=nat)
        except OSError as error:
            self.nat = str(error)
        if self.nat:
            for machine in (COORDINATOR, RESERVED):
                pid = self._keepers[machine].pid
                _ip(f"route add {_NET_BEHIND} via {_HOSTS[_NAT]}", inside=pid)


def _connectable(host: str) -> set[int]:
    found: set[int] = set()
    for first in range(1, _PORTS + 1, _AT_A_TIME):
        found |= _try(host, range(first, min(first + _AT_A_TIME, _PORTS + 1)))
    return found


def _try(host: str, ports: range) -> set[int]:
    """Those that take a connection within a second."""
    waiting: dict[int, tuple[int, socket.socket]] = {}
    poll = select.epoll()
    for port in ports:
        connection = socket.socket()
        connection.setblocking(False)
        connection.connect_ex((host, port))
        waiting[connection.fileno()] = port, connection
        poll.register(connection, select.EPOLLOUT)
    found: set[int] = set()
    end = time.monotonic() + 1.0
    while waiting and (left := end - time.monotonic()) > 0:
        for number, _ in poll.poll(left):
            port, connection = waiting.pop(number)
            poll.unregister(number)
            if connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0:
                found.add(port)
            connection.close()
    for _, connection in waiting.values():
        connection.close()
    poll.close()
    return found


def _enter(pid: int) -> None:
    """Take this thread, and what it opens, to the namespace of a process."""
    libc = ctypes.CDLL(None, use_errno=True)
    with Path(f"/proc/{pid}/ns/net").open() as file:
        if libc.setns(file.fileno(), _NEW_NETWORK):
            raise OSError(ctypes.get_errno(), f"setns to the network of {pid}")


def _ip(words: str, *, inside: int = 0) -> None:
    _run(["ip", *words.split()], inside=inside)


def _run(command: Sequence[str], *, inside: int = 0) -> None:
    prefix = ["nsenter", "-t", str(inside), "-n"] if inside else []
    done = subprocess.run([*prefix, *command], capture_output=True, text=True, timeout=_LIMIT_S)
    if done.returncode:
        raise OSError(f"`{' '.join(command)}`: {done.stderr.strip()}")
