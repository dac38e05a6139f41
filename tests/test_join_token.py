"""Join tokens as somebody copies them."""

from __future__ import annotations

import pytest

from spotlight.errors import UserError
from spotlight.join_token import JoinToken
from spotlight.transport.control import KeyPair

KEY = KeyPair.derived(b"coordinator").public
TOKEN = JoinToken("10.0.0.1:7070", KEY, "abc123", bytes(range(16)))


def test_a_token_survives_being_written_down() -> None:
    assert JoinToken.parse("--join", f"  {TOKEN}\n") == TOKEN


def test_a_place_with_its_protocol_is_the_same_place() -> None:
    text = str(TOKEN).replace("sl1.", "sl1.tcp://")
    assert JoinToken.parse("--join", text).coordinator == f"tcp://10.0.0.1:7070/{KEY}"


def test_a_secret_has_one_text() -> None:
    text = str(TOKEN)
    assert text[-1] in "AQgw"
    with pytest.raises(UserError, match="no join token"):
        JoinToken.parse("--join", text[:-1] + chr(ord(text[-1]) + 1))


def test_a_refusal_shows_nothing_of_the_secret() -> None:
    with pytest.raises(UserError) as refused:
        JoinToken.parse("--join", f"{TOKEN}x")
    assert str(TOKEN).rpartition(".")[2] not in str(refused.value)
    assert str(TOKEN).rpartition(".")[2] not in repr(TOKEN)
