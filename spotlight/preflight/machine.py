"""What `spotlight doctor` finds out about this machine: each finding is one line that says what is
so, whether that is well, and what to do if it is not.

What the numbers mean is decided by functions of these numbers; `machine_findings` looks them up.
Needs no torch: a process of its own says what torch sees.
"""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

import msgspec

import spotlight
from spotlight.errors import how_to_install
from spotlight.preflight.checks import WORKER_MODULES
from spotlight.preflight.scorers import SCORER_MODULES
from spotlight.store.log_folder import log_base
from spotlight.store.memory_folder import default_base

State = Literal["ok", "warn", "fail"]

_EXTRAS: dict[str, tuple[str, ...]] = {
    "worker": (*WORKER_MODULES, "transformers", "peft"),
    "rewards": tuple(sorted({name for names in SCORER_MODULES.values() for name in names})),
    "serve": ("starlette", "uvicorn"),
    "storage": ("fsspec", "s3fs", "gcsfs"),
    "trackers": ("tensorboardX", "wandb", "trackio"),
}
_WANTED = {
    "worker": "no worker can run here",
    "rewards": "built-in rewards such as `ocr` cannot score here",
}
"""Extras whose want is worth a warning, and what it means."""
_LEAST_PYTHON = (3, 11)
_TORCH_LIMIT_S = 120.0
_TOOL_LIMIT_S = 10.0
_GB = 10**9


class Finding(msgspec.Struct, frozen=True):
    """One thing that was looked at."""

    what: str
    state: State
    said: str
    advice: str = ""
    """What to do about it; empty if all is well."""


class Gpu(msgspec.Struct, frozen=True):
    """A GPU that torch sees."""

    name: str
    nbytes: int
    """Bytes of its memory."""


class TorchFacts(msgspec.Struct, frozen=True):
    """What torch says of itself and of this machine, in a process that has loaded it."""

    version: str
    """The version of torch; empty if it cannot be loaded."""
    built_for: str
    """The version of CUDA (or HIP) that it was built for; empty for a build without."""
    gpus: tuple[Gpu, ...] = ()
    problem: str = ""
    """Why it sees none, in its own words."""


def machine_findings(folder: Path) -> list[Finding]:
    """What is well and what is not on this machine, for runs below `folder`."""
    shared = default_base()
    _, descriptors = resource.getrlimit(resource.RLIMIT_NOFILE)
    return [
        python_finding(sys.version_info[:3], sys.platform),
        *packages_findings(_missing()),
        torch_finding(_torch_facts(), has_device=_has_gpu_device()),
        room_finding("disk", folder, _free(folder), warn=20 * _GB, fail=_GB),
        room_finding(
            "shared memory",
            shared,
            _free(shared),
            warn=2 * _GB,
            fail=_GB // 16,
            advice="weights are kept there: give the container more (Docker: --shm-size), or name"
            " another folder with --store",
        ),
        descriptors_finding(None if descriptors == resource.RLIM_INFINITY else descriptors),
        clock_finding(time.time(), _installed_at(), _is_synchronised()),
        logs_finding(),
    ]


def python_finding(version: tuple[int, int, int], platform: str) -> Finding:
    """Python and the system."""
    said = f"{'.'.join(map(str, version))} on {platform}"
    if version < _LEAST_PYTHON:
        least = ".".join(map(str, _LEAST_PYTHON))
        return Finding("python", "fail", said, f"use Python {least} or newer")
    if not platform.startswith("linux"):
        return Finding("python", "warn", said, "Spotlight is tested on Linux alone")
    return Finding("python", "ok", said)


def packages_findings(missing: dict[str, tuple[str, ...]]) -> Iterable[Finding]:
    """The extras; `missing` are the modules of each that are not installed."""
    for extra, means in _WANTED.items():
        if not missing[extra]:
            yield Finding(f"extra {extra}", "ok", "installed")
        else:
            said = f"{', '.join(missing[extra])} missing: {means}"
            yield Finding(f"extra {extra}", "warn", said, how_to_install(extra))
    others = [
        f"{extra} {'lacks ' + ', '.join(names) if names else 'installed'}"
        for extra, names in missing.items()
        if extra not in _WANTED
    ]
    yield Finding("other extras", "ok", "; ".join(others))


