"""Assigns accelerators to workers: every worker of a node sees only one, and must compute on it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

_VARIABLE = "CUDA_VISIBLE_DEVICES"
_COLLECTIVES = {"TORCH_NCCL_BLOCKING_WAIT": "1"}
"""A collective that fails raises an error in its thread; else torch's watchdog ends the process."""


def environment_of(
    worker: int, environment: Mapping[str, str], devices: Path = Path("/dev")
) -> dict[str, str]:
    """What a worker's environment must say besides, so that it sees its own accelerator alone;
    nothing on a machine that has none.

    Args:
        worker: its index on the node; if there are more workers than accelerators they share.
        environment: the node's own: it may see some of the machine's accelerators only.
        devices: where the system lists its devices.
    """
    named = environment.get(_VARIABLE)
    if named is not None:
        visible = [name for name in named.split(",") if name]
    else:
        visible = [str(number) for number, _ in enumerate(devices.glob("nvidia[0-9]*"))]
    return {_VARIABLE: visible[worker % len(visible)], **_COLLECTIVES} if visible else {}


def problem_of(device: str, given: Mapping[str, str]) -> str:
    """Why a worker that computes on this device is of no use, in words; empty if it is.

    Args:
        device: see `WorkerUp.device`.
        given: what `environment_of` said for it.
    """
    if device != "cpu" or _VARIABLE not in given:
        return ""
    return (
        f"torch sees no GPU in it, though it was given GPU {given[_VARIABLE]}: install a torch that"
        " is built for CUDA, and a driver that it fits; or, to compute on the CPU, start the node"
        f" with `{_VARIABLE}=`"
    )
