"""The weights versions that a member holds."""

from __future__ import annotations

import zlib
from collections.abc import Collection, Sequence

from spotlight.actors.worker.engine import Engine
from spotlight.actors.worker.shared_model import HeldVersion
from spotlight.errors import WrongWeights
from spotlight.types import BundleOffer

Version = tuple[int, bool]
"""Its number, and whether it is that of an evaluation."""


def checksum_of(parts: Sequence[BundleOffer]) -> int:
    """CRC-32 of the checksums of the bundles that hold a version, so one that says which weights
    these are."""
    return zlib.crc32(b"".join(part.checksum.to_bytes(4, "big") for part in parts))


class HeldWeights:
    """By version; `SharedModel` copies one into the model when a batch needs it."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._held: dict[Version, HeldVersion] = {}

    async def hold(self, version: Version, parts: Sequence[BundleOffer]) -> None:
        """Fetch a version, unless it is there. Raises `TransferFailed`."""
        held, checksum = self._held.get(version), checksum_of(parts)
        if held is None or held.checksum != checksum:
            weights = await self._engine.fetch_weights(parts)
            self._held[version] = HeldVersion(checksum, weights)

    def has(self, version: Version, checksum: int) -> bool:
        """Whether a version is held, and with this checksum."""
        held = self._held.get(version)
        return held is not None and held.checksum == checksum

    def keep(self, numbers: Collection[int]) -> None:
        """Drop all others."""
        self._held = {key: held for key, held in self._held.items() if key[0] in numbers}

    def forget_all(self) -> None:
        """The job has ended."""
        self._held.clear()

    def of(self, version: Version) -> HeldVersion:
        """Raises `WrongWeights` if it is not held."""
        held = self._held.get(version)
        if held is None:
            there = sorted({number for number, _ in self._held})
            raise WrongWeights(f"version {version[0]} is not held here; held: {there}")
        return held
