"""What must hold whatever arrives: each property takes one input and raises if it does not hold."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from random import Random
from typing import Any, get_args

from benchmarks.fuzz.doorkeeper import AskedDoorkeeper, make_question
from benchmarks.fuzz.inputs import Make, altered, data_of, message_types, mistyped, mutated, packed
from benchmarks.fuzz.secret_files import ReadFiles, make_door, make_key, make_token
from benchmarks.fuzz.server import Server
from spotlight.errors import UserError
from spotlight.join_token import SECRET_BYTES, JoinToken
from spotlight.transport.addresses import control_address, read_address, tcp_address
from spotlight.transport.control import (
    PROTOCOL_VERSION,
    BadInput,
    Kind,
    Rejection,
    decode_envelope,
    decode_message,
    encode_message,
    wire,
)
from spotlight.transport.control.bad_input import DETAIL_LIMIT
from spotlight.transport.control.keys import key_bytes, key_text, place_of

_OPTION = "--join"
_REASONS = get_args(Rejection)


@dataclass(frozen=True)
class Property:
    """One, and how to try it."""

    name: str
    make: Make
    """Makes up an input."""
    check: Callable[[Any], str]
    """Returns what came of an input: what it was taken for, or why it was refused. Whatever it
    raises is a finding."""

    def input(self, number: int) -> Any:
        """The input of that number: always the same."""
        return self.make(Random(f"{self.name} {number}"))


# --- frames and messages ----------------------------------------------------------------


def _frame(frame: bytes) -> str:
    """Taken with its types, and fit to be sent on, or refused with a reason."""
    try:
        message = decode_message(decode_envelope(frame).body)
    except BadInput as error:
        return _refused(error)
    sent_on = encode_message(message)
    assert encode_message(decode_message(sent_on)) == sent_on
    return type(message).__name__


def _payload(payload: bytes) -> str:
    """The same of what two transports say to each other."""
    try:
        received = wire.decode(payload)
    except BadInput as error:
        return _refused(error)
    assert wire.encode(wire.decode(wire.encode(received))) == wire.encode(received)
    return type(received).__name__


def _refused(error: BadInput) -> str:
    assert error.reason in _REASONS
    assert len(str(error)) <= DETAIL_LIMIT + len("...")
    assert str(error).isprintable()
    return error.reason


def _make_frame(rng: Random) -> bytes:
    header = [
        PROTOCOL_VERSION,
        ["tcp://127.0.0.1:1", "node", rng.randrange(2**63)],
        ["tcp://127.0.0.1:2", "coordinator", 0],
        rng.choice([kind.value for kind in Kind]),
        rng.randrange(2**63),
        rng.randrange(2**63),
        rng.choice((None, 1.5)),
        rng.choice(("ordinary", "system")),
    ]
    message = data_of(rng.choice(_messages()))(rng)
    return mutated(packed(altered([*header, altered(message, rng)], rng)), rng)


_messages = functools.cache(message_types)


def _make_payload(rng: Random) -> bytes:
    kind = rng.choice((wire.Hello, wire.Welcome, wire.Refusal, None))
    if kind is None:
        batch = [rng.randbytes(rng.randrange(20)) for _ in range(rng.randrange(5))]
        return mutated(packed(altered(batch, rng)), rng)
    right = {**data_of(kind)(rng), "version": PROTOCOL_VERSION}
    return mutated(packed(altered(right, rng)), rng)


# --- keys, addresses and join tokens ----------------------------------------------------


def _key(text: str) -> str:
    """A key has one text, so that whoever compares texts compares keys."""
    try:
        key = key_bytes(text)
    except ValueError as error:
        return _one_line(error, "refused")
    assert len(key) == 32
    assert key_text(key) == text
    return "taken"


def _address(text: str) -> str:
    """What is taken can be written down and read again."""
    try:
        host, port = read_address(_OPTION, text, to_bind=False)
    except UserError as error:
        return _one_line(error, "refused")
    if port is None:
        return "without a port"
    address = tcp_address(host, port)
    assert control_address(_OPTION, text) == address == control_address(_OPTION, address)
    return "taken"


def _join_token(text: str) -> str:
    """What is taken says where to go, and whose key is there; what is not says nothing of a
    secret."""
    try:
        token = JoinToken.parse(_OPTION, text)
    except UserError as error:
        secret = text.strip().rpartition(".")[2]
        assert len(secret) < 16 or secret not in str(error)
        return _one_line(error, "refused")
    assert JoinToken.parse(_OPTION, str(token)) == token
    assert text.strip().endswith(str(token).rpartition(token.key)[2])
    place = place_of(token.coordinator)
    assert control_address(_OPTION, place) == place
    key_bytes(token.key)
    assert len(token.secret) == SECRET_BYTES
    assert f".{str(token).rpartition('.')[2]}" not in repr(token)
    return "taken"


def _one_line(error: Exception, outcome: str) -> str:
    assert str(error).isprintable()
    return outcome


def _make_place(rng: Random) -> str:
    host = rng.choice(("10.0.0.1", "[::1]", "[fe80::1%eth0]", "spot-7.example.org", "*", "h"))
    return f"{host}:{rng.choice((0, 1, 7070, 65_535, 65_536))}"


def _make_address(rng: Random) -> str:
    return mistyped(rng.choice(("", "tcp://")) + _make_place(rng), rng)


def _make_key(rng: Random) -> str:
    return mistyped(key_text(rng.randbytes(32)), rng)


def _make_join_token(rng: Random) -> str:
    key, secret = key_text(rng.randbytes(32)), rng.randbytes(SECRET_BYTES)
    name = "".join(rng.choices("abcxyz0189", k=6))
    return mistyped(str(JoinToken(_make_place(rng), key, name, secret)), rng)


PURE = (
    Property("frames", _make_frame, _frame),
    Property("control_messages", _make_payload, _payload),
    Property("keys", _make_key, _key),
    Property("addresses", _make_address, _address),
    Property("join_tokens", _make_join_token, _join_token),
)
"""Those that are asked of functions."""


@contextmanager
def properties() -> Iterator[tuple[Property, ...]]:
    """All; within, there are the doorkeeper and the control port that some are asked of."""
    with (
        closing(ReadFiles()) as files,
        closing(AskedDoorkeeper()) as door,
        closing(Server()) as server,
    ):
        yield (
            *PURE,
            Property("door_files", make_door, files.check_door),
            Property("key_files", make_key, files.check_key),
            Property("token_files", make_token, files.check_token),
            Property("doorkeeper", make_question, door.check),
            Property("handshakes", server.make_handshake, server.check_handshake),
            Property("lies", server.make_lies, server.check_lies),
        )
