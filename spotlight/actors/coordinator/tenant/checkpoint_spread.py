"""From where each node of a job takes the checkpoint, if that is one of the hub.

Nodes repeatedly report what they have and what they could not get, and are told a source until they
have it. So a coordinator that comes back knows as much as the one before.
"""

from __future__ import annotations

from collections.abc import Iterator

from spotlight.actors.coordinator.fleet import Roster
from spotlight.actors.protocol.down import CheckpointSource
from spotlight.actors.protocol.up import NodeCheckpoint, NodeReport
from spotlight.jobs.hub_names import HubFile
from spotlight.policies.fleet.checkpoint_sources import HUB, CheckpointSources
from spotlight.timings import CheckpointTimings


class CheckpointSpread:
    """See the module's docstring.

    Args:
        checkpoint: as the job names it.
        roster: the job's nodes.
        files: of the checkpoint, with the checksums that the hub says; without these no node takes
            it from another.
    """

    def __init__(
        self,
        checkpoint: str,
        roster: Roster,
        timings: CheckpointTimings,
        files: tuple[HubFile, ...],
    ) -> None:
        self._files = files
        self._checkpoint = checkpoint
        self._roster = roster
        self._sources = CheckpointSources(timings)
        self._known: dict[str, NodeCheckpoint] = {}
        """The latest word of each node."""

    def note(self, report: NodeReport, now: float, *, has_tried: bool) -> bool:
        """What a node says; True if it changes anything. `has_tried`: it knows its latest plan, so
        what it missed is what that plan says."""
        state, name = report.checkpoint, report.node
        if state is None or state.name != self._checkpoint:
            return False
        before, self._known[name] = self._known.get(name), state
        if before is not None and before.listing not in (None, state.listing):
            self._sources.gone(name)  # it is another process by now, or its cache was cleared
        if state.is_whole:
            feeds = state.listing is not None and name not in self._roster.leaving
            self._sources.holds(name, feeds=feeds and bool(self._files))
        else:
            self._sources.needs(name, now, offline=state.offline)
            source = self._sources.source_of(name)
            if source is not None and has_tried and state.missed == self._direction(name):
                self._sources.failed(name, source)
                return True
        return state != before

    def gone(self, name: str) -> None:
        """A node is not there any more."""
        self._sources.gone(name)
        self._known.pop(name, None)

    def directions(self, now: float) -> Iterator[tuple[str, CheckpointSource | None]]:
        """The source of every node that was heard of; None for those that wait, or have it."""
        self._sources.plan(now)
        for name in self._known:
            yield name, self._direction(name)

    def _direction(self, name: str) -> CheckpointSource | None:
        source = self._sources.source_of(name)
        if source is None:
            return None
        if source == HUB:
            return CheckpointSource(None)
        return CheckpointSource(self._known[source].listing, self._files)
