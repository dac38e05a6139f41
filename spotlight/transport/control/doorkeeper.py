"""Who comes in: CURVE on every socket, and a handler of ZAP (ZeroMQ RFC 27) that lets guests in.

libzmq asks the doorkeeper about every connection that was made to us, with the key that the other
side has proved (RFC 26), before anything else of it is read; and it is told by every message whose
key that was. Whom we dial must prove the key that its address says.

Invariant: when nobody answers libzmq's question any more, nobody comes in
(`ZAP_ENFORCE_DOMAIN`; without it everybody would).
"""

from __future__ import annotations

from typing import Protocol

import zmq

from spotlight.transport.control.bad_input import Rejection
from spotlight.transport.control.guests import Guests
from spotlight.transport.control.keys import KeyPair, key_bytes, key_text
from spotlight.transport.control.reader import SocketReader

_PLACE = "inproc://zeromq.zap.01"
_DOMAIN = b"spotlight"
_VERSION = b"1.0"
_KEY_BYTES = 32
_ADMITTED, _REFUSED = (b"200", b"OK"), (b"400", b"not admitted")


class DoorOwner(Protocol):
    """Whose door it is."""

    def report_rejected(self, address: str, reason: Rejection, detail: str) -> None:
        """Somebody was not let in."""


class Doorkeeper:
    """See the module's docstring. One for each context of ZeroMQ.

    Args:
        owner: hears of everybody who was not let in.
    """

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        keys: KeyPair,
        guests: Guests,
        owner: DoorOwner,
    ) -> None:
        self._keys = keys
        self._guests = guests
        self._owner = owner
        self._socket = context.socket(zmq.ROUTER)
        self._socket.setsockopt(zmq.LINGER, 0)
        # Each connection asks over a pipe of its own, and has one question.
        self._socket.setsockopt(zmq.RCVHWM, 0)
        self._socket.setsockopt(zmq.SNDHWM, 0)
        self._socket.bind(_PLACE)
        self._reader = SocketReader(self._socket, self._answer)

    def secure_bound(self, socket: zmq.Socket[bytes]) -> None:
        """Before a socket is bound: have all that connect to it asked for their key."""
        socket.setsockopt(zmq.CURVE_SERVER, 1)
        socket.setsockopt(zmq.CURVE_SECRETKEY, key_bytes(self._keys.secret))
        socket.setsockopt(zmq.ZAP_DOMAIN, _DOMAIN)
        socket.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)

    def secure_dialing(self, socket: zmq.Socket[bytes], key: str) -> None:
        """Before a socket connects: accept whoever has this key, and nobody else."""
        socket.setsockopt(zmq.CURVE_SERVERKEY, key_bytes(key))
        socket.setsockopt(zmq.CURVE_PUBLICKEY, key_bytes(self._keys.public))
        socket.setsockopt(zmq.CURVE_SECRETKEY, key_bytes(self._keys.secret))

    def key_of_sender(self, payload: zmq.Frame) -> str:
        """Whose key the sender of a message has proved."""
        return str(payload.get("User-Id"))

    def close(self) -> None:
        """Let nobody in any more."""
        self._reader.close()
        self._socket.close(0)

    def _answer(self) -> int:
        identity, *request = self._socket.recv_multipart(zmq.NOBLOCK)
        match request:
            case [b"", version, number, domain, _, _, b"CURVE", key] if (
                version == _VERSION and domain == _DOMAIN and len(key) == _KEY_BYTES
            ):
                self._judge(identity, number, key_text(key))
            case _:
                self._owner.report_rejected("", "not_admitted", "a connection that proved no key")
        return 1

    def _judge(self, identity: bytes, number: bytes, key: str) -> None:
        is_guest = self._guests.role(key) is not None
        status = _ADMITTED if is_guest else _REFUSED
        user = key.encode() if is_guest else b""
        self._socket.send_multipart([identity, b"", _VERSION, number, *status, user, b""])
        self._reader.poke()
        if not is_guest:
            self._owner.report_rejected(
                "", "not_admitted", f"a connection with the key {key}, which is no guest"
            )
