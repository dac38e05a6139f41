"""What an operator can read off an actor system."""

from __future__ import annotations

import msgspec


class MailboxStatistics(msgspec.Struct, frozen=True):
    """How full one actor's mailbox is."""

    waiting: int
    greatest: int
    capacity: int


class Statistics(msgspec.Struct, frozen=True):
    """Counters of one actor system since its start, and what is there now."""

    frames_sent: int
    frames_received: int
    frames_rejected: dict[str, int]
    """By reason (`spotlight.transport.control.Rejection`), what the transport refused included."""
    duplicates: int
    """Asks that arrived again and were not run again."""
    pending_asks: int
    dead_letters: dict[str, int]
    mailboxes: dict[str, MailboxStatistics]
    """By actor name."""
