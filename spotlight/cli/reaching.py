"""One call of a command to its coordinator."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

from spotlight.errors import ActorError, NotAllowed, UserError

if TYPE_CHECKING:
    from spotlight.join_token import JoinToken
    from spotlight.running.client import CoordinatorClient

Answer = TypeVar("Answer")


def reaching(join: str, call: Callable[[JoinToken], Coroutine[Any, Any, Answer]]) -> Answer:
    """Run one call to the coordinator of a join token; that it does not do what it is asked to is
    an error that the user can fix."""
    from spotlight.running.join_option import resolve, unreached

    token = resolve("--join", join)
    try:
        return asyncio.run(_say_why(token, call(token)))
    except ActorError as error:
        raise unreached(token, error) from error


def asking(join: str, call: Callable[[CoordinatorClient], Coroutine[Any, Any, Answer]]) -> Answer:
    """`reaching` for what is asked over one connection."""

    async def over_one_connection(token: JoinToken) -> Answer:
        from spotlight.running.client import connect

        async with connect(token) as client:
            return await call(client)

    return reaching(join, over_one_connection)


async def _say_why(join: JoinToken, call: Coroutine[Any, Any, Answer]) -> Answer:
    """Whoever has a token that ended may do nothing, and is told how it ended."""
    from spotlight.running.client import end_of_token

    try:
        return await call
    except NotAllowed:
        if end := await end_of_token(join):
            raise UserError(end) from None
        raise
