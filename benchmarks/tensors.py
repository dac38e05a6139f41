"""How fast bundles move between processes, beside a memory copy and a raw socket in the same run.

    python -m benchmarks.tensors --json [--quick]

A process holds a bundle in a store in memory and serves it; this one takes it in turn

- as a copy of its own from a store of another machine, over TCP on the loopback interface:
  received, checked and kept (`tcp`);
- by a blocking loop that receives into a new file, mapped, what the other side sends with sendfile,
  unchecked (`raw`);
- as a verified copy of the same machine, mapped (`in_place`), and linked and checked (`linked`);
- copied once in memory (`memcpy`).

Figures are medians of the rounds, ratios those of one round; GB are 1e9 bytes. CPU seconds are
those of both processes. The event loop of this process looks at the clock every millisecond
meanwhile; `loop_lag_p99_ms` says how late.

Then holders are ended with SIGKILL, or stopped, after a random share of the bytes of a copy, which
another holder then completes. `bytes_repeated_share` is what came twice, of all that came;
`damaged` counts copies that are not the bundle, `leaks` the files that were left.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import mmap
import os
import random
import resource
import signal
import socket
import statistics
import sys
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

import msgspec
import numpy as np

from benchmarks.report import Figure, arguments, finish, parser, quantile
from spotlight.actors.runtime.launcher import die_with_parent
from spotlight.actors.runtime.loop import run
from spotlight.errors import TransferFailed
from spotlight.store.memory_folder import MemoryFolder
from spotlight.timings import TransferTimings
from spotlight.transport.tensors import BundleStore, content_key, own_file
from spotlight.types import BundleOffer

_KEY = "weights/1"
_SEED = 0
_READY_S = 60.0


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


# --- the process that holds the bundle ---


async def _hold(nbytes: int) -> None:
    """Serve the bundle, and the same bytes on a raw socket; answer each line with CPU seconds."""
    memory = MemoryFolder()
    store = BundleStore(memory.path, token=str(os.getpid()))
    try:
        await store.start()
        offer = store.put(_KEY, np.random.default_rng(_SEED).bytes(nbytes))
        listener = socket.create_server(("127.0.0.1", 0))
        path = memory.path / _KEY
        threading.Thread(target=_serve_raw, args=(listener, path, nbytes), daemon=True).start()
        ready = {"offer": json.loads(msgspec.json.encode(offer)), "raw": listener.getsockname()[1]}
        print(json.dumps(ready), flush=True)
        while await asyncio.to_thread(sys.stdin.readline):
            print(json.dumps(_cpu_s()), flush=True)
        listener.close()
    finally:
        await store.aclose()
        memory.remove()


def _serve_raw(listener: socket.socket, path: Path, nbytes: int) -> None:
    with contextlib.suppress(OSError):  # closed
        while True:
            connection, _ = listener.accept()
            with connection, path.open("rb") as file:
                connection.sendfile(file, count=nbytes)


@dataclass
class Holder:
    """A process that holds the bundle, as this process sees it."""

    process: asyncio.subprocess.Process
    offer: BundleOffer
    raw_port: int

    async def cpu_s(self) -> float:
        """That it has used so far."""
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(b"\n")
        return float(await asyncio.wait_for(self.process.stdout.readline(), _READY_S))


@asynccontextmanager
async def holder(nbytes: int) -> AsyncIterator[Holder]:
    """Start one, and end it, if it lives still."""
    argv = [sys.executable, "-m", "benchmarks.tensors", "--holder", str(os.getpid()), str(nbytes)]
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*argv, stdin=pipe, stdout=pipe)
    assert process.stdin is not None and process.stdout is not None
    try:
        ready = json.loads(await asyncio.wait_for(process.stdout.readline(), _READY_S))
        yield Holder(process, msgspec.convert(ready["offer"], BundleOffer), ready["raw"])
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGCONT)
            process.stdin.close()
            await process.wait()


def _elsewhere(offer: BundleOffer) -> BundleOffer:
    store = msgspec.structs.replace(offer.store, machine="another", root="/nowhere")
    return msgspec.structs.replace(offer, store=store)


# --- speed ---


def _receive_raw(port: int, path: Path, nbytes: int) -> None:
    with socket.create_connection(("127.0.0.1", port)) as connection, path.open("w+b") as file:
        file.truncate(nbytes)
        with mmap.mmap(file.fileno(), nbytes) as mapped, memoryview(mapped) as into:
            done = 0
            while done < nbytes:
                count = connection.recv_into(into[done:])
                if not count:
                    raise SystemExit("the raw connection broke off")
                done += count


@dataclass(frozen=True)
class Round:
    """Seconds of wall clock, and of CPU on both sides."""

    tcp_s: float
    tcp_cpu_s: float
    raw_s: float
    raw_cpu_s: float
    memcpy_s: float
    in_place_s: float
    linked_s: float


async def _round(one: Holder, store: BundleStore, memory: memoryview) -> Round:
    began, cpu = perf_counter(), _cpu_s() + await one.cpu_s()
    path = Path(store.endpoint.root) / "raw"
    await asyncio.to_thread(_receive_raw, one.raw_port, path, one.offer.nbytes)
    raw_s, raw_cpu_s = perf_counter() - began, _cpu_s() + await one.cpu_s() - cpu

    path.unlink()
    key = content_key(_KEY, one.offer.checksum)
    began, cpu = perf_counter(), _cpu_s() + await one.cpu_s()
    await store.copy(_elsewhere(one.offer), key)
    tcp_s, tcp_cpu_s = perf_counter() - began, _cpu_s() + await one.cpu_s() - cpu
    store.delete(key)

    began = perf_counter()
    copy = await store.copy(one.offer, key)
    linked_s = perf_counter() - began

    began = perf_counter()
    held = own_file(copy)
    assert held is not None
    with held.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapped:
        in_place_s = perf_counter() - began
        view = memoryview(mapped)
        begun = perf_counter()
        memory[:] = view
        memcpy_s = perf_counter() - begun
        view.release()
    store.delete(key)
    return Round(tcp_s, tcp_cpu_s, raw_s, raw_cpu_s, memcpy_s, in_place_s, linked_s)


async def _lags(found: list[float]) -> None:
    loop = asyncio.get_running_loop()
    while True:
        due = loop.time() + 1e-3
        await asyncio.sleep(1e-3)
        found.append(loop.time() - due)


async def measure_speed(nbytes: int, rounds: int) -> dict[str, Figure]:
    """Seconds of so many rounds after one that warms everything up; the figures."""
    memory, lags = MemoryFolder(), list[float]()
    store = BundleStore(memory.path, token="taker", timings=TransferTimings(transfer_limit_s=600))
    buffer = mmap.mmap(-1, nbytes)
    try:
        await store.start()
        async with holder(nbytes) as one:
            await _round(one, store, memoryview(buffer))
            watch = asyncio.create_task(_lags(lags))
            taken = [await _round(one, store, memoryview(buffer)) for _ in range(rounds)]
            watch.cancel()
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
        "tcp_gb_per_s": gb / median("tcp_s"),
        "raw_gb_per_s": gb / median("raw_s"),
        "memcpy_gb_per_s": gb / median("memcpy_s"),
        "in_place_ms": median("in_place_s") * 1e3,
        "linked_and_checked_ms": median("linked_s") * 1e3,
        "loop_lag_p99_ms": quantile(lags, 0.99) * 1e3,
        "bytes": nbytes,
        "rounds": rounds,
    }


# --- losses ---


def _begun(folder: Path) -> int:
    """Bytes of copies that are not whole."""
    return sum(file.stat().st_size for file in (folder / ".unfinished").iterdir())


async def _until(nbytes: int, folder: Path) -> None:
    while _begun(folder) < nbytes:  # noqa: ASYNC110
        await asyncio.sleep(1e-4)


async def _lose(
    store: BundleStore, folder: Path, nbytes: int, rng: random.Random
) -> tuple[int, bool]:
    """Lose a holder in the middle, and go on with another; the bytes that came twice, and whether
    the copy is the bundle."""
    async with holder(nbytes) as lost, holder(nbytes) as other:
        key = content_key(_KEY, lost.offer.checksum)
        copying = asyncio.create_task(store.copy(_elsewhere(lost.offer), key))
        reached = asyncio.create_task(_until(rng.randrange(nbytes), folder))
        await asyncio.wait((copying, reached), return_when=asyncio.FIRST_COMPLETED)
        reached.cancel()
        lost.process.send_signal(rng.choice([signal.SIGKILL, signal.SIGSTOP]))
        came, repeated = _begun(folder), 0
        try:
            await copying
        except TransferFailed:
            repeated = max(came - _begun(folder), 0)
            await store.copy(_elsewhere(other.offer), key)
        whole = (folder / key).read_bytes() == np.random.default_rng(_SEED).bytes(nbytes)
        store.delete(key)
        return repeated, whole


async def measure_losses(nbytes: int, losses: int) -> dict[str, Figure]:
    """Lose so many holders; the figures."""
    rng, folder = random.Random(_SEED), MemoryFolder()
    timings = TransferTimings(idle_limit_s=0.5)
    store = BundleStore(folder.path, token="taker", timings=timings)
    try:
        await store.start()
        lost = [await _lose(store, folder.path, nbytes, rng) for _ in range(losses)]
        left = [path for path in folder.path.rglob("*") if path.is_file()]
    finally:
        await store.aclose()
        folder.remove()
    return {
        "kills": losses,
        "bytes_repeated_share": sum(repeated for repeated, _ in lost) / (nbytes * losses),
        "damaged": sum(not whole for _, whole in lost),
        "leaks": len(left),
    }


async def _measure(*, quick: bool) -> dict[str, Figure]:
    speed = await measure_speed(2**26 if quick else 2**30, 3 if quick else 9)
    losses = await measure_losses(2**26 if quick else 2**28, 4 if quick else 40)
    return {**speed, **losses}


def main() -> None:
    """Measure, or hold the bundle."""
    if "--holder" in sys.argv:
        accepted = parser(__doc__)
        accepted.add_argument("--holder", nargs=2, type=int, metavar=("PARENT", "BYTES"))
        parent, nbytes = accepted.parse_args().holder
        die_with_parent(parent)
        run(_hold(nbytes))
        return
    options = arguments(__doc__)
    finish("tensors", run(_measure(quick=options.quick)), options.json)


if __name__ == "__main__":
    main()
