"""Assigns accelerators to workers: every worker of a node sees only one."""

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
