"""Step 4: groups of one rank: collectives, groups made and closed, and leaving one whose collective
waits for a kernel that does not end. With gloo on a CPU."""

from __future__ import annotations

import threading
from time import perf_counter

import torch

from benchmarks.gpu_steps.site import Site
from benchmarks.report import Figure
from spotlight.errors import TransportError
from spotlight.transport.collectives import Backend, Group
from spotlight_simulation.rank_groups import init_group

_TIMEOUT_S = 60.0
_GROUPS = 20
_SPIN_CYCLES = 20_000_000_000
"""Some ten seconds on a GPU."""


def measure(site: Site) -> dict[str, Figure]:
    """See the module's docstring."""
    tensor = torch.ones(1024, device=site.device)
    began = perf_counter()
    with _group(site) as group:
        group.all_reduce(tensor)
        site.synchronize()
        first_s = perf_counter() - began
        each_s = site.seconds(lambda: group.all_reduce(tensor), repeats=100)
    began = perf_counter()
    for _ in range(_GROUPS):
        with _group(site) as group:
            group.all_reduce(tensor)
            site.synchronize()
    figures: dict[str, Figure] = {
        "first_group_ms": first_s * 1e3,
        "collective_ms": each_s * 1e3,
        "group_ms": (perf_counter() - began) / _GROUPS * 1e3,
    }
    return figures | (_abandoned(site, tensor) if site.is_gpu else {})


def _group(site: Site) -> Group:
    backend: Backend = "nccl" if site.is_gpu else "gloo"
    return init_group(0, 1, timeout_s=_TIMEOUT_S, backend=backend)


def _abandoned(site: Site, tensor: torch.Tensor) -> dict[str, Figure]:
    """How long another thread takes to leave a group, and what the one in it sees."""
    group, ended = _group(site), list[str]()
    group.all_reduce(tensor)
    site.synchronize()
    torch.cuda._sleep(_SPIN_CYCLES)

    def reduce() -> None:
        try:
            group.all_reduce(tensor)
            site.synchronize()
            ended.append("completed")
        except (TransportError, RuntimeError) as error:
            ended.append(type(error).__name__)

    thread = threading.Thread(target=reduce)
    thread.start()
    began = perf_counter()
    group.abandon()
    left_s = perf_counter() - began
    thread.join(_TIMEOUT_S)
    return {"abandon_ms": left_s * 1e3, "abandoned_collective": (ended or ["still waits"])[0]}
