"""Files of keys, tokens and of whom a coordinator knows, after others or a disk had their way with
them: they are read as what they are, or refused in one line that shows nothing of a secret.
"""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import msgspec

from benchmarks.fuzz.inputs import altered, data_of, mutated
from benchmarks.fuzz.loops import WatchedLoop
from spotlight.actors.coordinator.key_ring import VERSION, KeyRing, door_file
from spotlight.errors import UserError
from spotlight.join_token import SECRET_BYTES, JoinToken
from spotlight.policies.door.key_book import Node, Token
from spotlight.running.join_option import resolve
from spotlight.running.key_files import key_pair_of
from spotlight.transport.control import Dialect, KeyPair
from spotlight.types import TokenRole
from spotlight_simulation.memory_network import MemoryNetwork

_SECRET = bytes(range(SECRET_BYTES))
_PAIR = KeyPair.derived(b"a file")
_TOKEN = str(JoinToken("10.0.0.1:7070", _PAIR.public, "ab12cd", _SECRET))
_NESTED = b"[" * 100_000
_NOW = 1_800_000_000.0


@dataclass(frozen=True)
class SecretFile:
    """What is in a file, and who may read and write it."""

    data: bytes
    mode: int


def make_door(rng: Random) -> SecretFile:
    """The file of a coordinator's door."""
    tokens = [_token(rng, number) for number in range(rng.randrange(4))]
    nodes = [_node(rng, number) for number in range(rng.randrange(4))]
    book = altered({"tokens": tokens, "nodes": nodes}, rng)
    whole = altered({"version": VERSION, "book": book}, rng)
    try:
        data = msgspec.json.encode(whole)
    except (TypeError, ValueError):  # it holds what JSON cannot
        data = _NESTED
    return _file(data, rng)


def make_key(rng: Random) -> SecretFile:
    """A file of a key."""
    return _file(f"{_PAIR.secret}\n".encode(), rng)


def make_token(rng: Random) -> SecretFile:
    """A file of a join token."""
    return _file(f"{_TOKEN}\n".encode(), rng)


def _file(data: bytes, rng: Random) -> SecretFile:
    mode = rng.choice((0o600, 0o600, 0o600, 0o600, 0o400, 0o640, 0o644, 0o666, 0o4600))
    return SecretFile(mutated(data, rng), mode)


def _token(rng: Random, number: int) -> Any:
    roles: tuple[TokenRole, ...] = ("node", "node", "operator", "submitter", "observer")
    role = rng.choice(roles)
    made = Token(
        f"tok{rng.choice((number, 0))}",
        KeyPair.derived(b"token %d" % number).public,
        role,
        "spot" if role == "node" else None,
        rng.choice((1, 50)),
        rng.choice((None, 0.0, _NOW - 1, _NOW + 1e6)),
        rng.choice((0, 1, 50)),
        rng.choice((None, None, _NOW - 5.0)),
    )
    return rng.choice((msgspec.to_builtins(made), data_of(Token)(rng)))


def _node(rng: Random, number: int) -> Any:
    made = Node(
        f"node-{rng.choice((number, 0))}",
        KeyPair.derived(b"node %d" % number).public,
        rng.choice(("reserved", "spot")),
        rng.choice(("", "tok0")),
        rng.choice((0.0, _NOW, _NOW + 1e9)),
        tuple(KeyPair.derived(b"%d %d" % (number, i)).public for i in range(rng.randrange(3))),
        rng.choice((None, None, _NOW - 5.0)),
    )
    return rng.choice((msgspec.to_builtins(made), data_of(Node)(rng)))


class ReadFiles:
    """A folder in which they are read; there until `close`."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="spotlight-fuzz-")
        self._loop = WatchedLoop()
        self._door = door_file(Path(self._folder.name))
        self._file = Path(self._folder.name) / "file"

    def close(self) -> None:
        """Leave nothing behind."""
        self._loop.close()
        self._folder.cleanup()

    def check_door(self, given: SecretFile) -> str:
        """Whom it names is let in, each as one thing; or nobody is, and the file stays as it is."""
        _write(self._door, given)
        outcome = self._loop.run(self._open_door(given))
        assert self._door.read_bytes() == given.data
        return outcome

    async def _open_door(self, given: SecretFile) -> str:
        transport = MemoryNetwork(Random(0)).transport("coordinator")
        try:
            keys = KeyRing(transport, self._door, clock=lambda: _NOW)
        except UserError as error:
            return _refused(error, given)
        assert given.mode in (0o600, 0o400)
        guests = keys.guest_list(Dialect(), {})
        assert len({token.id for token in guests.tokens}) == len(guests.tokens)
        assert len({node.name for node in guests.nodes}) == len(guests.nodes)
        keys.sweep()
        return "nobody" if not transport.guests else "taken"

    def check_key(self, given: SecretFile) -> str:
        """It is the pair's, or no pair's."""
        _write(self._file, given)
        try:
            pair, was_there = key_pair_of("--key-file", self._file)
        except UserError as error:
            return _refused(error, given)
        assert was_there
        assert given.mode in (0o600, 0o400)
        assert KeyPair.of(pair.secret) == pair
        return "taken"

    def check_token(self, given: SecretFile) -> str:
        """It is a token, or none."""
        _write(self._file, given)
        try:
            token = resolve("--join", f"@{self._file}")
        except UserError as error:
            return _refused(error, given)
        assert given.mode in (0o600, 0o400)
        assert len(token.secret) == SECRET_BYTES
        return "taken"


def _write(path: Path, given: SecretFile) -> None:
    path.unlink(missing_ok=True)
    path.write_bytes(given.data)
    os.chmod(path, given.mode)


def _refused(error: UserError, given: SecretFile) -> str:
    assert str(error).isprintable()
    assert len(str(error)) < 1000
    assert _PAIR.secret not in str(error)
    assert _TOKEN.rpartition(".")[2] not in str(error)
    return "open to others" if given.mode not in (0o600, 0o400) else "refused"
