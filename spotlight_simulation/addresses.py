"""Where the processes of a simulated cluster are, and which frames between them are in danger."""

from __future__ import annotations

from spotlight.actors.protocol.down import WorkerPlan
from spotlight.actors.protocol.peers import CannotFollow, Follow, Introduce
from spotlight.actors.protocol.up import WorkerReport

_ENDANGERED = tuple(
    kind.__name__.encode() for kind in (CannotFollow, Follow, Introduce, WorkerPlan, WorkerReport)
)


def address_of(process: str) -> str:
    """The control address of a process."""
    return f"memory://{process}"


def is_spared(source: str, destination: str, frame: bytes) -> bool:
    """Between processes of one machine nothing is in danger but what members of a group say to each
    other, and plans and reports, which must stand it."""
    inside = _machine_of(source) == _machine_of(destination)
    return inside and not any(word in frame for word in _ENDANGERED)


def _machine_of(address: str) -> str:
    return address.removeprefix("memory://").partition("/")[0]
