"""How long weights take from two trainer ranks into the models of other machines' workers.

    python -m benchmarks.publication --json [--quick]

Two processes hold half of a bfloat16 model each. To publish, each copies its half, as off an
accelerator, and writes it as a safetensors file where its node's store has it. One, two or four
other processes, each a node of another machine with one worker, pull both halves over TCP on the
loopback interface, check them, map them, and copy them into parameters. The time is that from the
order to publish until the last node is done.

In the same run the same processes do the least that must be done: each half is copied and written
to a file in memory, sent once to every node by blocking sockets with sendfile, received into mapped
files, and copied into memory, unchecked (`ideal`). All memory is warm; figures are medians of the
rounds, ratios those of one round. The event loops of store and nodes look at the clock every
millisecond; `loop_lag_p99_ms` says how late, of the process where it was worst.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import statistics
import sys
import threading
import traceback
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from time import perf_counter
from typing import Any

import msgspec
import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor

from benchmarks.plain_transfers import note_lags, receive
from benchmarks.report import Report, quantile
from spotlight.actors.runtime.launcher import die_with_parent
from spotlight.actors.runtime.loop import run
from spotlight.store.memory_folder import MemoryFolder
from spotlight.transport.tensors import BundleStore, content_key
from spotlight.transport.tensors.bundles import map_copy, touch
from spotlight.transport.tensors.files import deposit
from spotlight.types import BundleOffer, StoreEndpoint

RANKS = 2
_TENSORS = 64
_ANSWER_S = 300.0


def _elements(nbytes: int) -> int:
    """Of each of the tensors of a rank, in bfloat16."""
    return nbytes // 2 // RANKS // _TENSORS


# --- in the processes ---


class Rank:
    """Holds a half of the model."""

    def __init__(self, memory: MemoryFolder, nbytes: int) -> None:
        self._weights = {
            f"{n}": torch.ones(_elements(nbytes), dtype=torch.bfloat16) for n in range(_TENSORS)
        }
        self._file = memory.path / "plain"
        self._listener = socket.create_server(("127.0.0.1", 0))
        threading.Thread(target=self._serve, daemon=True).start()

    async def do(self, command: str, *arguments: Any) -> Any:
        """Answer a command."""
        copied = {name: tensor.clone() for name, tensor in self._weights.items()}
        if command == "publish":
            store, key = msgspec.convert(arguments[0], StoreEndpoint), arguments[1]
            return msgspec.to_builtins(await deposit(store, key, partial(save_file, copied)))
        with self._file.open("wb") as file:
            for tensor in copied.values():
                file.write(tensor.view(torch.uint8).numpy().data)
        return self._listener.getsockname()[1]

    async def aclose(self) -> None:
        """Send no more."""
        self._listener.close()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):  # closed
            while True:
                connection, _ = self._listener.accept()
                threading.Thread(target=self._send, args=(connection,), daemon=True).start()

    def _send(self, connection: socket.socket) -> None:
        with connection, self._file.open("rb") as file:
            connection.sendfile(file)


class Node:
    """A node of another machine, and its worker."""

    def __init__(self, memory: MemoryFolder, nbytes: int) -> None:
        self._folder = memory.path
        self._store = BundleStore(memory.path / "store", token="node")
        self._parameters: dict[str, Tensor] = {}
        self._memory = np.ones(nbytes // RANKS, np.uint8)
        self._second = ThreadPoolExecutor(RANKS)
        self._lags: list[float] = []

    async def do(self, command: str, *arguments: Any) -> Any:
        """Answer a command."""
        if command == "ideal":
            ports, nbytes = arguments
            await asyncio.to_thread(self._receive_all, ports, nbytes)
            return None
        if not self._parameters:
            await self._store.start()
        watching = asyncio.create_task(note_lags(self._lags))
        copies = await asyncio.gather(*map(self._copy, arguments[0]))
        for number, copy in enumerate(copies):
            await asyncio.to_thread(self._load, number, copy)
        watching.cancel()
        for copy in copies:
            self._store.delete(copy.key)
        return quantile(self._lags, 0.99) * 1e3

    async def aclose(self) -> None:
        """Stop serving."""
        await self._store.aclose()

    async def _copy(self, offered: Any) -> BundleOffer:
        offer = msgspec.convert(offered, BundleOffer)
        store = msgspec.structs.replace(offer.store, machine="another", root="/nowhere")
        offer = msgspec.structs.replace(offer, store=store)
        return await self._store.copy(offer, content_key(offer.key, offer.checksum))

    def _load(self, number: int, copy: BundleOffer) -> None:
        mapped = map_copy(copy)
        assert mapped is not None
        touching = self._second.submit(touch, mapped)
        for name, tensor in mapped.items():
            key = f"{number}.{name}"
            if key not in self._parameters:
                self._parameters[key] = torch.zeros_like(tensor)
            self._parameters[key].copy_(tensor)
        touching.result()

    def _receive_all(self, ports: list[int], nbytes: int) -> None:
        paths = [self._folder / f"plain-{port}" for port in ports]
        list(self._second.map(partial(receive, nbytes=nbytes), ports, paths))
        for path in paths:
            np.copyto(self._memory[:nbytes], np.memmap(path, np.uint8, "r"))
            path.unlink()


async def _serve(role: str, nbytes: int) -> None:
    torch.set_num_threads(1)
    memory = MemoryFolder()
    try:
        served: Rank | Node = (Rank if role == "rank" else Node)(memory, nbytes)
        while line := await asyncio.to_thread(sys.stdin.readline):
            print(json.dumps(await served.do(*json.loads(line))), flush=True)
        await served.aclose()
    except BaseException:
        traceback.print_exc()
        os._exit(1)  # a thread that serves would keep the process
    finally:
        memory.remove()


# --- as their parent sees them ---


class Peer:
    """One of these processes."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def ask(self, *command: Any) -> Any:
        """Its answer to a command."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(command).encode() + b"\n")
        return json.loads(await asyncio.wait_for(self._process.stdout.readline(), _ANSWER_S))


@asynccontextmanager
async def peer(role: str, nbytes: int) -> AsyncIterator[Peer]:
    """Start one, and end it."""
    argv = [sys.executable, "-m", "benchmarks.publication", "--peer", str(os.getpid()), role]
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*argv, str(nbytes), stdin=pipe, stdout=pipe)
    try:
        yield Peer(process)
    finally:
        assert process.stdin is not None
        process.stdin.close()
        await process.wait()


@dataclass
class Seconds:
    """Of every round."""

    ours: list[float] = field(default_factory=list)
    ideal: list[float] = field(default_factory=list)

    @property
    def ratio(self) -> float:
        """The median of the rounds'."""
        return statistics.median(a / b for a, b in zip(self.ours, self.ideal, strict=True))


