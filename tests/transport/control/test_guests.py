"""Whose connections a process takes."""

from __future__ import annotations

import pytest

from spotlight.transport.control import Guests


def test_a_key_that_nobody_admitted_has_no_role() -> None:
    assert Guests({"a": "node"}).role("b") is None


def test_a_key_that_was_admitted_has_its_role_until_it_is_forgotten() -> None:
    guests = Guests()
    guests.admit("a", "node")
    guests.admit("a", "node")
    assert (guests.role("a"), len(guests)) == ("node", 1)
    guests.forget("a")
    guests.forget("a")
    assert (guests.role("a"), len(guests)) == (None, 0)


def test_a_key_means_one_thing() -> None:
    guests = Guests({"a": "node"})
    with pytest.raises(ValueError, match="the key a is that of a node"):
        guests.admit("a", "operator")
    assert guests.role("a") == "node"
