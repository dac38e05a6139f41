"""Where each node takes a checkpoint of the hub from, so that the hub sends it once. Pure: times,
in seconds, are handed in.

One node downloads it while the others wait. Whoever has it feeds others, a few at a time. A node
that a source has failed is never sent there again: it goes to another one that has the checkpoint,
and when all have failed it to the hub. A node that may not ask the hub is sent there only when it
has waited for long and nobody else can: it then says why it cannot have the checkpoint.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from spotlight.timings import CheckpointTimings

HUB = ""
"""Stands for the hub among the sources; nodes have longer names."""
FED_AT_ONCE = 2
"""Nodes that one feeds at a time."""


@dataclass
class _Need:
    """What is known of a node that lacks the checkpoint."""

    offline: bool
    since: float
    source: str | None = None
    sent_at: float = 0.0
    failed_by: set[str] = field(default_factory=set)


class CheckpointSources:
    """See the module's docstring. First come, first served."""

    def __init__(self, timings: CheckpointTimings) -> None:
        self._timings = timings
        self._needs: dict[str, _Need] = {}
        self._feeders: dict[str, None] = {}
        """Nodes that have it, and may feed others."""

    def source_of(self, node: str) -> str | None:
        """None for one that waits, or has it, or is not known."""
        need = self._needs.get(node)
        return None if need is None else need.source

    def needs(self, node: str, now: float, *, offline: bool) -> None:
        """A node lacks the checkpoint. `offline`: it may not ask the hub."""
        self._feeds_no_more(node)
        if node not in self._needs:
            self._needs[node] = _Need(offline, now)

    def holds(self, node: str, *, feeds: bool) -> None:
        """A node has it, and may feed others or may not."""
        self._needs.pop(node, None)
        if feeds:
            self._feeders[node] = None
        else:
            self._feeds_no_more(node)

    def gone(self, node: str) -> None:
        """A node is not there any more; one that comes under its name is another."""
        self._needs.pop(node, None)
        self._feeds_no_more(node)
        for need in self._needs.values():
            need.failed_by.discard(node)

    def failed(self, node: str, source: str) -> None:
        """A source did not give a node the checkpoint; nothing changes unless it was sent there."""
        need = self._needs.get(node)
        if need is not None and need.source == source:
            need.failed_by.add(source)
            need.source = None

    def plan(self, now: float) -> None:
        """Send those who wait to whoever can feed them now."""
        for need in self._needs.values():
            if need.source is not None and now - need.sent_at > self._timings.source_limit_s:
                need.failed_by.add(need.source)
                need.source = None
        loads = Counter(it.source for it in self._needs.values() if it.source is not None)
        for need in self._needs.values():
            if need.source is None and (source := self._find(need, loads, now)) is not None:
                need.source, need.sent_at = source, now
                loads[source] += 1

    def _find(self, need: _Need, loads: Counter[str], now: float) -> str | None:
        untried = [feeder for feeder in self._feeders if feeder not in need.failed_by]
        if untried:
            first = min(untried, key=lambda feeder: (loads[feeder], feeder))
            return first if loads[first] < FED_AT_ONCE else None
        if HUB in need.failed_by or loads[HUB]:
            return None
        if need.offline and now - need.since <= self._timings.unasked_s:
            return None
        return HUB

    def _feeds_no_more(self, node: str) -> None:
        self._feeders.pop(node, None)
        for need in self._needs.values():
            if need.source == node:
                need.source = None
