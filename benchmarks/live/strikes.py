"""Which faults strike real processes when: a pure function of the seed."""

from __future__ import annotations

import random
from collections.abc import Sequence

from spotlight_simulation.faults import Fault, FaultKind

PARTITIONS: tuple[FaultKind, ...] = ("partition", "one_way_partition")
_COUNTS: dict[FaultKind, tuple[int, ...]] = {
    "kill_node": (0, 1),
    "kill_worker": (0, 1, 2),
    "coordinator_kill": (0, 1, 2),
    "pause_node": (1, 2),
    "notice_then_kill": (0, 1),
    "notice_no_kill": (0, 1, 2),
    "pool_loss": (0, 0, 0, 1),
    "partition": (1, 2),
    "one_way_partition": (0, 1, 2),
}
"""How many there may be: few that take a node away for long, or nothing is left to strike."""
LIVE_KINDS = tuple(_COUNTS)
WORKER_ONLY = 1.0
"""The `amount` of a `pause_node` that stops the node's worker and not the node itself."""
_NOTICES_S = (0.5, 3.0, 8.0)


def draw_live_faults(
    seed: int, *, spot: Sequence[str], until_s: float, partitions: bool
) -> tuple[Fault, ...]:
    """Faults in the order of their times.

    Those of a seed are the same without partitions, less the partitions.
    """
    rng = random.Random(f"{seed} live faults")
    drawn = [
        _draw(rng, kind, rng.choice(spot), until_s)
        for kind, counts in _COUNTS.items()
        for _ in range(rng.choice(counts))
    ]
    possible = [fault for fault in drawn if partitions or fault.kind not in PARTITIONS]
    return tuple(sorted(possible, key=lambda fault: fault.at_s))


def effect_of(fault: Fault) -> str:
    """Under which name it is counted."""
    is_worker = fault.kind == "pause_node" and fault.amount == WORKER_ONLY
    return "pause_worker" if is_worker else fault.kind


def _draw(rng: random.Random, kind: FaultKind, node: str, until_s: float) -> Fault:
    at_s = round(rng.uniform(0.2, until_s), 3)
    lasts_s = round(rng.uniform(0.0, 2.0), 3)
    long_s = round(rng.uniform(0.5, 18.0), 3)
    """Some of these outlast a lease or a connection."""
    match kind:
        case "pause_node":
            amount = rng.choice([0.0, WORKER_ONLY])
            return Fault(at_s, kind, node, lasts_s=long_s, amount=amount)
        case "notice_then_kill" | "notice_no_kill":
            return Fault(at_s, kind, node, lasts_s=lasts_s, amount=rng.choice(_NOTICES_S))
        case "partition" | "one_way_partition":
            inwards = rng.random() < 0.5
            return Fault(at_s, kind, node, lasts_s=long_s, inwards=inwards)
        case "coordinator_kill" | "pool_loss":
            return Fault(at_s, kind, lasts_s=lasts_s)
        case _:
            return Fault(at_s, kind, node, lasts_s=lasts_s)
