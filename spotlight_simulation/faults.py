"""Which faults happen when: a pure function of the seed."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

FaultKind = Literal[
    "kill_node",
    "kill_worker",
    "notice_then_kill",
    "notice_no_kill",
    "partition",
    "one_way_partition",
    "loss",
    "duplication",
    "reordering",
    "delay",
    "pause_node",
    "pause_coordinator",
    "slow_node",
    "flapping_node",
    "poison",
    "scorer_error",
    "coordinator_kill",
    "disk_error",
    "pool_loss",
    "pause_worker",
    "sick_accelerator",
    "kill_program",
    "pause_program",
    "cut_program",
    "cancel_session",
    "lose_coordinator",
    "lose_message",
    "hold_message",
    "lose_trainers",
]
KINDS: tuple[FaultKind, ...] = get_args(FaultKind)
SESSION_KINDS: tuple[FaultKind, ...] = (
    "kill_program",
    "pause_program",
    "cut_program",
    "cancel_session",
    "lose_coordinator",
)
"""What befalls a program with a training loop of its own, and its session, alone."""

FAILPOINTS = (
    "journal.before_commit",
    "journal.commit",
    "journal.after_commit",
    "dispatcher.before_ack",
    "",
)
"""Where the coordinator is killed; the empty one is wherever it is when its time comes."""

MESSAGES = (
    "CommitSteps",
    "Completed",
    "Grant",
    "NodePlan",
    "NodeReport",
    "Publish",
    "Pull",
    "Receipt",
    "ReturnLease",
    "Revoke",
    "SaveState",
    "StartTrainer",
    "Train",
    "TrainerReport",
)
"""Types of messages between machines of which a single one is lost."""
ANSWERS = ("NodePlan", "NodePlan", "Receipt", "TrainerReport")
"""Types of answers that come late."""

_ON_A_NODE = (
    "kill_node",
    "kill_worker",
    "notice_then_kill",
    "notice_no_kill",
    "partition",
    "one_way_partition",
    "pause_node",
    "slow_node",
    "flapping_node",
    "pause_worker",
    "sick_accelerator",
)
_MEAN: dict[FaultKind, float] = {
    "kill_node": 1.0,
    "kill_worker": 1.1,
    "notice_then_kill": 1.4,
    "notice_no_kill": 1.2,
    "one_way_partition": 1.1,
    "pause_node": 1.8,
    "pause_coordinator": 1.1,
    "slow_node": 2.0,
    "flapping_node": 1.0,
    "coordinator_kill": 1.0,
    "pool_loss": 1.0,
    "pause_worker": 1.6,
    "cancel_session": 0.7,
    "lose_coordinator": 0.7,
    "lose_message": 2.0,
    "lose_trainers": 0.7,
}
_USUAL_MEAN = 0.8
"""How many faults of a kind a seed has on average: more where many find nothing to disturb."""
_RESERVED_SHARE = 0.1
"""How often a fault of a node is one of a reserved node."""


@dataclass(frozen=True)
class Fault:
    """One fault. What `amount` means depends on the kind: a probability, a factor, or a count."""

    at_s: float
    kind: FaultKind
    node: str = ""
    lasts_s: float = 0.0
    amount: float = 0.0
    failpoint: str = ""
    inwards: bool = False
    """Whether a one-way partition stops what is sent to the node."""
    message: str = ""
    """Name of the type of the message that is lost, or of the answers that come late. Of other
    kinds: it begins when the next message of this type arrives somewhere."""


def draw_faults(
    seed: int,
    *,
    reserved: Sequence[str],
    spot: Sequence[str],
    kinds: Sequence[FaultKind] = KINDS,
    until_s: float = 50.0,
) -> tuple[Fault, ...]:
    """Faults in the order of their times."""
    rng = random.Random(f"{seed} faults")
    drawn = []
    for kind in kinds:
        most = 2 * _MEAN.get(kind, _USUAL_MEAN)
        for _ in range(rng.randint(0, int(most) + (rng.random() < most % 1.0))):
            pool = reserved if kind in _ON_A_NODE and rng.random() < _RESERVED_SHARE else spot
            drawn.append(_draw(rng, kind, rng.choice(pool), until_s))
    return in_order(drawn)


def in_order(faults: Iterable[Fault]) -> tuple[Fault, ...]:
    """Of their times."""
    return tuple(sorted(faults, key=lambda fault: (fault.at_s, KINDS.index(fault.kind))))


def _draw(rng: random.Random, kind: FaultKind, node: str, until_s: float) -> Fault:
    at_s = round(rng.uniform(1.0, until_s), 3)

    def between(least: float, most: float) -> float:
        return round(rng.uniform(least, most), 3)

    match kind:
        case "kill_node":
            return Fault(at_s, kind, node, lasts_s=between(1.0, 20.0))
        case "kill_worker":
            return Fault(at_s, kind, node, amount=rng.randrange(4))
        case "notice_then_kill":
            lead_s = rng.choice([0.0, 2.0, 5.0, 25.0])
            return Fault(at_s, kind, node, lasts_s=between(1.0, 20.0), amount=lead_s)
        case "notice_no_kill":
            return Fault(at_s, kind, node, lasts_s=between(1.0, 15.0), amount=between(2.0, 30.0))
        case "partition" | "one_way_partition":
            inwards = rng.random() < 0.5
            return Fault(at_s, kind, node, lasts_s=between(0.3, 25.0), inwards=inwards)
        case "loss" | "duplication" | "reordering":
            return Fault(at_s, kind, lasts_s=between(2.0, 15.0), amount=between(0.02, 0.3))
        case "delay":
            return Fault(at_s, kind, lasts_s=between(2.0, 15.0), amount=between(0.05, 1.0))
        case "pause_node" | "pause_coordinator":
            node = node if kind == "pause_node" else ""
            return Fault(at_s, kind, node, lasts_s=between(0.3, 30.0))
        case "slow_node":
            return Fault(at_s, kind, node, lasts_s=between(5.0, 20.0), amount=10.0)
        case "flapping_node":
            return Fault(at_s, kind, node, lasts_s=5.0, amount=rng.randint(2, 4))
        case "poison":
            return Fault(at_s, kind)
        case "scorer_error":
            return Fault(at_s, kind, lasts_s=between(2.0, 10.0), amount=between(0.2, 0.9))
        case "coordinator_kill":
            return Fault(
                at_s,
                kind,
                lasts_s=between(0.1, 15.0),
                amount=rng.randint(1, 3),
                failpoint=rng.choice(FAILPOINTS),
            )
        case "disk_error":
            return Fault(at_s, kind, lasts_s=between(0.1, 5.0), amount=rng.randint(1, 3))
        case "pool_loss":
            return Fault(at_s, kind, lasts_s=between(2.0, 30.0))
        case "pause_worker":
            return Fault(at_s, kind, node, lasts_s=between(2.0, 14.0), amount=rng.randrange(4))
        case "sick_accelerator":
            return Fault(at_s, kind, node, lasts_s=between(5.0, 40.0), amount=rng.randrange(8))
        case "kill_program" | "cancel_session":
            return Fault(at_s, kind)
        case "pause_program" | "cut_program":
            longest_s = rng.choice([15.0, 90.0])  # a session outlives the one, and not the other
            one_way = rng.randrange(2)
            return Fault(
                at_s,
                kind,
                lasts_s=between(0.3, longest_s),
                amount=one_way,
                inwards=rng.random() < 0.5,
            )
        case "lose_coordinator":
            return Fault(at_s, kind, lasts_s=between(60.0, 160.0))
        case "lose_message":
            late_s = between(0.2, 4.0)  # two of one type are told apart by it
            return Fault(at_s, kind, lasts_s=10.0, amount=late_s, message=rng.choice(MESSAGES))
        case "hold_message":
            late_s = between(0.2, 4.0)
            return Fault(at_s, kind, lasts_s=10.0, amount=late_s, message=rng.choice(ANSWERS))
        case "lose_trainers":
            return Fault(at_s, kind, lasts_s=between(0.5, 15.0), amount=rng.randrange(2))
