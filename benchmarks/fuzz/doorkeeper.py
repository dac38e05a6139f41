"""The doorkeeper, asked by whoever is in its process what libzmq never asks.

It must let in those that it knows and nobody else, answer or drop all other questions, and go on.
"""

from __future__ import annotations

import asyncio
from random import Random

import zmq

from benchmarks.fuzz.inputs import mutated
from benchmarks.fuzz.loops import WatchedLoop
from spotlight.transport.control import Guests, KeyPair
from spotlight.transport.control.doorkeeper import Doorkeeper
from spotlight.transport.control.keys import key_bytes

Question = list[bytes]
"""The parts of a message."""

_PLACE = "inproc://zeromq.zap.01"
_GUEST = key_bytes(KeyPair.derived(b"guest").public)
_STRANGER = key_bytes(KeyPair.derived(b"stranger").public)
_NUMBER = b"the good one"
_LIMIT_S = 30.0


def question(key: bytes, number: bytes = b"1") -> Question:
    """As libzmq asks it of a connection with this key."""
    return [b"", b"1.0", number, b"spotlight", b"127.0.0.1", b"", b"CURVE", key]


_RIGHT = question(_GUEST)


def make_question(rng: Random) -> Question:
    """One with parts that are altered, lack, or are too many; often with none."""
    parts = question(rng.choice((_GUEST, _STRANGER, rng.randbytes(32))))
    for _ in range(rng.choice((0, 0, 1, 2, 6))):
        place = rng.randrange(len(parts)) if parts else 0
        other = rng.choice(
            (b"", b"NULL", b"PLAIN", b"GSSAPI", b"2.0", b"global", _GUEST, b"x" * 999)
        )
        match rng.randrange(5):
            case 0:
                parts[place : place + 1] = []
            case 1:
                parts[place:place] = [other]
            case 2:
                parts[place : place + 1] = parts[place : place + 1] * 2
            case 3:
                parts[place : place + 1] = [other]
            case _:
                parts[place : place + 1] = [mutated(part, rng) for part in parts[place : place + 1]]
    return parts or [b""]


class AskedDoorkeeper:
    """One that is asked, until `close`."""

    def __init__(self) -> None:
        self._loop = WatchedLoop()
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._doorkeeper = self._loop.run(self._open())
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.connect(_PLACE)

    def close(self) -> None:
        """Leave nothing behind."""
        self._socket.close(0)
        self._doorkeeper.close()
        self._context.destroy(0)
        self._loop.close()

    def check(self, parts: Question) -> str:
        """Ask that, and then for somebody who may come in: he must be let in as ever."""
        self._socket.send_multipart(parts)
        self._socket.send_multipart(question(_GUEST, _NUMBER))
        answers = self._loop.run(self._answers())
        assert answers.pop() == (_NUMBER, b"200")
        assert len(answers) <= 1, "one question was answered twice"
        if not answers:
            return "dropped"
        (number, status) = answers[0]
        assert number == parts[2]
        let_in = status == b"200"
        known = len(parts) == len(_RIGHT) and all(
            parts[place] == _RIGHT[place] for place in (0, 1, 3, 6, 7)
        )
        assert let_in == known, f"{parts} was answered {status!r}"
        return "let in" if let_in else "refused"

    async def _open(self) -> Doorkeeper:
        guests = Guests({KeyPair.derived(b"guest").public: "node"})
        return Doorkeeper(self._context, KeyPair.new(), guests, self)

    def report_rejected(self, *words: str) -> None:
        """Nobody is told."""

    async def _answers(self) -> list[tuple[bytes, bytes]]:
        """Numbers and statuses, up to that of the good question."""
        found: list[tuple[bytes, bytes]] = []
        async with asyncio.timeout(_LIMIT_S):
            while not found or found[-1][0] != _NUMBER:
                if not self._socket.poll(0):
                    await asyncio.sleep(0)
                    continue
                empty, version, number, status, *_rest = self._socket.recv_multipart()
                assert (empty, version) == (b"", b"1.0")
                found.append((number, status))
        return found
