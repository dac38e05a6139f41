"""How much room a store has for what others leave in it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import pytest

from spotlight.errors import TransferFailed
from spotlight.transport.tensors.quota import Quota


def quota(limit: int | None = 1000, free: Callable[[], int] = lambda: 10**9) -> Quota:
    return Quota(limit, free)


def fits(table: Quota, nbytes: int, owner: str = "a", *, alone: bool = True) -> bool:
    try:
        with table.under_way(owner, nbytes, alone=alone):
            return True
    except TransferFailed:
        return False


def test_what_is_kept_and_what_is_under_way_fit_the_limit_together() -> None:
    table = quota()
    table.keep("a", "x", 300)
    with table.under_way("a", 400, alone=True):
        assert fits(table, 300)
        assert not fits(table, 301)
    assert fits(table, 700)
    assert not fits(table, 701)


def test_what_breaks_off_gives_its_room_back() -> None:
    table = quota()
    with contextlib.suppress(OSError), table.under_way("a", 1000, alone=True):
        raise OSError
    assert fits(table, 1000)


def test_a_bundle_that_is_replaced_or_dropped_gives_its_room_back() -> None:
    table = quota()
    table.keep("a", "samples/1", 600)
    table.keep("a", "samples/1", 400)
    assert fits(table, 600)
    table.keep("a", "samples/2", 500)
    table.keep("a", "samples-old", 100)
    table.drop("samples")
    assert fits(table, 900)
    assert not fits(table, 901)
    table.drop("samples-old")
    table.drop("never there")
    assert fits(table, 1000)


def test_what_was_there_before_takes_room() -> None:
    table = quota()
    table.found({"x": 300, "y": 300})
    assert not fits(table, 401)
    table.drop("x")
    assert fits(table, 700)


def test_among_several_none_may_take_more_than_half() -> None:
    table = quota()
    table.keep("a", "x", 400)
    assert fits(table, 500, alone=True)
    assert fits(table, 100, alone=False)
    assert not fits(table, 101, alone=False)
    assert fits(table, 500, "b", alone=False)


def test_without_a_limit_there_is_as_much_room_as_the_disk_has() -> None:
    table = quota(None, free=lambda: 500)
    table.keep("a", "x", 10_000)
    assert fits(table, 500)
    assert not fits(table, 501)
    with table.under_way("a", 300, alone=True):
        assert not fits(table, 201)


def test_a_refusal_says_how_much_there_is() -> None:
    table = quota()
    table.keep("a", "x", 400)
    with pytest.raises(
        TransferFailed, match=r"601 bytes do not fit: 400 of 1000 .* are taken.*--store"
    ):
        table.under_way("a", 601, alone=True).__enter__()
    with pytest.raises(
        TransferFailed, match=r"101 bytes do not fit: a already uses 400 of the 500 that one"
    ):
        table.under_way("a", 101, alone=False).__enter__()


def test_bundles_are_counted_however_small_they_are() -> None:
    table = Quota(1000, lambda: 10**9, most=4)
    for number in range(2):
        assert fits(table, 0, "a", alone=False)
        table.keep("a", f"a/{number}", 0)
    assert not fits(table, 0, "a", alone=False)
    table.keep("a", "a/1", 0)
    table.forget("never there")
    assert not fits(table, 0, "a", alone=False)
    assert fits(table, 0, "b", alone=False)
    assert fits(table, 0, "a")
    table.drop("a/0")
    assert fits(table, 0, "a", alone=False)
    for number in range(3):
        table.keep("b", f"b/{number}", 0)
    assert not fits(table, 0, "c", alone=False)
