"""The coordinator's daemon for `benchmarks.control_plane`, with a clock where messages are read.

Run as `python -m benchmarks.control_plane_coordinator FILE OPTION...`, with the options of
`spotlight-coordinator`. FILE has a line for every `Grant` that answers a `Completed` of the same
leader: the microseconds of processor time between reading the one and sending the other, and the
microseconds that passed. Whatever the loop does in between is in them.

A farm is many nodes and their workers with one key, which no real one may be: here a node may say
what workers say, and report by any name.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from spotlight.actors.coordinator.key_ring import KeyRing
from spotlight.actors.coordinator.tenant import request_queue
from spotlight.actors.protocol import roles
from spotlight.actors.protocol.door import Pool
from spotlight.actors.protocol.down import Grant
from spotlight.actors.protocol.up import Completed
from spotlight.actors.runtime import remote
from spotlight.cli import daemons


class Clock:
    """Stands where messages are read and where grants are sent. The loop's thread only."""

    def __init__(self, path: Path) -> None:
        self._lines = path.open("w", buffering=1)
        self._read: dict[str, tuple[int, int]] = {}
        """What was read, by the worker whose batch is done."""
        self._decode = vars(remote)["decode_message"]
        self._tell = vars(request_queue)["try_tell"]

    def install(self) -> None:
        """In place of the functions that the runtime and the request queue call."""
        vars(remote)["decode_message"] = self.decode
        vars(request_queue)["try_tell"] = self.tell

    def decode(self, body: Any) -> Any:
        """Read a message."""
        began = time.thread_time_ns(), time.monotonic_ns()
        message = self._decode(body)
        if isinstance(message, Completed):
            self._read[message.worker] = began
        return message

    def tell(self, actor: Any, to: Any, message: Any) -> bool:
        """Send one."""
        sent: bool = self._tell(actor, to, message)
        if isinstance(message, Grant):
            began = self._read.pop(_worker(to), None)
            if began is not None:
                now = time.thread_time_ns(), time.monotonic_ns()
                print(*((b - a) // 1000 for a, b in zip(began, now, strict=True)), file=self._lines)
        return sent


def _worker(leader: Any) -> str:
    """Whose it is, as the farm names both."""
    node, name = leader.name.split("/")
    return f"{node.removeprefix('node-')}/{name.removeprefix('leader-')}"


def _let_farms_be_many() -> None:
    told = {"worker", "trainer"}
    wider = {kind: who | {"node"} if who & told else who for kind, who in roles.MAY_SAY.items()}
    vars(roles)["MAY_SAY"] = wider
    report = KeyRing.report

    def report_by_its_key(
        ring: KeyRing, node: str, pool: Pool, address: str, workers: Iterable[str]
    ) -> str:
        passport = ring.passport(address)
        known = node if passport is None else passport.name
        return report(ring, known, pool, address, workers)

    setattr(KeyRing, "report", report_by_its_key)  # noqa: B010 - mypy takes no other function


if __name__ == "__main__":
    _let_farms_be_many()
    Clock(Path(sys.argv.pop(1))).install()
    daemons.coordinator()
