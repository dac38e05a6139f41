"""The asks of this process that wait for their answers."""

from __future__ import annotations

import asyncio
import itertools

from spotlight.actors.runtime.envelopes import Failure
from spotlight.errors import (
    ActorDied,
    ActorError,
    AskTimeout,
    MailboxFull,
    NotAllowed,
    RemoteError,
)
from spotlight.transport.control import ActorRef, Message


class PendingAsk:
    """One ask: whom, and the future of its reply."""

    __slots__ = ("correlation", "future", "ref", "timer")

    def __init__(
        self,
        correlation: int,
        ref: ActorRef,
        future: asyncio.Future[Message],
        timer: asyncio.TimerHandle,
    ) -> None:
        self.correlation = correlation
        self.ref = ref
        self.future = future
        self.timer = timer

    def fail(self, error: ActorError) -> None:
        """End it with an error, unless it has ended."""
        if not self.future.done():
            self.future.set_exception(error)

    def settle(self, reply: Message) -> None:
        """End it with a reply, or with the error that a failure stands for."""
        if isinstance(reply, Failure):
            self.fail(_error_of(reply))
        elif not self.future.done():
            self.future.set_result(reply)


class PendingAsks:
    """All asks under way, by correlation id."""

    def __init__(self) -> None:
        self._asks: dict[int, PendingAsk] = {}
        self._correlations = itertools.count(1)

    def __len__(self) -> int:
        return len(self._asks)

    def open(self, ref: ActorRef, timeout_s: float) -> PendingAsk:
        """Begin an ask; it fails with `AskTimeout` by itself. Every ask must be closed."""
        loop = asyncio.get_running_loop()
        correlation = next(self._correlations)
        timer = loop.call_later(timeout_s, self._time_out, correlation, timeout_s)
        ask = PendingAsk(correlation, ref, loop.create_future(), timer)
        self._asks[correlation] = ask
        return ask

    def close(self, ask: PendingAsk) -> None:
        """Forget an ask, however it ended."""
        ask.timer.cancel()
        self._asks.pop(ask.correlation, None)

    def find(self, correlation: int) -> PendingAsk | None:
        """The ask that waits for an answer with this id, if it still does."""
        ask = self._asks.get(correlation)
        return None if ask is None or ask.future.done() else ask

    def all(self) -> list[PendingAsk]:
        """Those that are not closed."""
        return list(self._asks.values())

    def _time_out(self, correlation: int, timeout_s: float) -> None:
        ask = self._asks.get(correlation)
        if ask is not None:
            ask.fail(AskTimeout(f"{ask.ref} did not answer within {timeout_s:g} s"))


def _error_of(failure: Failure) -> ActorError:
    if failure.error == "ActorDied":
        return ActorDied(failure.message)
    if failure.error == "MailboxFull":
        return MailboxFull(failure.message)
    if failure.error == "NotAllowed":
        return NotAllowed(failure.message)
    return RemoteError(failure.type_name, failure.message, failure.remote_traceback)
