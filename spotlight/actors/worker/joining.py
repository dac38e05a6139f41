"""How the members of a group that forms find each other.

Each introduces itself when it is planned into the group, though it may have to end a step before it
can come, and then sets its entries of the rendezvous. Nobody connects before all have introduced
themselves and are of one kind. Messages may be lost: a member introduces itself again until the
group has formed, and is then sent again what it has missed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from spotlight.actors.protocol.down import GroupPlan, Seat
from spotlight.actors.protocol.peers import Introduce
from spotlight.errors import TransportError

Tell = Callable[[Seat, Introduce], None]


class Entries(Protocol):
    """Where the entries of the others go."""

    def deliver(self, key: str, value: bytes) -> None:
        """Another member has set this entry."""

    def close(self, reason: str) -> None:
        """Whoever waits for the group fails with this reason."""


class JoiningGroup:
    """One member's end of it.

    Args:
        model: fingerprint of the job and its model.
        tell: sends a message to the member on a seat.
    """

    def __init__(self, order: GroupPlan, rank: int, model: str, tell: Tell) -> None:
        self._order = order
        self._rank = rank
        self._model = model
        self._tell = tell
        self._models = {rank: model}
        """The models of those who were heard of, by rank."""
        self._settled = asyncio.Event()
        """All were heard of, or the group cannot form."""
        self._own_entries: dict[str, bytes] = {}
        self._entries: dict[str, bytes] = {}
        self._reader: Entries | None = None
        self._failure = ""

    @property
    def culprits(self) -> tuple[str, ...]:
        """Who has another model than rank 0, or else who was not heard of."""
        return self._named(self._misfits() or self._absent())

    def introduce(self) -> None:
        """To all others."""
        self._tell_others("", b"")

    def set_entry(self, key: str, value: bytes) -> None:
        """Set an entry for all others."""
        self._own_entries[key] = value
        self._tell_others(key, value)

    def accept(self, message: Introduce) -> None:
        """Another member introduces itself, or sets an entry."""
        self._models[message.rank] = message.model
        if misfits := self._misfits():
            names, first = ", ".join(self._named(misfits)), self._order.seats[0].worker
            self.close(f"another model than {first} has {names}")
        elif not self._absent():
            self._settled.set()
        if message.key:
            self._entries[message.key] = message.value
            if self._reader is not None:
                self._reader.deliver(message.key, message.value)
        else:
            for key, value in self._own_entries.items():
                self._tell(self._order.seats[message.rank], self._introduction(key, value))

    def deliver_to(self, reader: Entries) -> None:
        """Entries go there, those that are set already too."""
        self._reader = reader
        for key, value in self._entries.items():
            reader.deliver(key, value)

    async def all_introduced(self) -> None:
        """Wait for that; raises `TransportError` if the group cannot form."""
        await self._settled.wait()
        if self._failure:
            raise TransportError(self._failure)

    def give_up_absent(self) -> None:
        """The group does not form if anybody was not heard of by now."""
        if absent := self._absent():
            self.close(f"nothing was heard of {', '.join(self._named(absent))}")

    def close(self, reason: str) -> None:
        """The group does not form."""
        self._failure = self._failure or reason
        self._settled.set()
        if self._reader is not None:
            self._reader.close(reason)

    def _misfits(self) -> list[int]:
        first = self._models.get(0)
        return sorted(r for r, model in self._models.items() if first and model != first)

    def _absent(self) -> list[int]:
        return [rank for rank in range(len(self._order.seats)) if rank not in self._models]

    def _named(self, ranks: list[int]) -> tuple[str, ...]:
        return tuple(self._order.seats[rank].worker for rank in ranks)

    def _tell_others(self, key: str, value: bytes) -> None:
        for rank, seat in enumerate(self._order.seats):
            if rank != self._rank:
                self._tell(seat, self._introduction(key, value))

    def _introduction(self, key: str, value: bytes) -> Introduce:
        return Introduce(self._order.epoch, self._rank, self._model, key, value)
