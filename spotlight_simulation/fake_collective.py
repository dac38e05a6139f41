"""How simulated members come together (`engine.Meeting`), and denoise as one (its `Collective`)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import cast

from spotlight.actors.worker import engine
from spotlight.errors import TransportError
from spotlight.types import Request
from spotlight_simulation.fake_denoising import FakeDenoising, State
from spotlight_simulation.fake_groups import FakeGroup

_MEET_S = 0.02


class FakeCollective:
    """See `engine.Collective`."""

    def __init__(self, group: FakeGroup, rank: int) -> None:
        self._group = group
        self.rank = rank
        self.world = group.size
        self._received = self._steps = 0

    def send(self, command: tuple[int, int, int]) -> None:
        """See `engine.Collective`."""
        self._group.send(self.rank, command)

    def receive(self) -> tuple[int, int, int]:
        """See `engine.Collective`."""
        return cast("tuple[int, int, int]", self._next())

    def send_latents(self, denoising: engine.Denoising) -> None:
        """See `engine.Collective`."""
        self._group.send(self.rank, cast(FakeDenoising, denoising).state)

    def receive_latents(self, model: engine.Model, requests: Sequence[Request], step: int) -> State:
        """See `engine.Collective`."""
        return cast(State, self._next())

    def step(self, denoising: engine.Denoising) -> None:
        """See `engine.Collective`."""
        here = cast(FakeDenoising, denoising)
        after = here.computed(self.world)
        self._steps += 1
        self._group.require_alike(self._group.gather(self.rank, self._steps, after))
        here.reach(after, counts=self.rank == 0)

    def close(self) -> None:
        """See `engine.Collective`."""
        self._group.break_up("a member has left")

    abandon = close

    def _next(self) -> object:
        self._received += 1
        return self._group.receive(self._received - 1)


class FakeMeeting:
    """See `engine.Meeting`."""

    def __init__(
        self, group: FakeGroup, rank: int, send: Callable[[str, bytes], None], limit_s: float
    ) -> None:
        self._group = group
        self._limit_s = limit_s
        self._rank = rank
        self._send = send
        self._absent = {_name(each) for each in range(group.size)} - {_name(rank)}
        self._closed = ""
        self._changed = asyncio.Event()

    def deliver(self, key: str, value: bytes) -> None:
        """See `engine.Meeting`."""
        self._absent.discard(key)
        if not self._absent:
            self._changed.set()

    def close(self, reason: str) -> None:
        """See `engine.Meeting`."""
        self._closed = reason
        self._changed.set()

    async def collective(self) -> FakeCollective:
        """See `engine.Meeting`."""
        self._send(_name(self._rank), b"here")
        try:
            async with asyncio.timeout(self._limit_s):
                await self._changed.wait()
        except TimeoutError as error:
            missing = min(self._absent, default="word")  # the last came in the same moment
            raise TransportError(f"no {missing} after {self._limit_s:g} s") from error
        if self._closed:
            raise TransportError(self._closed)
        await asyncio.sleep(_MEET_S)
        return FakeCollective(self._group, self._rank)


def _name(rank: int) -> str:
    return f"rank {rank}"
