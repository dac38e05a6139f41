"""Faults that aim: each seed has one situation that a promise is about, and faults that bring it
about more often than chance would. A pure function of the seed.

What comes about is counted (`History.situations`). The rarer a situation is by chance, the more
faults are aimed at it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace

from spotlight_simulation.faults import Fault, FaultKind, draw_faults, in_order
from spotlight_simulation.wiretap import RECEIPT_ARRIVED

_Aim = Callable[["_Range"], list[Fault]]

_ORDERS = ("Publish", "Publish", "SaveState", "Train", "TrainerReport")
_DELIVERIES = ("Receipt", "Receipt", "CommitSteps", "Completed", "Grant", "ReturnLease", "Revoke")
_WRITES = (
    "journal.before_commit",
    "journal.commit",
    "journal.after_commit",
    "dispatcher.before_ack",
)


class _Range:
    """Where a seed's faults strike, and when."""

    def __init__(
        self, rng: random.Random, reserved: Sequence[str], spot: Sequence[str], until_s: float
    ) -> None:
        self.rng = rng
        self.reserved = reserved
        self.spot = spot
        self._until_s = until_s

    def at_s(self) -> float:
        """A time."""
        return self.between(2.0, self._until_s)

    def between(self, least: float, most: float) -> float:
        """A number."""
        return round(self.rng.uniform(least, most), 3)

    def several(self, count: int, make: Callable[[float], list[Fault]]) -> list[Fault]:
        """The same at several times."""
        return [fault for _ in range(count) for fault in make(self.at_s())]

    def lost(self, messages: Sequence[str]) -> Callable[[float], list[Fault]]:
        """The next message of one of these types is lost."""
        return lambda at_s: [
            Fault(at_s, "lose_message", lasts_s=10.0, message=self.rng.choice(messages))
        ]

    def restarted(self, failpoint: str) -> Callable[[float], list[Fault]]:
        """The coordinator is killed where it gets to next, and comes back soon."""
        return lambda at_s: [
            Fault(at_s, "coordinator_kill", lasts_s=self.between(0.1, 6.0), failpoint=failpoint)
        ]


def _a_restart_just_after_a_receipt(at: _Range) -> list[Fault]:
    return at.several(4, at.restarted(RECEIPT_ARRIVED))


def _weights_trained_again_while_a_worker_is_out_of_reach(at: _Range) -> list[Fault]:
    def strike(at_s: float) -> list[Fault]:
        node, away_s = at.rng.choice(at.spot), at.between(1.0, 12.0)
        return [
            Fault(at_s, "partition", node, lasts_s=away_s),
            Fault(at_s + 0.2, "lose_trainers", lasts_s=at.between(1.0, 10.0), amount=1),
        ]

    return at.several(2, strike)


def _trainers_are_out_of_reach_while_others_take_their_place(at: _Range) -> list[Fault]:
    """From when they are told to do something."""
    kinds: list[FaultKind] = ["partition", "partition", "pause_node", "one_way_partition"]
    return [
        Fault(
            at.between(2.0, 30.0),
            at.rng.choice(kinds),
            at.reserved[0],
            lasts_s=at.between(61.0, 66.0),
            message=at.rng.choice(("Train", "Publish", "SaveState", "Train")),
        ),
        *at.several(1, _of_trainers(at)),
    ]


def _of_trainers(at: _Range) -> Callable[[float], list[Fault]]:
    """They are lost just as they are told to do something."""
    return lambda at_s: [
        Fault(
            at_s,
            "lose_trainers",
            lasts_s=at.between(0.5, 6.0),
            amount=at.rng.randrange(2),
            message=at.rng.choice(("Train", "Publish", "SaveState", "StartTrainer")),
        )
    ]


def _trainers_are_lost_as_they_are_told_something(at: _Range) -> list[Fault]:
    return at.several(3, _of_trainers(at))


def _trainers_are_lost_before_their_state_is_kept(at: _Range) -> list[Fault]:
    """While others work with the weights that they have published already."""
    orders = [
        Fault(at.at_s(), "lose_message", lasts_s=40.0, amount=number, message="SaveState")
        for number in range(4)
    ]
    losses = at.several(
        3, lambda at_s: [Fault(at_s, "lose_trainers", amount=1, message="CommitSteps")]
    )
    return [*orders, *losses]


def _a_restart_as_trainers_report(at: _Range) -> list[Fault]:
    def strike(at_s: float) -> list[Fault]:
        (restart,) = at.restarted(at.rng.choice(_WRITES))(at_s)
        return [replace(restart, message="TrainerReport")]

    return at.several(4, strike)


def _a_worker_is_out_of_reach_over_a_restart(at: _Range) -> list[Fault]:
    def strike(at_s: float) -> list[Fault]:
        away_s = at.between(3.0, 20.0)
        return [
            Fault(at_s, "partition", at.rng.choice(at.spot), lasts_s=away_s, message="Grant"),
            Fault(at_s + 1.0, "coordinator_kill", lasts_s=at.between(0.1, 3.0)),
        ]

    return at.several(3, strike)


