"""Step 3: the rate of every pass that weights take from the GPU of a trainer to that of a worker,
within one machine and one process."""

from __future__ import annotations

import asyncio
from functools import partial
from time import perf_counter

import torch
from safetensors.torch import save_file
from torch import Tensor

from benchmarks.gpu_steps.site import GB, Site
from benchmarks.plain_transfers import note_lags
from benchmarks.report import Figure, quantile
from spotlight.actors.runtime.loop import run
from spotlight.store.memory_folder import MemoryFolder
from spotlight.transport.tensors import BundleStore, content_key
from spotlight.transport.tensors.bundles import map_copy
from spotlight.transport.tensors.files import deposit

_PIECE = 256 * 1024 * 1024


def measure(site: Site) -> dict[str, Figure]:
    """See the module's docstring."""
    sizes = {"tiny": 2**22} if site.quick else {"lora": 850_000_000, "full": 20_000_000_000}
    figures: dict[str, Figure] = {}
    for name, nbytes in sizes.items():
        measured = run(_publish(site, nbytes))
        figures |= {f"{figure}[{name}]": value for figure, value in measured.items()}
    return figures


async def _publish(site: Site, nbytes: int) -> dict[str, Figure]:
    count, rest = divmod(nbytes // 2, _PIECE // 2)
    pieces = [_PIECE // 2] * count + [rest] * bool(rest)
    weights = {
        str(number): torch.ones(size, dtype=torch.bfloat16, device=site.device)
        for number, size in enumerate(pieces)
    }
    memory, seconds, lags = MemoryFolder(), dict[str, float](), list[float]()
    store = BundleStore(memory.path, token="store")
    watching = asyncio.create_task(note_lags(lags))
    try:
        await store.start()
        began = perf_counter()
        copied = await asyncio.to_thread(_copies, site, weights)
        seconds["from_gpu"] = perf_counter() - began
        began = perf_counter()
        offer = await deposit(store.writable_by("rank"), "weights/1", partial(save_file, copied))
        seconds["into_store"] = perf_counter() - began
        del copied
        began = perf_counter()
        copy = await store.copy(offer, content_key(offer.key, offer.checksum))
        seconds["linked_and_checked"] = perf_counter() - began
        began = perf_counter()
        await asyncio.to_thread(_load, site, map_copy(copy) or {}, weights)
        seconds["to_gpu"] = perf_counter() - began
    finally:
        watching.cancel()
        await store.aclose()
        memory.remove()
    figures: dict[str, Figure] = {f"{k}_gb_per_s": nbytes / GB / s for k, s in seconds.items()}
    figures["publication_s"] = sum(seconds.values())
    figures["loop_lag_p99_ms"] = quantile(lags, 0.99) * 1e3
    return figures | (_pinned(site, weights["0"]) if site.is_gpu else {})


def _copies(site: Site, weights: dict[str, Tensor]) -> dict[str, Tensor]:
    copied = {name: tensor.to("cpu", copy=True) for name, tensor in weights.items()}
    site.synchronize()
    return copied


def _load(site: Site, mapped: dict[str, Tensor], weights: dict[str, Tensor]) -> None:
    for name, tensor in mapped.items():
        weights[name].copy_(tensor)
    site.synchronize()


def _pinned(site: Site, tensor: Tensor) -> dict[str, Figure]:
    """What pinned memory would give."""
    host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    gb = tensor.nbytes / GB
    return {
        "from_gpu_pinned_gb_per_s": gb / site.seconds(lambda: host.copy_(tensor)),
        "to_gpu_pinned_gb_per_s": gb / site.seconds(lambda: tensor.copy_(host)),
    }
