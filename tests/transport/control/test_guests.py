"""The roles of keys."""

from __future__ import annotations

import pytest

from spotlight.transport.control import Guests


def test_a_key_has_the_role_that_it_was_admitted_with_until_it_is_forgotten() -> None:
    guests = Guests({"one": "node"})
    guests.admit("two", "worker")
    assert (guests.role("one"), guests.role("two"), guests.role("three")) == (
        "node",
        "worker",
        None,
    )
    guests.forget("one")
    guests.forget("nobody")
    assert guests.role("one") is None
    assert len(guests) == 1


def test_a_key_cannot_have_another_role_while_it_is_known() -> None:
    guests = Guests({"one": "node"})
    guests.admit("one", "node")
    with pytest.raises(ValueError, match="the key one is that of a node"):
        guests.admit("one", "operator")
    assert guests.role("one") == "node"
    guests.forget("one")
    guests.admit("one", "operator")
    assert guests.role("one") == "operator"
