"""The slices of an update that others have computed, at the rank that adds them."""

from __future__ import annotations

import asyncio

import msgspec
import structlog

from spotlight.actors.protocol.gradients import AddSlices, SlicesTaken
from spotlight.actors.runtime import Actor
from spotlight.actors.worker.engine import Engine
from spotlight.errors import TransferFailed
from spotlight.types import BundleOffer

log = structlog.get_logger(__name__)

_AT_ONCE = 3
"""Gradients that are fetched at the same time: one connection does not fill a fast link, and more
of them would delay the gradient that is added next."""


class ForeignSlices:
    """Gradients are fetched as soon as they are told of, as their node may be gone in a moment.

    Invariants: only those of the update that is `begun` are here; one that cannot be had is as if
    it had never been told of.
    """

    def __init__(self, actor: Actor, engine: Engine) -> None:
        self._actor = actor
        self._engine = engine
        self._number = -1
        """The number of the update that the rank takes; -1 for none."""
        self._turns = asyncio.Semaphore(_AT_ONCE)
        self._under_way = 0
        """Fetches, now."""
        self._since = 0.0
        """When the first of them began, on the loop's clock, or what they took was counted."""
        self._told: dict[int, BundleOffer] = {}
        self._here: dict[int, bytes] = {}
        self._fetching: dict[int, asyncio.Task[None]] = {}
        self.taken = SlicesTaken()
        """How the rank came to the slices of the updates so far."""

    def begin(self, number: int) -> None:
        """The rank begins with this update; what belongs to another one is dropped."""
        for task in self._fetching.values():
            task.cancel()
        self._number = number
        self._told, self._here, self._fetching = {}, {}, {}

    def note(self, message: AddSlices) -> None:
        """Slices that were computed, of whichever update."""
        if message.number != self._number:
            return
        for done in message.slices:
            if self._told.get(done.place) != done.gradient:
                self._told[done.place] = done.gradient
                task = self._actor.run_task(self._fetch(self._number, done.place, done.gradient))
                self._fetching[done.place] = task

    def is_missing(self, place: int) -> bool:
        """Whether the gradient of a slice is not here; in any thread."""
        return place not in self._here

    def take(self, place: int) -> bytes | None:
        """The gradient of a slice, once; None if it is not here."""
        return self._here.pop(place, None)

    def count_own(self, seconds: float) -> None:
        """The rank has computed a slice."""
        taken = self.taken
        self.taken = msgspec.structs.replace(taken, own=taken.own + 1, own_s=taken.own_s + seconds)

    def count_other(self) -> None:
        """The rank has added a slice of another worker."""
        self.taken = msgspec.structs.replace(self.taken, others=self.taken.others + 1)

    async def _fetch(self, number: int, place: int, offer: BundleOffer) -> None:
        try:
            async with self._turns:
                self._count_fetches(1)
                try:
                    data = await self._engine.fetch(offer)
                finally:
                    self._count_fetches(-1)
        except TransferFailed as error:
            log.info("slice_not_fetched", update=number, place=place, reason=str(error))
        else:
            fetched = self.taken.fetched_bytes + offer.nbytes
            self.taken = msgspec.structs.replace(self.taken, fetched_bytes=fetched)
            if number == self._number:
                self._here[place] = data

    def _count_fetches(self, more: int) -> None:
        """One begins, or ends: the time since the last of these counts if there was any."""
        now = asyncio.get_running_loop().time()
        if self._under_way:
            fetch_s = self.taken.fetch_s + now - self._since
            self.taken = msgspec.structs.replace(self.taken, fetch_s=fetch_s)
        self._since = now
        self._under_way += more
