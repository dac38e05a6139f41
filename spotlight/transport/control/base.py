"""What every control transport does: carry frames between processes, in order, and say when a
process is gone.

A transport knows addresses and frames, not actors. Peers are named by address and process
incarnation, because a process that comes back at the same address is another one. An address says
the key of its process (`keys`), which the transport has proved by the time it names the address.

Invariants that the contract tests check on every transport:
- frames from one process to another arrive in the order they were sent, at most once;
- `send` never blocks: it queues, or raises `PeerUnreachable` or `MailboxFull`;
- each `peer_up` is followed by exactly one `peer_lost` for the same incarnation, before the next
  `peer_up` of that address, unless this side closes first;
- after `aclose` no callback is called;
- nobody is up whose key is not a guest's, and nothing of it is received;
- whoever sends what no process of ours does is reported by `input_rejected` and cut off; no other
  peer notices.
"""

from __future__ import annotations

from typing import Protocol

from spotlight.transport.control.bad_input import Rejection
from spotlight.transport.control.dialect import Dialect
from spotlight.transport.control.guests import Guests

NOT_ADMITTED = "not admitted"
"""The reason of a lost peer that does not take connections of our key."""


class TransportListener(Protocol):
    """What a transport calls, always from the event loop. None of these may raise."""

    def frame_received(self, address: str, frame: bytes) -> None:
        """A frame arrived from the process at `address`. Its content is not yet checked."""

    def frame_undelivered(self, address: str, frame: bytes) -> None:
        """A queued frame was not sent because the peer is gone."""

    def peer_up(self, address: str, incarnation: int) -> None:
        """A connection to that process stands."""

    def peer_lost(self, address: str, incarnation: int, reason: str) -> None:
        """No connection to that process any more; incarnation 0 if none ever stood. The reason is
        `NOT_ADMITTED` if the process does not take connections of our key."""

    def other_version(self, address: str, dialect: Dialect) -> None:
        """Who dialled, or was dialled, speaks another dialect, so that it was refused. Of one that
        was dialled this is said before its `peer_lost`."""

    def input_rejected(self, address: str, reason: Rejection, detail: str) -> None:
        """The transport itself refused something and saw to the peer. `address` is what the peer
        calls itself; empty if it did not say."""


class ControlTransport(Protocol):
    """One process's end of the control network."""

    guests: Guests
    """Whose connections it takes, and as what."""
    dialect: Dialect
    """What this process speaks. Who speaks another one is not connected."""

    @property
    def address(self) -> str:
        """Where others reach this process; known after `start`."""
        ...

    @property
    def incarnation(self) -> int:
        """Differs for every process that ever used this address; positive, below 2**43."""
        ...

    async def start(self, listener: TransportListener) -> None:
        """Begin to receive. Raises `AddressInUse` naming the address."""
        ...

    def send(self, address: str, frame: bytes) -> None:
        """Queue a frame, connecting first if need be.

        Raises `PeerUnreachable` when there is no way to the peer, `MailboxFull` when too much is
        queued for it already, and `FrameRejected` when the frame is over `FRAME_LIMIT`.
        """
        ...

    def cut_off(self, address: str, reason: str) -> None:
        """Hear nothing more from the process that is connected as `address`: the connection ends
        here with `peer_lost` before this returns, and there with the reason. The same incarnation
        is refused when it connects again. May be called from `frame_received`; nothing happens when
        no such process is connected."""
        ...

    def dismiss(self, key: str, reason: str) -> None:
        """Take no connections of a key any more; those that it has end before this returns, with
        `peer_lost` here and the reason there."""
        ...

    async def aclose(self) -> None:
        """Send what is queued within a short time, then disconnect. Idempotent."""
        ...

    def abort(self) -> None:
        """Disconnect at once and drop what is queued, as if the process were killed. Idempotent."""
        ...
