"""A coordinator as commands see it: answers what a test says, and keeps what it was asked."""

from __future__ import annotations

from typing import Any

from spotlight.join_token import JoinToken
from spotlight.transport.control.keys import KeyPair

JOIN = JoinToken("127.0.0.1:7070", KeyPair.derived(b"it").public, "oper01", bytes(16))


class StandIn:
    """Its subclasses have the methods of `CoordinatorClient` that a test calls for."""

    def __init__(self) -> None:
        self.asked: list[tuple[Any, ...]] = []
        self.error: Exception | None = None
        """Raised by each call, if there is one."""
        self.end = ""

    async def end_of(self, join: JoinToken) -> str:
        """How the token has ended."""
        return self.end

    def answer(self, asked: tuple[Any, ...], answer: Any) -> Any:
        """Note a call, and answer it."""
        self.asked.append(asked)
        if self.error is not None:
            raise self.error
        return answer