def _a_validation_is_late(at: _Range) -> list[Fault]:
    """All who have time for it are away."""

    def strike(at_s: float) -> list[Fault]:
        return [Fault(at_s, "pool_loss", lasts_s=at.between(12.0, 40.0), message="Train")]

    return [Fault(1.0, "pool_loss", lasts_s=at.between(12.0, 30.0)), *at.several(2, strike)]


def _an_order_to_trainers_is_lost(at: _Range) -> list[Fault]:
    return at.several(8, at.lost(_ORDERS))


def _a_delivery_is_lost(at: _Range) -> list[Fault]:
    return at.several(8, at.lost(_DELIVERIES))


def _a_notice_while_a_commit_is_on_its_way(at: _Range) -> list[Fault]:
    def strike(at_s: float) -> list[Fault]:
        node, lead_s = at.rng.choice(at.spot), at.rng.choice([2.0, 5.0])
        notice = Fault(at_s, "notice_then_kill", node, lasts_s=at.between(1.0, 6.0), amount=lead_s)
        notice = replace(notice, message=at.rng.choice(("CommitSteps", "Grant", "Receipt")))
        return [notice, *at.lost(("CommitSteps", "Receipt"))(at_s)]

    return at.several(3, strike)


def _a_restart_between_two_writes(at: _Range) -> list[Fault]:
    def strike(at_s: float) -> list[Fault]:
        restart = at.restarted(at.rng.choice(_WRITES))(at_s)
        return [*restart, Fault(at_s + 0.5, "lose_trainers", lasts_s=at.between(0.5, 5.0))]

    return [*at.several(2, strike), *at.several(2, at.restarted(at.rng.choice(_WRITES)))]


def _a_plan_comes_late(at: _Range) -> list[Fault]:
    def strike(at_s: float) -> list[Fault]:
        hold = Fault(
            at_s, "hold_message", lasts_s=10.0, amount=at.between(0.3, 3.0), message="NodePlan"
        )
        worker = Fault(at_s, "kill_worker", at.rng.choice(at.spot), amount=at.rng.randrange(4))
        return [hold, worker] if at.rng.random() < 0.3 else [hold]

    return at.several(8, strike)


def _who_keeps_samples_is_lost(at: _Range) -> list[Fault]:
    """With samples that count already."""
    return at.several(
        3,
        lambda at_s: [
            Fault(
                at_s,
                "kill_node",
                at.rng.choice(at.reserved),
                lasts_s=at.between(0.5, 6.0),
                message=at.rng.choice(("Completed", "Receipt", "Train")),
            )
        ],
    )


_OF_JOBS: tuple[_Aim, ...] = (
    _a_restart_just_after_a_receipt,
    _weights_trained_again_while_a_worker_is_out_of_reach,
    _an_order_to_trainers_is_lost,
    _trainers_are_out_of_reach_while_others_take_their_place,
    _a_delivery_is_lost,
    _a_notice_while_a_commit_is_on_its_way,
    _a_restart_between_two_writes,
    _a_plan_comes_late,
    _a_validation_is_late,
    _trainers_are_lost_as_they_are_told_something,
    _trainers_are_lost_before_their_state_is_kept,
    _a_restart_as_trainers_report,
    _a_worker_is_out_of_reach_over_a_restart,
    _who_keeps_samples_is_lost,
)
_OF_TRAINERS = (
    _trainers_are_out_of_reach_while_others_take_their_place,
    _trainers_are_lost_as_they_are_told_something,
)
_OF_SESSIONS: tuple[_Aim, ...] = (
    _a_restart_just_after_a_receipt,
    _a_delivery_is_lost,
    _a_plan_comes_late,
)


def needs_a_spare(seed: int) -> bool:
    """Whether what the seed of a job aims at comes about only if somebody can take the place of
    trainers."""
    return _aim_of(seed, drives_session=False)[0] in _OF_TRAINERS


def all_faults(
    seed: int,
    *,
    reserved: Sequence[str],
    spot: Sequence[str],
    kinds: Sequence[FaultKind],
    until_s: float = 50.0,
    drives_session: bool = False,
) -> tuple[Fault, ...]:
    """What chance brings, and what aims at the situation of the seed: jobs take turns, and so do
    sessions, of which every fourth seed has one. Only these kinds, in the order of their times. In
    every third round of turns chance brings nothing: many situations need time."""
    aim, turn = _aim_of(seed, drives_session=drives_session)
    strikes = _Range(random.Random(f"{seed} aim"), reserved, spot, until_s)
    faults = [fault for fault in aim(strikes) if fault.kind in kinds]
    if turn % 3 != 1 or not faults:
        faults += draw_faults(seed, reserved=reserved, spot=spot, kinds=kinds, until_s=until_s)
    return in_order(faults)


def _aim_of(seed: int, *, drives_session: bool) -> tuple[_Aim, int]:
    """And in which round of turns it is."""
    aims = _OF_SESSIONS if drives_session else _OF_JOBS
    turn, place = divmod(seed // 4 if drives_session else seed - seed // 4, len(aims))
    return aims[place], turn
