"""Processes of the benchmark `tensors` that hold bundles for others, and copy those of others.

Each has a store in its own memory folder, answers one command a line on its standard input with one
line on its standard output, and ends with that input, or with its parent.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import resource
import signal
import socket
import sys
import threading
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from spotlight.actors.runtime.launcher import die_with_parent
from spotlight.actors.runtime.loop import run
from spotlight.errors import TransferFailed
from spotlight.store.memory_folder import MemoryFolder
from spotlight.timings import TransferTimings
from spotlight.transport.tensors import BundleStore, DataPort, content_key, ucx
from spotlight.transport.tensors.certificates import new_certificate
from spotlight.transport.tensors.incoming import Incoming
from spotlight.types import BundleOffer, StoreEndpoint

KEY = "weights/1"
UCX_LOG = "ucx.log"
"""The file in the folder of a process that says by which lanes it sent."""
IDLE_LIMIT_S = 0.5
"""Who takes or sends nothing for so long is given up."""
_ANSWER_S = 120.0


def bundle(version: int, nbytes: int) -> bytes:
    """The bytes of a version; those of two versions differ everywhere."""
    return np.random.default_rng(version).bytes(nbytes)


def cpu_s() -> float:
    """Seconds of CPU that this process has used so far."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


# --- in the process ---


class _Counted:
    """Bytes that this process has received, whatever became of them."""

    received = 0

    @classmethod
    def begin(cls) -> None:
        """Count from now on."""
        write = Incoming.write

        def counted(incoming: Incoming, parts: Iterable[bytes | memoryview]) -> None:
            parts = list(parts)
            cls.received += sum(map(len, parts))
            write(incoming, parts)

        Incoming.write = counted  # type: ignore[method-assign,assignment]


async def _serve() -> None:
    memory = MemoryFolder()
    os.environ |= {"UCX_PROTO_INFO": "y", "UCX_LOG_FILE": str(memory.path / UCX_LOG)}
    ucx.is_installed()  # loads it, as a daemon does when it starts
    timings = TransferTimings(idle_limit_s=IDLE_LIMIT_S)
    token = str(os.getpid())
    async with (
        DataPort(ucx=True, timings=timings) as port,
        DataPort(certificate=new_certificate(), timings=timings) as tls_port,
    ):
        store = BundleStore(memory.path, token=token, port=port, timings=timings)
        with_tls = BundleStore(memory.path, token=token, port=tls_port, timings=timings)
        try:
            await store.start()
            await with_tls.start()
            with socket.create_server(("127.0.0.1", 0)) as listener:
                path = memory.path / KEY
                threading.Thread(target=_serve_raw, args=(listener, path), daemon=True).start()
                ready = str(memory.path), listener.getsockname()[1], with_tls.readable(KEY)
                _say(msgspec.to_builtins(ready))
                while line := await asyncio.to_thread(sys.stdin.readline):
                    _say(await _do(store, *json.loads(line)))
        finally:
            await store.aclose()
            await with_tls.aclose()
            memory.remove()


async def _do(store: BundleStore, command: str, *arguments: Any) -> Any:
    match command, arguments:
        case "cpu_s", ():
            return cpu_s()
        case "put", (version, nbytes):
            return msgspec.to_builtins(store.put(KEY, bundle(version, nbytes)))
        case "copy", (offered,):
            offer = msgspec.convert(offered, BundleOffer)
            before = _Counted.received
            try:
                await store.copy(offer, content_key(offer.key, offer.checksum))
            except TransferFailed:
                return {"received": _Counted.received - before, "is_whole": False}
            return {"received": _Counted.received - before, "is_whole": True}
    raise SystemExit(f"there is no command {command}")


def _say(answer: Any) -> None:
    print(json.dumps(answer), flush=True)


def _serve_raw(listener: socket.socket, path: Path) -> None:
    """Send the bundle to whoever connects, with nothing around it."""
    with contextlib.suppress(OSError):  # closed
        while True:
            connection, _ = listener.accept()
            with connection, path.open("rb") as file:
                connection.sendfile(file)


# --- as its parent sees it ---


@dataclass(frozen=True)
class Copied:
    """How a copy ended."""

    received: int
    """Bytes that were received."""
    is_whole: bool


@dataclass
class Peer:
    """One of these processes."""

    process: asyncio.subprocess.Process
    folder: Path
    raw_port: int
    tls: StoreEndpoint

    async def put(self, version: int, nbytes: int) -> BundleOffer:
        """Have it hold a version, in place of the one before, and offer it."""
        return msgspec.convert(await self.ask("put", version, nbytes), BundleOffer)

    async def copy(self, offer: BundleOffer, *, ucx: bool) -> Copied:
        """Have it copy a bundle, as from another machine: by UCX, or over HTTP."""
        return Copied(**await self.ask("copy", msgspec.to_builtins(elsewhere(offer, ucx=ucx))))

    async def ask(self, *command: Any) -> Any:
        """Its answer to a command."""
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(json.dumps(command).encode() + b"\n")
        return json.loads(await asyncio.wait_for(self.process.stdout.readline(), _ANSWER_S))

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal; nothing happens if it has ended."""
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(number)

    async def end(self) -> None:
        """Have it clean up and end, if it lives still."""
        assert self.process.stdin is not None
        self.signal(signal.SIGCONT)
        self.process.stdin.close()
        await self.process.wait()


async def start_peer() -> Peer:
    """Start one."""
    argv = [sys.executable, "-m", "benchmarks.tensors_peers", str(os.getpid())]
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*argv, stdin=pipe, stdout=pipe)
    assert process.stdout is not None
    ready = await asyncio.wait_for(process.stdout.readline(), _ANSWER_S)
    folder, raw_port, tls = msgspec.json.decode(ready, type=tuple[str, int, StoreEndpoint])
    return Peer(process, Path(folder), raw_port, tls)


@asynccontextmanager
async def peer() -> AsyncIterator[Peer]:
    """Start one, and end it."""
    started = await start_peer()
    try:
        yield started
    finally:
        await started.end()


def elsewhere(
    offer: BundleOffer, store: StoreEndpoint | None = None, *, ucx: bool = False
) -> BundleOffer:
    """The same offer as another machine sees it, perhaps at another store of that folder."""
    place = msgspec.structs.replace(
        store or offer.store, machine="another", root="/nowhere", ucx=ucx
    )
    return msgspec.structs.replace(offer, store=place)


if __name__ == "__main__":
    die_with_parent(int(sys.argv[1]))
    _Counted.begin()
    run(_serve())
