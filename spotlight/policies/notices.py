"""Which preemption notices stand, and what a node must be told of them.

Sources are read again and again, and each reading is all that its platform announces at that
moment. A `NoticeBook` compares readings: an event that was not there is new, an event that is no
longer there was withdrawn, and an event that is still there is no news. Pure: time is handed in.

Invariants:
- The time of an event is worked out when it is first read (and again only if the platform changes
  what it says), on the clock handed in. A wall clock that jumps later moves no deadline.
- The deadline of one event only comes nearer.
- A node is told one thing at a time, and the latest thing told holds: the most urgent of all that
  stands. A withdrawal is told only when it changes that, and never of what was not told.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

NoticeKind = Literal["advise", "preempt", "cancel"]


@dataclass(frozen=True)
class Announcement:
    """What a platform says of one event when it is read."""

    event_id: str
    """Unique among the standing events of its source."""
    kind: Literal["advise", "preempt"]
    """`advise`: the machine is at risk. `preempt`: it will be taken."""
    lead_s: float | None
    """Seconds from this reading until the machine is taken; None if the platform does not say."""
    said: str = ""
    """The time as the platform wrote it: while it is the same, `lead_s` of later readings is
    ignored."""


@dataclass(frozen=True)
class Notice:
    """News of one source: the machine is at risk, will be taken, or is not taken after all."""

    source: str
    kind: NoticeKind
    event_id: str
    lead_s: float | None = None
    """Seconds from receipt until the machine is taken; None if unknown, or cancelled."""
    deadline: float | None = None
    """The same, on the receiver's monotonic clock."""


def plausible_lead(said_s: float | None, least_s: float, longest_s: float) -> float:
    """Seconds that a notice leaves, given what its time says by this machine's wall clock.

    A time that is missing, past, or more than `longest_s` ahead shows that the clocks disagree:
    then it is `least_s`, which the platform grants at least.
    """
    if said_s is None or not 0 <= said_s <= longest_s:
        return least_s
    return said_s


class NoticeBook:
    """The standing events of all sources of one machine.

    `seen` counts events and `last_lead_s` keeps the latest lead time, both by source.
    """

    def __init__(self) -> None:
        self.seen: dict[str, int] = {}
        self.last_lead_s: dict[str, float] = {}
        self._standing: dict[tuple[str, str], Notice] = {}
        self._said: dict[tuple[str, str], tuple[str, str]] = {}
        self._told: Notice | None = None

    def observe(
        self, source: str, announcements: Iterable[Announcement], now: float
    ) -> list[Notice]:
        """Take in all that a source announces at `now` (seconds); returns what is new of each
        event."""
        news = []
        present = set()
        for announcement in announcements:
            present.add(announcement.event_id)
            notice = self._heard(source, announcement, now)
            if notice is not None:
                news.append(notice)
        gone = [key for key in self._standing if key[0] == source and key[1] not in present]
        for key in gone:
            del self._standing[key], self._said[key]
            news.append(Notice(source, "cancel", key[1]))
        return news

    def turn(self) -> list[Notice]:
        """What to tell the node since the last call.

        The most urgent notice that stands, if that is another than was told; `cancel` when nothing
        stands any more, and before an `advise` that follows a withdrawn `preempt`.
        """
        told = self._told
        self._told = min(
            self._standing.values(),
            key=lambda notice: (*_urgency(notice), notice != told, notice.source, notice.event_id),
            default=None,
        )
        if self._told == told:
            return []
        news = []
        if told is not None and (self._told is None or _milder(self._told, told)):
            news.append(Notice(told.source, "cancel", told.event_id))
        if self._told is not None:
            news.append(self._told)
        return news

    def _heard(self, source: str, announcement: Announcement, now: float) -> Notice | None:
        """The notice that an announcement amounts to, if it is new or more urgent than before."""
        key = (source, announcement.event_id)
        said = (announcement.kind, announcement.said)
        if self._said.get(key) == said:
            return None
        self._said[key] = said
        lead_s = announcement.lead_s
        deadline = None if lead_s is None else now + lead_s
        notice = Notice(source, announcement.kind, announcement.event_id, lead_s, deadline)
        before = self._standing.get(key)
        if before is not None and _urgency(notice) >= _urgency(before):
            return None
        self._standing[key] = notice
        if before is None:
            self.seen[source] = self.seen.get(source, 0) + 1
        if lead_s is not None:
            self.last_lead_s[source] = lead_s
        return notice


def _milder(notice: Notice, other: Notice) -> bool:
    return notice.kind == "advise" and other.kind == "preempt"


def _urgency(notice: Notice) -> tuple[bool, float]:
    """Smaller is more urgent."""
    deadline = math.inf if notice.deadline is None else notice.deadline
    return notice.kind == "advise", deadline
