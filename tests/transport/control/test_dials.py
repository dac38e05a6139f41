"""Which addresses may be dialled."""

from __future__ import annotations

from spotlight.transport.control.dials import Dials


def dials(at_once: int = 3) -> Dials:
    return Dials(pause_s=1.0, longest_pause_s=8.0, at_once=at_once)


def pauses(table: Dials, address: str, tries: int) -> list[float]:
    """How long an address is not dialled after each of so many tries in vain."""
    now, found = 0.0, []
    for _ in range(tries):
        table.began(address)
        table.failed(address, "nobody", now)
        began = now
        while table.refusal(address, now):
            now += 0.5
        found.append(now - began)
    return found


def test_an_address_that_was_never_reached_is_tried_less_and_less_often() -> None:
    assert pauses(dials(), "a", 7) == [1.0, 2.0, 4.0, 8.0, 8.0, 8.0, 8.0]


def test_an_address_that_was_reached_before_is_tried_as_often_as_ever() -> None:
    table = dials()
    table.began("a")
    table.reached("a")
    assert pauses(table, "a", 5) == [1.0] * 5


def test_each_address_is_counted_for_itself() -> None:
    table = dials()
    pauses(table, "a", 5)
    assert pauses(table, "b", 2) == [1.0, 2.0]


def test_a_refusal_says_what_went_wrong_and_how_often() -> None:
    table = dials()
    pauses(table, "a", 2)
    table.failed("a", "no connection in time", 100.0)
    assert table.refusal("a", 100.0) == "no connection in time; tried 3 times"


def test_only_so_many_are_dialled_at_once() -> None:
    table = dials(at_once=2)
    for address in ("a", "b"):
        assert table.refusal(address, 0.0) == ""
        table.began(address)
    assert table.refusal("c", 0.0) == "2 other addresses are being dialled already"
    table.failed("a", "nobody", 0.0)
    assert table.refusal("c", 0.0) == ""
    table.began("c")
    table.reached("b")
    assert table.refusal("d", 0.0) == ""


def test_only_the_latest_addresses_are_remembered() -> None:
    table = dials()
    pauses(table, "first", 4)
    for number in range(2000):
        table.failed(f"made up {number}", "nobody", 0.0)
    assert table.refusal("first", 0.0) == ""
    assert table.refusal("made up 1999", 0.0) != ""
