"""How an actor sends another process messages that may be lost with it, and messages that must
not."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

import structlog

from spotlight.actors.protocol.down import Receipt
from spotlight.actors.runtime import Actor, ActorRef
from spotlight.actors.runtime.log_limiter import LimitedLog
from spotlight.errors import ActorError, TransferFailed
from spotlight.timings import DeliveryTimings
from spotlight.transport.control import Message

log = structlog.get_logger(__name__)

ResultT = TypeVar("ResultT")


def try_tell(actor: Actor, to: ActorRef, message: Message) -> bool:
    """Tell, and say whether it could be sent. A process that is gone is noticed by whoever watches
    it, so its loss is logged here and is no error of the teller.
    """
    try:
        actor.tell(to, message)
    except ActorError as error:
        kind = type(message).__name__
        actor.system.undelivered_log.warning(
            "undeliverable", about=kind, to=str(to), kind=kind, reason=str(error)
        )
        return False
    return True


async def insist(
    actor: Actor,
    to: Callable[[], ActorRef],
    message: Message,
    *,
    wanted: Callable[[], bool],
    timings: DeliveryTimings,
) -> bool:
    """Ask again and again, whoever `to` names by then, until the message is acknowledged.

    False when it is not `wanted` any more, or when its receiver has been away for too long. A
    receiver that answers `ask_again` is not away.
    """
    loop = asyncio.get_running_loop()
    give_up_at = loop.time() + timings.away_limit_s
    attempts = LimitedLog(log)
    while wanted():
        try:
            answer = await actor.ask(to(), message, timeout_s=timings.answer_limit_s)
        except ActorError as error:
            if loop.time() >= give_up_at:
                log.error("delivery_given_up", kind=type(message).__name__, reason=str(error))
                return False
            attempts.info("delivery_again", kind=type(message).__name__, reason=str(error))
        else:
            if not (isinstance(answer, Receipt) and answer.ask_again):
                return True
            give_up_at = loop.time() + timings.away_limit_s
        await asyncio.sleep(timings.retry_pause_s)
    return False


async def until_transferred(
    attempt: Callable[[], Awaitable[ResultT]],
    what: str,
    *,
    timings: DeliveryTimings,
    require_wanted: Callable[[], None] = lambda: None,
) -> ResultT:
    """Try again and again: whoever has the other end may be away for a while. Raises the last
    `TransferFailed` after `away_limit_s`, and what `require_wanted` raises before each attempt.
    """
    loop = asyncio.get_running_loop()
    give_up_at = loop.time() + timings.away_limit_s
    attempts = LimitedLog(log)
    while True:
        require_wanted()
        try:
            return await attempt()
        except TransferFailed as error:
            if loop.time() >= give_up_at:
                raise
            attempts.info("transfer_again", what=what, reason=str(error))
        await asyncio.sleep(timings.retry_pause_s)
