"""The one string by which somebody joins."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spotlight.errors import UserError
from spotlight.join_token import JoinToken
from spotlight.transport.control.keys import KeyPair, key_of, place_of

KEY = KeyPair.derived(b"coordinator").public
TOKEN = JoinToken("10.0.0.1:7070", KEY, "ab12cd", bytes(range(16)))
PLACES = ["10.0.0.1:7070", "coordinator.example.org:1", "[fe80::1]:65535", "localhost:7070"]


@given(secret=st.binary(min_size=16, max_size=16), place=st.sampled_from(PLACES))
def test_a_token_is_read_as_it_was_written(secret: bytes, place: str) -> None:
    token = JoinToken(place, KEY, "ab12cd", secret)
    assert JoinToken.parse("--join", str(token)) == token
    assert JoinToken.parse("--join", f"  {token}\n") == token


def test_a_token_says_where_the_coordinator_is_and_which_key_it_has() -> None:
    assert place_of(TOKEN.coordinator) == "tcp://10.0.0.1:7070"
    assert key_of(TOKEN.coordinator) == KEY


def test_the_keys_of_a_token_are_derived_from_its_secret_alone() -> None:
    moved = JoinToken("10.9.9.9:1", KEY, "zzzzzz", TOKEN.secret)
    assert moved.keys == TOKEN.keys
    assert JoinToken(TOKEN.place, KEY, TOKEN.id, b"x" * 16).keys != TOKEN.keys


def test_a_repr_shows_no_secret() -> None:
    assert str(TOKEN).rpartition(".")[2] not in repr(TOKEN)
    assert TOKEN.keys.secret not in repr(TOKEN.keys)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "sl1",
        "10.0.0.1:7070",
        str(TOKEN)[:-1],
        str(TOKEN) + "x",
        str(TOKEN).replace("sl1", "sl2"),
        str(TOKEN).replace(".ab12cd.", ".AB12CD."),
        str(TOKEN).replace(KEY, KEY[1:]),
        str(TOKEN).replace("10.0.0.1:7070", "10.0.0.1"),
        str(TOKEN).replace("10.0.0.1:7070", "10.0.0.1:0"),
        str(TOKEN).replace("10.0.0.1:7070", "tcp:// :7070"),
        str(TOKEN).replace("10.0.0.1:7070", "\x1b[2J:7070"),
    ],
)
def test_what_is_no_token_is_refused_by_the_option_and_without_its_secret(text: str) -> None:
    with pytest.raises(UserError, match="--join") as refusal:
        JoinToken.parse("--join", text)
    assert str(TOKEN).rpartition(".")[2] not in str(refusal.value)
    assert str(refusal.value).isprintable()


def test_a_place_with_its_protocol_is_the_same_place() -> None:
    text = str(TOKEN).replace("sl1.", "sl1.tcp://")
    assert JoinToken.parse("--join", text) == TOKEN


def test_a_secret_has_one_text() -> None:
    others = [f"{str(TOKEN)[:-1]}{last}" for last in "BCDEFGHIJKLMNOP"]
    assert str(TOKEN).endswith("w")
    for text in others:
        with pytest.raises(UserError, match="no join token"):
            JoinToken.parse("--join", text)
