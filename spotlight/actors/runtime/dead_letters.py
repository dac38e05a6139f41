"""Messages that no actor handled: counted by reason, the latest kept, and logged, but not more
often than is useful."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator
from typing import Literal

import msgspec
import structlog

from spotlight.actors.runtime.log_limiter import LimitedLog
from spotlight.transport.control import ActorRef

log = structlog.get_logger(__name__)

Reason = Literal[
    "no_such_actor",
    "dead_incarnation",
    "actor_ended",
    "mailbox_full",
    "unreachable",
    "expired",
    "unhandled",
    "not_allowed",
    "late_reply",
    "out_of_order",
]

_ORDINARY: tuple[Reason, ...] = (
    "no_such_actor",
    "dead_incarnation",
    "actor_ended",
    "unreachable",
    "late_reply",
)
"""What happens whenever a process or an actor ends while others still talk to it."""


class DeadLetter(msgspec.Struct, frozen=True):
    """One message that was not handled."""

    reason: Reason
    destination: ActorRef
    source: ActorRef
    message_type: str
    """Empty when the body was never decoded."""


class DeadLetters:
    """A bounded ring of the latest dead letters and a counter for each reason."""

    def __init__(self, kept: int = 256) -> None:
        self.counts: Counter[Reason] = Counter()
        self._latest: deque[DeadLetter] = deque(maxlen=kept)
        self._log = LimitedLog(log)

    def __len__(self) -> int:
        """How many there ever were."""
        return self.counts.total()

    def __iter__(self) -> Iterator[DeadLetter]:
        """The latest ones, oldest first."""
        return iter(tuple(self._latest))

    def add(self, letter: DeadLetter) -> None:
        """Count a dead letter; log the first of its reason in each interval, with the number left
        out since."""
        self.counts[letter.reason] += 1
        self._latest.append(letter)
        self._log.line(
            "info" if letter.reason in _ORDINARY else "warning",
            "message_not_handled",
            about=letter.reason,
            reason=letter.reason,
            destination=str(letter.destination),
            source=str(letter.source),
            message=letter.message_type,
        )
