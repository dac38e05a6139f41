"""How soon a worker has a new weights version in its model once its node holds it.

    python -m benchmarks.weights --json [--quick]

A node's store keeps a version (float32) in memory and has verified it. Another process, with one
torch thread as a worker has, maps it and copies it into its parameters, while a second thread
touches the pages, as a member does. In the same process, in turn: the same copy between two
tensors in its own memory (`memcpy`), and the way of those that cannot map the file: read it, check
it, unpack it, copy it (`fetched`). Destinations are warm in all three. Figures are medians of the
rounds, in GB (1e9 bytes) per second; `weights_vs_memcpy` is `mapped` through `memcpy`, of the same
round.
"""

from __future__ import annotations

import asyncio
import gc
import os
import statistics
import subprocess
import sys
import zlib
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from time import perf_counter

import msgspec
import torch
from torch import Tensor

from benchmarks.report import Figure, Report
from spotlight.actors.runtime.launcher import die_with_parent
from spotlight.actors.runtime.loop import run
from spotlight.store.memory_folder import MemoryFolder
from spotlight.transport.tensors import BundleStore, content_key, fetch
from spotlight.transport.tensors.bundles import map_copy, pack, touch, unpack
from spotlight.types import BundleOffer

_TIMEOUT_S = 300.0


def _state(layers: int) -> dict[str, Tensor]:
    """About 12.6 MB per layer: a matrix, and vectors as norms and biases are."""
    generator = torch.Generator().manual_seed(0)
    state = {}
    for layer in range(layers):
        state[f"{layer}.weight"] = torch.randn(1024, 3072, generator=generator)
        for name in ("bias", "norm.weight", "norm.bias"):
            state[f"{layer}.{name}"] = torch.randn(1024, generator=generator)
    return state


def _copy(state: dict[str, Tensor], parameters: dict[str, Tensor]) -> None:
    for name, parameter in parameters.items():
        parameter.copy_(state[name])


def _seconds(work: Callable[[], object]) -> float:
    gc.collect()
    began = perf_counter()
    work()
    return perf_counter() - began


def _measure(offer: BundleOffer, rounds: int) -> dict[str, list[float]]:
    """Seconds of every round, in the worker's process."""
    torch.set_num_threads(1)
    held: dict[str, Tensor] = {}

    async def fetched() -> dict[str, Tensor]:
        return unpack(await fetch(offer))

    def hold() -> None:
        mapped = map_copy(offer)
        assert mapped is not None
        held.update(mapped)
        touching.append(packer.submit(touch, mapped))

    packer = ThreadPoolExecutor(1)
    packer.submit(int).result()
    touching: list[Future[None]] = []
    source = asyncio.run(fetched())
    parameters = {name: torch.zeros_like(tensor) for name, tensor in source.items()}
    seconds: dict[str, list[float]] = {"memcpy": [], "hold": [], "load": [], "fetched": []}
    for number in range(rounds + 1):
        for tensor in parameters.values():
            tensor.zero_()
        taken = {
            "memcpy": _seconds(lambda: _copy(source, parameters)),
            "hold": _seconds(hold),
            "load": _seconds(lambda: _copy(held, parameters)),
        }
        assert all(torch.equal(source[name], tensor) for name, tensor in parameters.items())
        touching.pop().result()
        held.clear()
        taken["fetched"] = _seconds(lambda: _copy(asyncio.run(fetched()), parameters))
        if number > 0:  # the first warms everything up
            for name, value in taken.items():
                seconds[name].append(value)
    return seconds


async def measure(layers: int, rounds: int) -> dict[str, Figure]:
    """Keep the weights, and have another process measure; the figures."""
    memory = MemoryFolder()
    store = BundleStore(memory.path, token="benchmark")
    try:
        await store.start()
        data = pack(_state(layers))
        published = store.put("weights/000000-rollout", data)
        copy = await store.copy(published, content_key(published.key, zlib.crc32(data)))
        argv = [sys.executable, "-m", "benchmarks.weights", "--worker", str(os.getpid())]
        argv += [msgspec.json.encode(copy).decode(), str(rounds)]
        process = await asyncio.create_subprocess_exec(*argv, stdout=subprocess.PIPE)
        try:
            answer, _ = await asyncio.wait_for(process.communicate(), _TIMEOUT_S)
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        if process.returncode != 0:
            raise SystemExit(f"the worker process ended with {process.returncode}")
    finally:
        await store.aclose()
        memory.remove()
    return _figures(msgspec.json.decode(answer, type=dict[str, list[float]]), copy.nbytes)


def _figures(seconds: dict[str, list[float]], nbytes: int) -> dict[str, Figure]:
    memcpy, fetched = seconds["memcpy"], seconds["fetched"]
    mapped = [hold + load for hold, load in zip(seconds["hold"], seconds["load"], strict=True)]
    ratios = [plain / taken for plain, taken in zip(memcpy, mapped, strict=True)]

    def speed(taken: list[float]) -> float:
        return nbytes / 1e9 / statistics.median(taken)

    return {
        "weights_vs_memcpy": statistics.median(ratios),
        "weights_vs_memcpy_min": min(ratios),
        "weights_vs_memcpy_max": max(ratios),
        "mapped_gb_per_s": speed(mapped),
        "memcpy_gb_per_s": speed(memcpy),
        "fetched_gb_per_s": speed(fetched),
        "hold_ms": statistics.median(seconds["hold"]) * 1e3,
        "load_ms": statistics.median(seconds["load"]) * 1e3,
        "bytes": nbytes,
        "rounds": len(memcpy),
    }


def main() -> None:
    """Measure, or be the worker."""
    if sys.argv[1:2] == ["--worker"]:
        parent, offer, rounds = sys.argv[2:]
        die_with_parent(int(parent))
        seconds = _measure(msgspec.json.decode(offer, type=BundleOffer), int(rounds))
        print(msgspec.json.encode(seconds).decode())
        return
    report = Report("weights", __doc__, minutes=2)
    layers = 8 if report.begin().quick else 32
    report.add(run(measure(layers, report.times(21, quick=5))))
    report.finish()


if __name__ == "__main__":
    main()
