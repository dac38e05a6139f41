"""What it saves to send only what differs between two weights versions.

    python -m benchmarks.deltas --json [--quick]

A bfloat16 model of random weights (standard deviation 0.02) is published twice: after ten steps of
torch's AdamW in float32 with random gradients, and after one more, at two learning rates. A store
that holds the first version takes the second from another one, whole and as a delta, over a link of
1 Gb/s (a relay on the loopback interface that sends no faster) and over the loopback interface
itself, checked both times.

Figures are medians of the rounds. `speedup` is the time of the whole bundle by that of the delta;
`sent_share` the bytes on the link by those of the bundle.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import statistics
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter, sleep

import msgspec
import numpy as np
import torch
from torch import Tensor

from benchmarks.report import Figure, Report
from spotlight.actors.runtime.loop import run
from spotlight.store.memory_folder import MemoryFolder
from spotlight.timings import TransferTimings
from spotlight.transport.tensors import BundleStore, content_key, deltas
from spotlight.transport.tensors.client import download
from spotlight.transport.tensors.folder import Folder
from spotlight.transport.tensors.incoming import Incoming
from spotlight.types import BundleOffer

RATES = (1e-6, 1e-5)
GIGABIT = 125e6
"""Bytes per second."""
_STEPS = 10
_LIMIT_S = 600.0
_PIECE = 64 * 1024


class Relay:
    """Passes connections on to a port of this machine, and what comes back at so many bytes per
    second."""

    def __init__(self, port: int, bytes_per_s: float) -> None:
        self.sent = 0
        """Bytes that came back."""
        self._to = port
        self._bytes_per_s = bytes_per_s
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True).start()

    def close(self) -> None:
        """Take no more."""
        self._listener.close()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):  # closed
            while True:
                connection, _ = self._listener.accept()
                threading.Thread(target=self._relay, args=(connection,), daemon=True).start()

    def _relay(self, near: socket.socket) -> None:
        with near, socket.create_connection(("127.0.0.1", self._to)) as far:
            far.sendall(near.recv(_PIECE))  # one request, which fits
            due = perf_counter()
            while data := far.recv(_PIECE):
                self.sent += len(data)
                due = max(due, perf_counter() - 0.01) + len(data) / self._bytes_per_s
                sleep(max(0.0, due - perf_counter()))
                near.sendall(data)


@dataclass(frozen=True)
class Taken:
    """How a copy came."""

    s: float
    sent: int


def versions(nbytes: int, rate: float) -> tuple[Tensor, Tensor]:
    """A model's weights in bfloat16, before and after one more optimizer step."""
    generator = torch.Generator().manual_seed(0)
    weights = torch.randn(nbytes // 2, generator=generator) * 0.02
    weights.requires_grad_()
    optimizer = torch.optim.AdamW([weights], lr=rate)
    for _ in range(_STEPS):
        before = weights.detach().bfloat16()
        weights.grad = torch.randn(weights.shape, generator=generator)
        optimizer.step()
    return before, weights.detach().bfloat16()


@asynccontextmanager
async def store(name: str) -> AsyncIterator[BundleStore]:
    """One in memory."""
    memory = MemoryFolder()
    made = BundleStore(memory.path, token=name)
    try:
        await made.start()
        yield made
    finally:
        await made.aclose()
        memory.remove()


@contextmanager
def link(origin: BundleStore, bytes_per_s: float) -> Iterator[Relay]:
    """A relay in front of a store."""
    relay = Relay(origin.endpoint.port, bytes_per_s)
    try:
        yield relay
    finally:
        relay.close()


async def take(
    taker: BundleStore, offer: BundleOffer, relay: Relay, base: BundleOffer | None
) -> Taken:
    """Fetch it over the relay, as another machine does."""
    place = msgspec.structs.replace(offer.store, machine="another", root="/", port=relay.port)
    offer, before = msgspec.structs.replace(offer, store=place), relay.sent
    folder = Folder(Path(taker.endpoint.root))
    with Incoming(folder, "new", durable=False) as incoming:
        began = perf_counter()
        await download(offer, incoming, TransferTimings(), _LIMIT_S, base)
        return Taken(perf_counter() - began, relay.sent - before)


async def measure(nbytes: int, rate: float, rounds: int) -> dict[str, Figure]:
    """Of one learning rate."""
    before, after = (each.view(torch.uint8).numpy() for each in versions(nbytes, rate))
    name, figures = f"{rate:g}", dict[str, Figure]()
    async with store("origin") as origin, store("taker") as taker:
        first = origin.put("weights/1", before.tobytes())
        base = await taker.copy(first, content_key(first.key, first.checksum))
        await origin.copy(first, base.key)
        offer = origin.put("weights/2", after.tobytes())
        for speed, bytes_per_s in (("1Gb/s", GIGABIT), ("loopback", float("inf"))):
            with link(origin, bytes_per_s) as relay:
                whole = [await take(taker, offer, relay, None) for _ in range(rounds)]
                delta = [await take(taker, offer, relay, base) for _ in range(rounds)]
            ratios = [a.s / b.s for a, b in zip(whole, delta, strict=True)]
            figures[f"speedup[{name},{speed}]"] = statistics.median(ratios)
    words = before.view(np.uint16), after.view(np.uint16)
    return figures | {
        f"changed_share[{name}]": float(np.mean(words[0] != words[1])),
        f"sent_share[{name}]": delta[-1].sent / nbytes,
        f"encoded_gb_per_s[{name}]": await asyncio.to_thread(
            _encoding_rate, before.data, after.data
        ),
    }


def _encoding_rate(before: memoryview, after: memoryview) -> float:
    began = perf_counter()
    for start in range(0, len(before), deltas.CHUNK):
        deltas.encoded(before[start : start + deltas.CHUNK], after[start : start + deltas.CHUNK])
    return len(before) / 1e9 / (perf_counter() - began)


async def _measure(report: Report, *, quick: bool) -> None:
    nbytes, rounds = 2**24 if quick else 2**28, report.times(3, quick=1)
    for rate in RATES:
        report.add(await measure(nbytes, rate, rounds))
    report.add({"bytes": nbytes, "rounds": rounds})


def main() -> None:
    """Measure."""
    report = Report("deltas", __doc__, minutes=4)
    run(_measure(report, quick=report.begin().quick))
    report.finish()


if __name__ == "__main__":
    main()
