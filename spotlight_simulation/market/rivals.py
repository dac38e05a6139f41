"""Ways to train on a spot market, each with its own recovery, for the batch-level model.

Pure. How fast they go with some number of nodes is handed in; what changes of nodes cost them is
made of `COSTS`, one table, each row of which has its source.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import msgspec

from spotlight_simulation.market.batch_model import BOOT_S, Pace, Recovery, System
from spotlight_simulation.market.schedule import Schedule


class Cost(msgspec.Struct, frozen=True):
    """What something takes that a change of nodes makes necessary."""

    seconds: float
    """The time that it takes. [s]"""
    source: str
    """The measurement, or the default of a program, that it is from."""


COSTS = {
    "boot": Cost(BOOT_S, "an assumption: no trace tells how long a node boots"),
    "process": Cost(
        7.7, "`benchmarks.regroup`: four processes from their start to their first step"
    ),
    "load": Cost(
        57.7,
        "Qwen-Image in bf16, a transformer of 41 GB and a text encoder of 16.6 GB, at 1 GB/s: what"
        " an AWS gp3 volume gives at most, and NVIDIA's Run:ai streamer reaches on one",
    ),
    "communicator": Cost(4.5, "NVIDIA/nccl issue 587: the first collective of eight GPUs"),
    "checkpoint": Cost(
        6.8, "adapters of rank 64 in float32 (1.7 GB), their average and two moments, at 1 GB/s"
    ),
    "torchrun notices": Cost(
        15.0, "torch 2.13, rendezvous: a node is dead after three heartbeats of 5 s"
    ),
    "torchrun waits": Cost(
        30.0, "torch 2.13, rendezvous: `last_call`, in which more nodes may still come"
    ),
    "torchft notices": Cost(5.0, "torchft, lighthouse: `heartbeat_timeout_ms`"),
    "patience": Cost(
        60.0,
        "`training.patience_s`, by default: a trainer that nobody hears of is given up. On the"
        " simulated cluster a machine that was taken after its notice was, 60 s after it had gone",
    ),
    "state": Cost(
        3.2, "`benchmarks.trainer_loss`: from the kill until others hold the state of training"
    ),
}
"""The costs by name, in seconds of all who wait for them."""

START_S = COSTS["process"].seconds + COSTS["load"].seconds
"""A process that holds the model, from its start. [s]"""
READY_S = BOOT_S + START_S
"""A node that works, from its start. [s]"""
GROUP_NODES = 2
"""How many nodes an SP group spans where losing a member costs its group a restart."""


def elastic(name: str, reserved_gpus: int, paces: Sequence[Pace]) -> System:
    """Work by pull, which continues from committed steps: whoever is lost takes nothing along."""
    return _on_spot(name, reserved_gpus, paces, Recovery(ready_s=READY_S))


def trainers_on_spot(name: str, paces: Sequence[Pace], schedule: Schedule) -> System:
    """The same without a GPU that stays: every node joins as one that may train. When one that does
    is lost, others take its place as soon as enough are there: they are given their place, load,
    connect, and go on from the last state of training. Each loss is charged as if it had been of a
    node that trains, and as if the copies in the memory of other nodes had gone with it, so that
    the state is that of the last checkpoint, half of Young's interval old."""
    written_s, interval_s = COSTS["checkpoint"].seconds, _young_interval_s(schedule)
    again = ("patience", "load", "communicator")
    recovery = Recovery(
        ready_s=READY_S,
        stop_at_loss_s=math.fsum(COSTS[part].seconds for part in again),
        again_at_loss_s=interval_s / 2,
        checkpoint_s=written_s,
        checkpoint_every_s=interval_s,
    )
    return _on_spot(name, 0, paces, recovery)


def without_elastic_groups(name: str, reserved_gpus: int, paces: Sequence[Pace]) -> System:
    """The same, but a lost member costs its SP group a restart: the processes on the group's other
    nodes start anew, load the model and connect."""
    recovery = Recovery(
        ready_s=READY_S,
        partners=GROUP_NODES - 1,
        partners_away_s=START_S + COSTS["communicator"].seconds,
    )
    return _on_spot(name, reserved_gpus, paces, recovery)


