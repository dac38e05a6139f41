"""What tests of `benchmarks.security` need."""

from __future__ import annotations

from spotlight.transport.control import Dialect, Rejection


class Deaf:
    """A listener to whom it is all the same."""

    def frame_received(self, address: str, frame: bytes) -> None:
        """Nothing."""

    def frame_undelivered(self, address: str, frame: bytes) -> None:
        """Nothing."""

    def peer_up(self, address: str, incarnation: int) -> None:
        """Nothing."""

    def peer_lost(self, address: str, incarnation: int, reason: str) -> None:
        """Nothing."""

    def other_version(self, address: str, dialect: Dialect) -> None:
        """Nothing."""

    def input_rejected(self, address: str, reason: Rejection, detail: str) -> None:
        """Nothing."""
