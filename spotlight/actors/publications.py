"""The weights versions of a job that nodes may still need, and where they pull them from."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from spotlight.actors.job_journal import Publication
from spotlight.actors.messages import HoldWeights


class Publications:
    """By version, oldest first."""

    def __init__(self, known: Mapping[int, Publication]) -> None:
        self._known = dict(sorted(known.items()))

    def __contains__(self, version: int) -> bool:
        return version in self._known

    @property
    def versions(self) -> frozenset[int]:
        """Those that nodes can pull."""
        return frozenset(self._known)

    @property
    def newest(self) -> int:
        """0 before the first."""
        return max(self._known, default=0)

    def add(self, version: int, where: Publication, keep: Collection[int]) -> None:
        """A new version is there; of the others only those in `keep` are still needed."""
        self._known = {v: kept for v, kept in self._known.items() if v in keep}
        self._known[version] = where

    def messages(self, job_id: str) -> list[HoldWeights]:
        """What a node must hold to be of use."""
        keep = tuple(self._known)
        return [
            HoldWeights(job_id, version, where.rollout, where.evaluation, keep)
            for version, where in self._known.items()
        ]