async def measure(nbytes: int, nodes: int, rounds: int, p99_ms: list[float]) -> Seconds:
    """So many rounds after one that warms everything up."""
    memory, seconds = MemoryFolder(), Seconds()
    store = BundleStore(memory.path, token="origin")
    async with AsyncExitStack() as undo:
        undo.callback(memory.remove)
        await store.start()
        undo.push_async_callback(store.aclose)
        ranks = [await undo.enter_async_context(peer("rank", nbytes)) for _ in range(RANKS)]
        takers = [await undo.enter_async_context(peer("node", nbytes)) for _ in range(nodes)]
        endpoint = msgspec.to_builtins(store.writable_by("ranks"))

        async def ours() -> None:
            offers = await _all(
                lambda n, rank: rank.ask("publish", endpoint, f"weights/{n}"), ranks
            )
            p99_ms.extend(await _all(lambda _, taker: taker.ask("pull", offers), takers))

        async def ideal() -> None:
            ports = await _all(lambda _, rank: rank.ask("plain"), ranks)
            part = 2 * _TENSORS * _elements(nbytes)
            await _all(lambda _, taker: taker.ask("ideal", ports, part), takers)

        lags = list[float]()
        watching = asyncio.create_task(note_lags(lags))
        for number in range(rounds + 1):
            took = [await _timed(work) for work in (ours, ideal)]
            if number:
                seconds.ours.append(took[0])
                seconds.ideal.append(took[1])
        watching.cancel()
        p99_ms.append(quantile(lags, 0.99) * 1e3)
    return seconds


async def _all(ask: Callable[[int, Peer], Any], peers: list[Peer]) -> list[Any]:
    return list(await asyncio.gather(*(ask(n, one) for n, one in enumerate(peers))))


async def _timed(work: Callable[[], Any]) -> float:
    began = perf_counter()
    await work()
    return perf_counter() - began


async def _measure(report: Report, *, quick: bool) -> None:
    nbytes, rounds = 2**26 if quick else 2**30, report.times(5, quick=2)
    p99_ms: list[float] = []
    for nodes in (2,) if quick else (1, 2, 4):
        seconds = await measure(nbytes, nodes, rounds, p99_ms)
        report.add(
            {
                f"publication_vs_ideal[{nodes}]": seconds.ratio,
                f"publication_s[{nodes}]": statistics.median(seconds.ours),
                f"ideal_s[{nodes}]": statistics.median(seconds.ideal),
            }
        )
    adapters = await measure(50_000_000, 1, report.times(21, quick=3), p99_ms)
    report.add(
        {
            "lora_publication_ms": statistics.median(adapters.ours) * 1e3,
            "lora_ideal_ms": statistics.median(adapters.ideal) * 1e3,
            "loop_lag_p99_ms": max(p99_ms),
            "bytes": nbytes,
            "rounds": rounds,
        }
    )


def main() -> None:
    """Measure, or be one of the processes."""
    if sys.argv[1:2] == ["--peer"]:
        parent, role, nbytes = sys.argv[2:]
        die_with_parent(int(parent))
        run(_serve(role, int(nbytes)))
        return
    report = Report("publication", __doc__, minutes=8)
    run(_measure(report, quick=report.begin().quick))
    report.finish()


if __name__ == "__main__":
    main()
