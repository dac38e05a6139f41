"""Azure: scheduled events of this machine. Preempt comes at least 30 s ahead.

Events are told to all machines of a scale set or availability set: only those that name ours
count. They are never acknowledged, since Azure may then begin earlier, and for all machines of the
event. The whole list is judged at each reading, so the change test `DocumentIncarnation` is not
needed. `Freeze` (a pause of seconds that keeps memory) is not a preemption.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable

import msgspec

from spotlight.cloud.http import Answer, request
from spotlight.cloud.notices import Announcement, SourceFailed
from spotlight.cloud.times import seconds_until
from spotlight.policies.notices import plausible_lead

_NAME_PATH = "/metadata/instance/compute/name?api-version=2021-02-01&format=text"
_EVENTS_PATH = "/metadata/scheduledevents?api-version=2020-07-01"
_NAME = re.compile(r"[\w.-]{1,255}")
_LEAST_S = 30.0
_LONGEST_S = {"Preempt": 600.0, "Terminate": 1200.0}
_PLANNED = {"Reboot", "Redeploy"}
_PLANNED_NEAR_S = 1200.0


class _Event(msgspec.Struct, frozen=True, rename="pascal"):
    event_id: str
    event_type: str
    event_status: str = ""
    resources: tuple[str, ...] = ()
    not_before: str = ""


class _Events(msgspec.Struct, frozen=True, rename="pascal"):
    events: tuple[_Event, ...]


class AzureEvents:
    """See the module's docstring."""

    name = "azure"

    def __init__(
        self,
        base_url: str,
        poll_s: float = 1.0,
        limit_s: float = 2.0,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._base_url = base_url
        self._limit_s = limit_s
        self._wall = wall
        self._machine = ""
        self.poll_s = poll_s

    async def probe(self) -> None:
        """Learn the machine's name. Raises `SourceFailed`, also where this is not Azure."""
        answer = await self._get(_NAME_PATH)
        name = answer.text.strip()
        if not _NAME.fullmatch(name):
            raise SourceFailed(f"{answer.url}: not the name of a machine")
        self._machine = name.casefold()

    async def read(self) -> tuple[Announcement, ...]:
        """The events that will end this machine. Raises `SourceFailed`."""
        if not self._machine:
            await self.probe()
        document = (await self._get(_EVENTS_PATH)).decode(_Events)
        announcements = (self._announcement(event) for event in document.events)
        return tuple(found for found in announcements if found is not None)

    def _announcement(self, event: _Event) -> Announcement | None:
        kind, ours = event.event_type, (name.casefold() for name in event.resources)
        if self._machine not in ours or not (kind in _LONGEST_S or kind in _PLANNED):
            return None
        said = f"{event.event_status} {event.not_before}"
        if event.event_status == "Started":  # there is no time any more: it may go at any moment
            return Announcement(event.event_id, "preempt", 0.0, said)
        said_s = seconds_until(event.not_before, self._wall())
        if kind in _PLANNED and said_s is not None and said_s > _PLANNED_NEAR_S:
            # Azure moves machines off failing hardware days after it says so.
            return Announcement(event.event_id, "advise", None, said)
        lead_s = plausible_lead(said_s, _LEAST_S, _LONGEST_S.get(kind, _PLANNED_NEAR_S))
        return Announcement(event.event_id, "preempt", lead_s, said)

    async def _get(self, path: str) -> Answer:
        answer = await request("GET", self._base_url + path, {"Metadata": "true"}, self._limit_s)
        if answer.status != 200:
            raise answer.unexpected()
        return answer