def without_commits(
    name: str, reserved_gpus: int, paces: Sequence[Pace], *, preview_s: float
) -> System:
    """The same, but half-denoised work is lost: half of a preview on each GPU of a lost node, which
    is a smaller part of what all nodes together make."""
    nodes = max(1, len(paces) - 1)
    recovery = Recovery(ready_s=READY_S, again_at_loss_s=preview_s / 2 / nodes)
    return _on_spot(name, reserved_gpus, paces, recovery)


def torchrun(name: str, reserved_gpus: int, paces: Sequence[Pace], schedule: Schedule) -> System:
    """All train as one group. Whenever a node goes or comes, all processes are stopped and started,
    with as many ranks as there are then, and go on from the last checkpoint, which is half of
    Young's interval old."""
    restart_s = START_S + COSTS["communicator"].seconds + COSTS["torchrun waits"].seconds
    written_s, interval_s = COSTS["checkpoint"].seconds, _young_interval_s(schedule)
    recovery = Recovery(
        ready_s=READY_S,
        stop_at_loss_s=COSTS["torchrun notices"].seconds + restart_s,
        stop_at_join_s=restart_s,
        again_at_loss_s=interval_s / 2,
        again_at_join_s=interval_s / 2,
        checkpoint_s=written_s,
        checkpoint_every_s=interval_s,
    )
    return _on_spot(name, reserved_gpus, paces, recovery)


def torchft(name: str, reserved_gpus: int, paces: Sequence[Pace], *, update_s: float) -> System:
    """All train as one group, and go on with the replicas that are left: the update that they were
    at is lost, half of it on average, and they connect anew. A newcomer fetches weights from a
    replica beside the others' work, and all connect anew at the next update."""
    connect_s = COSTS["communicator"].seconds
    recovery = Recovery(
        ready_s=READY_S,
        stop_at_loss_s=COSTS["torchft notices"].seconds + connect_s,
        stop_at_join_s=connect_s,
        again_at_loss_s=update_s / 2,
    )
    return _on_spot(name, reserved_gpus, paces, recovery)


def from_memory(
    name: str, reserved_gpus: int, paces: Sequence[Pace], *, iteration_s: float
) -> System:
    """All train as one group, whose members keep the state after each iteration for each other, as
    Spotlight's trainers do: half of an iteration is made again after a loss. A newcomer takes part
    from the next iteration on."""
    connect_s = COSTS["communicator"].seconds
    recovery = Recovery(
        ready_s=READY_S,
        stop_at_loss_s=COSTS["state"].seconds + connect_s,
        stop_at_join_s=connect_s,
        again_at_loss_s=iteration_s / 2,
    )
    return _on_spot(name, reserved_gpus, paces, recovery)


def lost_batches(
    name: str, reserved_gpus: int, paces: Sequence[Pace], *, batch_s: float, share: float
) -> System:
    """Spot GPUs roll out. Whoever is lost in a rollout, which is that share of the time, takes his
    batch along: it is noticed as torchrun notices, and made again by others."""
    again_s = share * (COSTS["torchrun notices"].seconds + batch_s)
    return _on_spot(name, reserved_gpus, paces, Recovery(ready_s=READY_S, stop_at_loss_s=again_s))


def on_demand(name: str, gpus: int, pace: Pace) -> System:
    """GPUs that stay, all at the reserved price."""
    recovery = Recovery(ready_s=READY_S)
    return System(name=name, reserved_gpus=gpus, paces=(pace,), recovery=recovery, uses_spot=False)


def _on_spot(name: str, reserved_gpus: int, paces: Sequence[Pace], recovery: Recovery) -> System:
    return System(name=name, reserved_gpus=reserved_gpus, paces=tuple(paces), recovery=recovery)


def _young_interval_s(schedule: Schedule) -> float:
    """The best time between checkpoints for the mean time between moments of a schedule at which
    nodes come or go (Young, CACM 17 (1974) 530)."""
    changes = len(set(_moments(schedule)))
    return math.sqrt(2 * COSTS["checkpoint"].seconds * schedule.seconds / max(1, changes))


def _moments(schedule: Schedule) -> Iterable[float]:
    for stay in schedule.stays:
        if stay.from_s + READY_S < stay.until_s:
            yield stay.from_s + READY_S
            if stay.is_taken:
                yield stay.until_s
