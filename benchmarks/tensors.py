"""How fast bundles move between processes, beside a memory copy and a raw socket in the same run.

    python -m benchmarks.tensors --json [--quick]

A process holds a bundle in a store in memory and serves it; this one takes it in turn

- as a copy of its own from a store of another machine, over TCP on the loopback interface:
  received, checked and kept (`tcp`);
- the same with TLS (`tls`), and by UCX (`ucx`); the run fails if UCX takes another lane than shared
  memory;
- by a blocking loop that receives into a new file, mapped, what the other side sends with sendfile,
  unchecked (`raw`);
- as a verified copy of the same machine: linked and checked (`linked`), mapped (`in_place`), and
  copied from there into memory of its own while a second thread touches the pages, as a worker does
  (`shm`);
- copied once from memory to memory (`memcpy`).

Then it fetches a small bundle many times, without and with TLS: what a connection of its own costs
each (`small_tcp_ms`, `small_tls_ms`).

All memory that is written to is warm. Figures are medians of the rounds, ratios those of one round;
GB are 1e9 bytes. CPU seconds are those of both processes. The event loop of this process looks at
the clock every millisecond meanwhile; `loop_lag_p99_ms` says how late.

Then senders and receivers are killed and stopped; see `benchmarks.tensors_losses`.
"""

from __future__ import annotations

import asyncio
import re
import statistics
from collections.abc import Awaitable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

import numpy as np
from numpy.typing import NDArray

from benchmarks.plain_transfers import note_lags, receive
from benchmarks.report import Figure, Report, quantile
from benchmarks.tensors_losses import measure_losses
from benchmarks.tensors_peers import KEY, UCX_LOG, Peer, cpu_s, elsewhere, peer
from spotlight.actors.runtime.loop import run
from spotlight.store.memory_folder import MemoryFolder
from spotlight.timings import TransferTimings
from spotlight.transport.tensors import BundleStore, content_key, fetch, own_file, ucx
from spotlight.types import BundleOffer

_SMALL, _SMALL_TIMES = 64 * 1024, 100
_FAULT_BYTES = 64 * 1024
"""Bytes of a mapped file that the kernel maps at the first touch of a part of them."""


@dataclass(frozen=True)
class Round:
    """Seconds of wall clock, and of CPU on both sides."""

    tcp_s: float
    tcp_cpu_s: float
    tls_s: float
    ucx_s: float
    raw_s: float
    raw_cpu_s: float
    linked_s: float
    in_place_s: float
    shm_s: float
    memcpy_s: float


class _Taker:
    """This process, which takes what a peer has, into memory that is warm."""

    def __init__(self, peer: Peer, store: BundleStore, nbytes: int) -> None:
        self._peer = peer
        self._store = store
        self._source = np.ones(nbytes, np.uint8)
        self._memory = np.zeros(nbytes, np.uint8)
        self._memory.fill(1)
        self._second = ThreadPoolExecutor(1)

    async def round(self, offer: BundleOffer) -> Round:
        """Take it in all ways."""
        tcp = await self._timed(self._copy(elsewhere(offer)))
        tls_s, _ = await self._timed(self._copy(elsewhere(offer, self._peer.tls)))
        ucx_s, _ = await self._timed(self._copy(elsewhere(offer, ucx=True)))
        raw = await self._timed(self._receive_raw(offer.nbytes))
        began = perf_counter()
        copy = await self._store.copy(offer, content_key(KEY, offer.checksum))
        linked_s = perf_counter() - began
        in_place_s, shm_s = self._copy_mapped(copy)
        self._store.delete(copy.key)
        began = perf_counter()
        np.copyto(self._memory, self._source)
        return Round(*tcp, tls_s, ucx_s, *raw, linked_s, in_place_s, shm_s, perf_counter() - began)

    async def _timed(self, work: Awaitable[None]) -> tuple[float, float]:
        used = cpu_s() + await self._peer.ask("cpu_s")
        began = perf_counter()
        await work
        took_s = perf_counter() - began
        return took_s, cpu_s() + await self._peer.ask("cpu_s") - used

    async def _copy(self, offer: BundleOffer) -> None:
        copy = await self._store.copy(offer, content_key(KEY, offer.checksum))
        self._store.delete(copy.key)

    async def _receive_raw(self, nbytes: int) -> None:
        path = Path(self._store.endpoint.root) / "raw"
        await asyncio.to_thread(receive, self._peer.raw_port, path, nbytes)
        path.unlink()

    def _copy_mapped(self, copy: BundleOffer) -> tuple[float, float]:
        """Seconds until it is mapped, and until it is copied."""
        began = perf_counter()
        path = own_file(copy)
        assert path is not None
        mapped: NDArray[np.uint8] = np.memmap(path, np.uint8, "r")
        in_place_s = perf_counter() - began
        touching = self._second.submit(lambda: mapped[::-_FAULT_BYTES].sum())
        np.copyto(self._memory, mapped)
        shm_s = perf_counter() - began
        touching.result()
        return in_place_s, shm_s


