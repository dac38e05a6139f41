"""How an actor tells another process something that may be lost with it."""

from __future__ import annotations

import structlog

from spotlight.actors.runtime import Actor, ActorRef
from spotlight.errors import ActorError
from spotlight.transport.control import Message

log = structlog.get_logger(__name__)


def try_tell(actor: Actor, to: ActorRef, message: Message) -> bool:
    """Tell, and say whether it could be sent. A process that is gone is noticed by whoever watches
    it, so its loss is logged here and is no error of the teller.
    """
    try:
        actor.tell(to, message)
    except ActorError as error:
        log.warning("undeliverable", to=str(to), kind=type(message).__name__, reason=str(error))
        return False
    return True