def torch_finding(facts: TorchFacts | None, *, has_device: bool) -> Finding:
    """Whether workers can use a GPU.

    Args:
        facts: None without torch.
        has_device: whether the system has a device of an NVIDIA GPU.
    """
    if facts is None:
        return Finding(
            "torch", "warn", "not there: no worker can run here", how_to_install("worker")
        )
    if not facts.version:
        return Finding("torch", "fail", facts.problem, "install it anew; no worker can run here")
    built = f"CUDA {facts.built_for}" if facts.built_for else "no GPU support"
    said = f"{facts.version}, built with {built}"
    if facts.gpus:
        gpus = ", ".join(f"{gpu.name} ({gpu.nbytes / _GB:.0f} GB)" for gpu in facts.gpus)
        return Finding("torch", "ok", f"{said}; sees {gpus}")
    if not has_device:
        advice = "workers compute on the CPU, which is enough for the examples alone"
        return Finding("torch", "warn", f"{said}; there is no GPU", advice)
    problem = f" ({facts.problem})" if facts.problem else ""
    if facts.built_for:
        advice = "update the driver, or install a torch that is built for an older CUDA"
    else:
        advice = "install a torch that is built with CUDA: https://pytorch.org/get-started"
    return Finding("torch", "fail", f"{said}; does not see this machine's GPU{problem}", advice)


def room_finding(
    what: str, place: Path, free: int | None, *, warn: int, fail: int, advice: str = ""
) -> Finding:
    """Free room in a folder, in bytes; None if it cannot be told."""
    if free is None:
        return Finding(what, "fail", f"{place} cannot be used", "name a folder that is there")
    said = f"{free / _GB:.1f} GB free in {place}"
    state: State = "fail" if free < fail else "warn" if free < warn else "ok"
    advice = advice or "a run needs room for its checkpoints: free some, or use another disk"
    return Finding(what, state, said, "" if state == "ok" else advice)


def descriptors_finding(most: int | None) -> Finding:
    """How many files a process may open at most; None for as many as it likes."""
    if most is None or most >= 4096:
        return Finding("open files", "ok", f"{'no limit' if most is None else f'{most:,}'}")
    state: State = "fail" if most < 256 else "warn"
    advice = "each connection takes one: raise the hard limit (`ulimit -Hn`, LimitNOFILE=)"
    return Finding("open files", state, f"at most {most:,}", advice)


def clock_finding(now: float, least: float, synchronised: bool | None) -> Finding:
    """The wall clock.

    Args:
        now: what it says, seconds since 1970.
        least: a moment that has passed.
        synchronised: what the system says of it; None if it says nothing.
    """
    said = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(now))
    if now < least:
        advice = "set it: tokens and certificates have dates"
        return Finding("clock", "fail", f"{said} is in the past", advice)
    if synchronised is False:
        return Finding("clock", "warn", f"{said}, not synchronised", "turn on NTP or chrony")
    known = "synchronised" if synchronised else "nobody says whether it is synchronised"
    return Finding("clock", "ok", f"{said}, {known}")


def logs_finding() -> Finding:
    """Whether a node can keep its workers' logs."""
    try:
        base = log_base()
    except RuntimeError as error:
        return Finding("logs", "warn", str(error), "give nodes a folder with --logs")
    there = next(path for path in (base, *base.parents) if path.exists())
    if os.access(there, os.W_OK):
        return Finding("logs", "ok", f"of workers: {base}")
    return Finding("logs", "warn", f"{there} cannot be written", "give nodes a folder with --logs")


def _missing() -> dict[str, tuple[str, ...]]:
    return {
        extra: tuple(name for name in names if find_spec(name) is None)
        for extra, names in _EXTRAS.items()
    }


def _torch_facts() -> TorchFacts | None:
    """None without torch. What breaks while it is loaded is a fact."""
    if find_spec("torch") is None:
        return None
    argv = [sys.executable, "-m", "spotlight.torch_facts"]
    try:
        done = subprocess.run(argv, capture_output=True, timeout=_TORCH_LIMIT_S, check=True)
        return msgspec.json.decode(done.stdout, type=TorchFacts)
    except subprocess.CalledProcessError as error:
        last = error.stderr.decode(errors="replace").strip().splitlines()[-1:]
        return TorchFacts("", "", problem=f"cannot be loaded: {''.join(last)}")
    except subprocess.TimeoutExpired:
        return TorchFacts("", "", problem=f"is not loaded within {_TORCH_LIMIT_S:.0f} s")


def _has_gpu_device() -> bool:
    return any(Path("/dev").glob("nvidia[0-9]*"))


def _free(folder: Path) -> int | None:
    there = next((path for path in (folder, *folder.absolute().parents) if path.exists()), None)
    try:
        return None if there is None else shutil.disk_usage(there).free
    except OSError:
        return None


def _installed_at() -> float:
    return Path(spotlight.__file__).stat().st_mtime


def _is_synchronised() -> bool | None:
    """What systemd says; None where there is none."""
    argv = ["timedatectl", "show", "--property=NTPSynchronized", "--value"]
    try:
        done = subprocess.run(argv, capture_output=True, timeout=_TOOL_LIMIT_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return {b"yes": True, b"no": False}.get(done.stdout.strip())
