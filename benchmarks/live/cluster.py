"""A coordinator and nodes as real processes of this machine, that can be killed, stopped and cut
off. Whatever ends is started again, as its provider would.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

import psutil

from benchmarks.live.network import Attachment, LiveNetwork
from spotlight.actors.protocol.door import Pool
from spotlight.errors import UserError
from spotlight.join_token import SECRET_BYTES, JoinToken
from spotlight.running.handed_keys import CoordinatorKeys, KnownNode, NodeKeys
from spotlight.store.memory_folder import remove_leftovers
from spotlight.transport.control.keys import KeyPair, place_of
from spotlight_simulation.processes import NodeSpec

COORDINATOR = "coordinator"
_START_LIMIT_S = 60.0
_STOP_LIMIT_S = 15.0
_OPERATOR_S = 0.1
_SHARED_MEMORY = Path("/dev/shm")


@dataclass
class LiveProcess:
    """A daemon, and the process that it is now."""

    name: str
    pool: Pool | None = None
    """None for the coordinator."""
    workers: int = 1
    handle: asyncio.subprocess.Process | None = None
    place: Attachment | None = None
    back_at: float = 0.0
    """The time before which it is not started again."""
    killed: bool = False

    @property
    def is_up(self) -> bool:
        """Whether there is a process now."""
        return self.handle is not None and self.handle.returncode is None

    def processes(self) -> list[psutil.Process]:
        """It and its workers."""
        if self.handle is None or self.handle.returncode is not None:
            return []
        with suppress(psutil.NoSuchProcess):
            process = psutil.Process(self.handle.pid)
            return [process, *process.children(recursive=True)]
        return []

    def worker(self, index: int) -> psutil.Process | None:
        """The process of one of its workers, if there is one now."""
        for process in self.processes()[1:]:
            with suppress(psutil.NoSuchProcess, psutil.ZombieProcess):
                if f"{self.name}/{index}" in process.cmdline():
                    return process
        return None


def one_reserved(workers: int, spot: Sequence[int]) -> tuple[NodeSpec, ...]:
    """A reserved node with so many workers, and spot nodes with these numbers of workers."""
    nodes = [NodeSpec(f"spot-{number}", "spot", each) for number, each in enumerate(spot, start=1)]
    return (NodeSpec("reserved", "reserved", workers), *nodes)


class LiveCluster:
    """See the module's docstring. Run folders and logs go to a new folder."""

    def __init__(self, folder: Path, network: LiveNetwork, nodes: Sequence[NodeSpec]) -> None:
        self.network = network
        own, secret = KeyPair.new(), secrets.token_bytes(SECRET_BYTES)
        self.join = JoinToken("", own.public, "inside", secret)
        """The token by which this process is the coordinator's operator; it is without its place at
        first."""
        self.coordinator = LiveProcess(COORDINATOR)
        self.nodes = {each.name: LiveProcess(each.name, each.pool, each.workers) for each in nodes}
        self._pairs = {name: KeyPair.new() for name in self.nodes}
        known = tuple(
            KnownNode(node.name, node.pool, self._pairs[node.name].public)
            for node in self.nodes.values()
            if node.pool is not None
        )
        self._coordinator_keys = CoordinatorKeys(own, KeyPair.derived(secret).public, known)
        self.problems: list[str] = []
        """What should not have happened to a process."""
        self._stopped: Counter[int] = Counter()
        """How often each process was told to stop and not to go on."""
        self._seen: set[psutil.Process] = set()
        self._ports: set[tuple[str, int]] = set()
        folder.mkdir()
        self.folder = folder
        self._operator: asyncio.Task[None] | None = None

    @property
    def spot(self) -> list[LiveProcess]:
        """Those that faults strike."""
        return [node for node in self.nodes.values() if node.pool == "spot"]

    async def __aenter__(self) -> Self:
        try:
            await self._start_coordinator()
            for node in self.nodes.values():
                await self._start_node(node)
            self._operator = asyncio.create_task(self._operate())
        except BaseException:
            await self.aclose()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """End everything. What does not end by itself, or leaves something, is a problem."""
        if self._operator is not None:
            self._operator.cancel()
            await asyncio.wait((self._operator,))
            if not self._operator.cancelled() and self._operator.exception() is not None:
                self.problems.append(f"the operator failed: {self._operator.exception()!r}")
        self._look_around()
        for each in sorted(self._seen, key=lambda process: process.pid):
            if _is_alive(each):
                _send(each.pid, signal.SIGCONT)
                self._ports |= _listening(each.pid)
        for process in reversed(list(self._all())):
            await self._stop(process)
        remove_leftovers()  # of nodes that were killed
        self.problems += self._left_behind()

    # --- faults ---

    def kill(self, process: LiveProcess, away_s: float) -> bool:
        """SIGKILL, without warning; whether there was something to kill."""
        process.back_at = max(process.back_at, _now() + away_s)
        return process.is_up and self._kill(process)

    def kill_worker(self, node: LiveProcess, index: int = 0) -> bool:
        """SIGKILL to a worker of the node; whether there was one."""
        worker = node.worker(index)
        self._look_around()
        return worker is not None and _send(worker.pid, signal.SIGKILL)

    async def pause(self, pids: Sequence[int], lasts_s: float) -> bool:
        """SIGSTOP, and SIGCONT later; whether something stood still."""
        for pid in pids:
            self._stopped[pid] += 1
        stood = [_send(pid, signal.SIGSTOP) for pid in pids]
        await asyncio.sleep(lasts_s)
        for pid in pids:
            self._stopped[pid] -= 1
            if not self._stopped[pid]:
                _send(pid, signal.SIGCONT)
        return any(stood)

    async def cut_off(
        self, node: LiveProcess, lasts_s: float, *, inwards: bool, outwards: bool
    ) -> bool:
        """Let nothing through for a while."""
        place = node.place
        if not node.is_up or place is None:
            return False
        self.network.cut(place, inwards=inwards, outwards=outwards)
        await asyncio.sleep(lasts_s)
        self.network.heal(place)
        return True

    async def part(self, names: tuple[str, str], lasts_s: float, *, reset: bool) -> bool:
        """Let nothing through between two of the machines for a while, the coordinator's among
        them, or inside one; with `reset` their connections end at once. Whether that was possible.
        """
        places = [self._place(name) for name in names]
        if any(place is None for place in places):
            return False
        one, other = (place for place in places if place is not None)
        self.network.part(one, other, reset=reset)
        await asyncio.sleep(lasts_s)
        self.network.join(one, other)
        return True

    def _place(self, name: str) -> Attachment | None:
        if name == COORDINATOR:
            return Attachment(self.network.host)
        node = self.nodes[name]
        return node.place if node.is_up else None

    # --- processes ---

    async def _operate(self) -> None:
        while True:
            for process in self._all():
                if not process.is_up and not process.killed:
                    code = process.handle.returncode if process.handle else None
                    self.problems.append(f"{process.name} ended by itself with {code}")
                    process.killed = True
                if not process.is_up and _now() >= process.back_at:
                    if process is self.coordinator:
                        await self._start_coordinator()
                    else:
                        await self._start_node(process)
            self._look_around()
            await asyncio.sleep(_OPERATOR_S)

    async def _start_coordinator(self) -> None:
        file = self.folder / "address"
        listen = self.join.place or f"{self.network.host}:0"
        handle = await self._start(
            self.coordinator,
            ["--listen", listen, "--runs", str(self.folder), "--address-file", str(file)],
        )
        _hand(handle, self._coordinator_keys.encode())
        if not self.join.place:
            async with asyncio.timeout(_START_LIMIT_S):
                while not file.exists():
                    if not self.coordinator.is_up:
                        raise UserError(f"no coordinator; see {self.folder / 'coordinator.log'}")
                    await asyncio.sleep(_OPERATOR_S)
            place = place_of(file.read_text()).removeprefix("tcp://")
            self.join = replace(self.join, place=place)

    async def _start_node(self, node: LiveProcess) -> None:
        host = self.network.new_host()
        assert node.pool is not None
        arguments = ["--name", node.name, "--pool", node.pool]
        arguments += ["--host", host, "--logs", str(self.folder)]
        arguments += ["--workers", str(node.workers)]
        handle = await self._start(node, arguments)
        try:
            node.place = await self.network.attach(host, handle.pid)
        except OSError:
            if not node.killed:
                raise
            return  # as it started
        keys = NodeKeys(self._pairs[node.name], self.join.coordinator)
        _hand(handle, b"go\n" + keys.encode())

    async def _start(
        self, process: LiveProcess, arguments: list[str]
    ) -> asyncio.subprocess.Process:
        daemon = "node" if process.pool else "coordinator"
        call = f"from spotlight.cli.daemons import {daemon}; {daemon}()"
        argv = [sys.executable, "-c", call, *arguments, "--parent", str(os.getpid())]
        process.killed = False
        with (self.folder / f"{process.name}.log").open("ab") as log:
            process.handle = await asyncio.create_subprocess_exec(
                *(self.network.command(argv) if process.pool else argv),
                stdin=asyncio.subprocess.PIPE,
                stdout=log,
                stderr=log,
            )
        return process.handle

    def _kill(self, process: LiveProcess) -> bool:
        self._look_around()
        process.killed = True
        assert process.handle is not None
        return _send(process.handle.pid, signal.SIGKILL)

    async def _stop(self, process: LiveProcess) -> None:
        if process.handle is None or process.handle.returncode is not None:
            return
        _send(process.handle.pid, signal.SIGTERM)
        try:
            async with asyncio.timeout(_STOP_LIMIT_S):
                await process.handle.wait()
        except TimeoutError:
            self.problems.append(f"{process.name} did not end within {_STOP_LIMIT_S:g} s")
            _send(process.handle.pid, signal.SIGKILL)
            await process.handle.wait()

    def _all(self) -> Iterator[LiveProcess]:
        yield self.coordinator
        yield from self.nodes.values()

    # --- what there is ---

    def _look_around(self) -> None:
        """Remember who is there."""
        for process in self._all():
            self._seen.update(process.processes())

    def _left_behind(self) -> list[str]:
        """Processes, ports and shared memory of anybody who was there."""
        alive = [process for process in self._seen if _is_alive(process)]
        owners = {str(process.pid) for process in self._seen}
        memory = [
            path for path in _SHARED_MEMORY.glob("spotlight-*") if path.name.split("-")[1] in owners
        ]
        return [
            *(f"process {process.pid} is left" for process in alive),
            *(f"port {host}:{port} is left" for host, port in self._ports & _listening()),
            *(f"shared memory {path} is left" for path in memory),
        ]


def _hand(process: asyncio.subprocess.Process, data: bytes) -> None:
    """Over its standard input."""
    assert process.stdin is not None
    process.stdin.write(data)
    process.stdin.close()


def _is_alive(process: psutil.Process) -> bool:
    with suppress(psutil.NoSuchProcess):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


def _listening(pid: int | None = None) -> set[tuple[str, int]]:
    """Where a process, or anybody, listens."""
    whose = psutil if pid is None else psutil.Process(pid)
    return {
        (connection.laddr.ip, connection.laddr.port)
        for connection in whose.net_connections("inet")
        if connection.status == psutil.CONN_LISTEN
    }


def _send(pid: int, number: signal.Signals) -> bool:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True


def _now() -> float:
    return asyncio.get_running_loop().time()