async def measure_speed(nbytes: int, rounds: int) -> dict[str, Figure]:
    """Seconds of so many rounds after one that warms everything up; the figures."""
    memory, lags = MemoryFolder(), list[float]()
    store = BundleStore(memory.path, token="taker", timings=TransferTimings(transfer_limit_s=600))
    try:
        await store.start()
        async with peer() as holder:
            offer = await holder.put(0, nbytes)
            taker = _Taker(holder, store, nbytes)
            await taker.round(offer)
            watch = asyncio.create_task(note_lags(lags))
            taken = [await taker.round(offer) for _ in range(rounds)]
            watch.cancel()
            by_ucx = _figures_of_ucx(taken, holder)
            small = await _measure_small(holder)
    finally:
        await store.aclose()
        memory.remove()
    gb = nbytes / 1e9

    def median(name: str) -> float:
        return float(statistics.median(getattr(each, name) for each in taken))

    return {
        "tcp_vs_raw": statistics.median(each.raw_s / each.tcp_s for each in taken),
        "tcp_cpu_vs_raw": statistics.median(each.tcp_cpu_s / each.raw_cpu_s for each in taken),
        "tcp_cpu_s_per_gb": median("tcp_cpu_s") / gb,
        "raw_cpu_s_per_gb": median("raw_cpu_s") / gb,
        "shm_vs_memcpy": statistics.median(each.memcpy_s / each.shm_s for each in taken),
        "tls_vs_tcp": statistics.median(each.tcp_s / each.tls_s for each in taken),
        **by_ucx,
        **small,
        "tcp_gb_per_s": gb / median("tcp_s"),
        "raw_gb_per_s": gb / median("raw_s"),
        "shm_gb_per_s": gb / median("shm_s"),
        "memcpy_gb_per_s": gb / median("memcpy_s"),
        "in_place_ms": median("in_place_s") * 1e3,
        "linked_and_checked_ms": median("linked_s") * 1e3,
        "loop_lag_p99_ms": quantile(lags, 0.99) * 1e3,
        "bytes": nbytes,
        "rounds": rounds,
    }


async def _measure_small(holder: Peer) -> dict[str, Figure]:
    offer = await holder.put(1, _SMALL)
    ways = {"small_tcp_ms": elsewhere(offer), "small_tls_ms": elsewhere(offer, holder.tls)}
    took: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(_SMALL_TIMES):
        for name, each in ways.items():
            began = perf_counter()
            await fetch(each)
            took[name].append(perf_counter() - began)
    return {name: statistics.median(seconds) * 1e3 for name, seconds in took.items()}


def _figures_of_ucx(taken: list[Round], holder: Peer) -> dict[str, Figure]:
    """Those of UCX by shared memory; where UCXX is not installed, bundles came over TCP instead."""
    if not ucx.is_installed():
        return {"ucx_vs_tcp": "UCXX is not installed"}
    log = (holder.folder / UCX_LOG).read_text()
    lanes = set(re.findall(r"\.\.inf \|.*\| *(\S+) *\|$", log, flags=re.MULTILINE))
    if lanes != {"posix/memory"}:
        raise SystemExit(f"UCX took the lanes {lanes}, and not shared memory")
    return {"ucx_vs_tcp": statistics.median(each.tcp_s / each.ucx_s for each in taken)}


async def _measure(report: Report, *, quick: bool) -> None:
    report.add(await measure_speed(2**26 if quick else 2**30, report.times(9, quick=3)))
    kills = report.times(200, quick=8)
    report.add(await measure_losses(2**26, kills, ucx=False))
    if ucx.is_installed():
        report.add(await measure_losses(2**26, kills, ucx=True))


def main() -> None:
    """Measure."""
    report = Report("tensors", __doc__, minutes=15)
    run(_measure(report, quick=report.begin().quick))
    report.finish()


if __name__ == "__main__":
    main()
