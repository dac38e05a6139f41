"""A coordinator that asks nobody for a key, for tests and measurements of something else."""

from __future__ import annotations

from collections.abc import Iterable

from spotlight.actors.coordinator.key_ring import OPERATOR, KeyRing
from spotlight.types import Pool


class KeyForEverybody(KeyRing):
    """Everybody is an operator, and the node that it says."""

    def user(self, address: str) -> str:
        """See `KeyRing`."""
        return OPERATOR

    def report(self, node: str, pool: Pool, address: str, workers: Iterable[str]) -> str:
        """See `KeyRing`."""
        return ""
