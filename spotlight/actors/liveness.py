"""Whether a process still does anything: it must answer a question, for a process that hangs keeps
its connections.
"""

from __future__ import annotations

import asyncio

from spotlight.actors.messages import AreYouThere
from spotlight.actors.runtime import Actor, ActorRef
from spotlight.errors import ActorError, RemoteError

_EVERY_S = 2.0
_SILENT_ASKS = 5


async def until_silent(actor: Actor, other: ActorRef) -> None:
    """Return when `other` has left five questions in a row unanswered, which takes ten seconds.

    Questions are counted, not seconds: when this process itself was stopped for a while, only one
    question is late.
    """
    loop = asyncio.get_running_loop()
    silent = 0
    while silent < _SILENT_ASKS:
        asked_at = loop.time()
        try:
            await actor.ask(other, AreYouThere(), timeout_s=_EVERY_S)
            silent = 0
        except RemoteError:
            silent = 0  # an answer, of a kind
        except ActorError:
            silent += 1
        await asyncio.sleep(max(0.0, asked_at + _EVERY_S - loop.time()))
