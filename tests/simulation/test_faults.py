"""Schedules of faults."""

from __future__ import annotations

from collections import Counter

from spotlight_simulation.aims import all_faults
from spotlight_simulation.faults import ANSWERS, KINDS, MESSAGES, draw_faults

SPOT = ["spot-1", "spot-2"]


def draw(seed: int):
    return draw_faults(seed, reserved=["reserved"], spot=SPOT)


def test_a_schedule_follows_from_its_seed() -> None:
    assert draw(7) == draw(7)
    assert draw(7) != draw(8)


def test_faults_come_in_the_order_of_their_times() -> None:
    for seed in range(50):
        times = [fault.at_s for fault in draw(seed)]
        assert times == sorted(times)


def test_every_kind_is_drawn_for_enough_seeds() -> None:
    drawn = Counter(fault.kind for seed in range(500) for fault in draw(seed))
    assert set(drawn) == set(KINDS)
    assert min(drawn.values()) > 300


def test_kinds_that_are_left_out_do_not_come() -> None:
    faults = draw_faults(3, reserved=["reserved"], spot=SPOT, kinds=["kill_node"])
    assert {fault.kind for fault in faults} <= {"kill_node"}


def test_faults_of_a_node_name_one_that_there_is() -> None:
    for seed in range(50):
        for fault in draw(seed):
            assert fault.node in {"", "reserved", *SPOT}


# --- faults that aim ---


def aimed(seed: int, kinds=KINDS, *, drives_session: bool = False):
    nodes = {"reserved": ["reserved"], "spot": SPOT}
    return all_faults(seed, **nodes, kinds=kinds, drives_session=drives_session)


def test_what_aims_follows_from_the_seed() -> None:
    assert aimed(7) == aimed(7)
    assert aimed(7) != aimed(8)


def test_of_a_kind_that_is_left_out_nothing_aims() -> None:
    for seed in range(60):
        assert {fault.kind for fault in aimed(seed, ["partition"])} <= {"partition"}
        assert aimed(seed, ()) == ()


def test_what_aims_is_beside_what_chance_brings_in_two_of_three_rounds() -> None:
    whole = sum(set(draw(seed)) <= set(aimed(seed)) for seed in range(600))
    assert 380 < whole < 440


def test_what_waits_for_a_message_waits_for_one_that_there_is() -> None:
    for seed in range(120):
        for fault in aimed(seed, drives_session=seed % 4 == 3):
            known = ANSWERS if fault.kind == "hold_message" else MESSAGES
            assert fault.message in {"", *known}
