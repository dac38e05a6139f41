"""The weights versions that a member holds, and the one that is in its model."""

from __future__ import annotations

import threading
import weakref
import zlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from spotlight.actors.worker.engine import Engine, Model, Weights
from spotlight.actors.worker.worker_state import WorkerContext
from spotlight.errors import WrongWeights
from spotlight.types import BundleOffer

Version = tuple[int, bool]
"""Its number, and whether it is that of an evaluation."""


@dataclass(frozen=True)
class HeldVersion:
    """Weights as the engine fetched them."""

    checksum: int
    """See `checksum_of`: a version that is trained again may differ."""
    weights: Weights


def checksum_of(parts: Sequence[BundleOffer]) -> int:
    """CRC-32 of the checksums of the bundles that hold a version, so one that says which weights
    these are."""
    return zlib.crc32(b"".join(part.checksum.to_bytes(4, "big") for part in parts))


class HeldWeights:
    """By version; they are copied into the model when a batch needs others than the last one."""

    def __init__(self, context: WorkerContext, engine: Engine) -> None:
        self._context = context
        self._engine = engine
        self._held: dict[Version, HeldVersion] = {}
        self._loading = threading.Lock()
        """A thread that was left behind may still copy weights."""
        self._loaded: weakref.ref[HeldVersion] | None = None
        """The version that is in the model, even when it is not held any more."""

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
        self._loaded = None

    def of(self, version: Version) -> HeldVersion:
        """Raises `WrongWeights` if it is not held."""
        held = self._held.get(version)
        if held is None:
            there = sorted({number for number, _ in self._held})
            raise WrongWeights(f"version {version[0]} is not held here; held: {there}")
        return held

    def load(self, model: Model, version: HeldVersion) -> None:
        """In the accelerator's thread: have the model denoise with these. Raises `TransportError`
        in a thread that was left behind.
        """
        with self._loading:
            self._context.require_accelerator()  # or another thread denoises with its weights
            if self._loaded is None or self._loaded() is not version:
                self._loaded = None  # should it fail half-way
                model.use(version.weights)
                self._loaded = weakref.ref(version)
