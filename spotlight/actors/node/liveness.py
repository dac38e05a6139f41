"""Whether a process still responds. It must answer a question, because a hung process keeps its
connections.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from spotlight.actors.runtime import Actor, ActorRef, Message
from spotlight.errors import ActorError, NotAllowed, RemoteError

SUSPECT_ASKS = 3
"""Questions without an answer, in a row, that make a suspect."""


async def until_silent(
    actor: Actor,
    other: ActorRef,
    question: Callable[[], Message],
    *,
    every_s: Callable[[], float],
    silent_s: float,
    heard: Callable[[Message], None],
    suspect: Callable[[], None],
) -> None:
    """Return when `other` has left questions unanswered for `silent_s` in a row.

    Questions are counted, not seconds: when this process itself was stopped for a while, only one
    question is late.

    Args:
        question: what to ask now.
        every_s: seconds between two questions now.
        silent_s: seconds of questions without an answer.
        heard: is given every answer.
        suspect: called when three questions in a row were left unanswered.
    """
    loop = asyncio.get_running_loop()
    silent, unanswered_s = 0, 0.0
    while unanswered_s < silent_s:
        asked_at, pause_s = loop.time(), every_s()
        try:
            heard(await actor.ask(other, question(), timeout_s=pause_s))
            silent, unanswered_s = 0, 0.0
        except (NotAllowed, RemoteError):
            silent, unanswered_s = 0, 0.0  # an answer, of a kind
        except ActorError:
            silent, unanswered_s = silent + 1, unanswered_s + pause_s
            if silent == SUSPECT_ASKS:
                suspect()
        await asyncio.sleep(max(0.0, asked_at + pause_s - loop.time()))
