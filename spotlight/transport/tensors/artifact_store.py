"""What the coordinator asks of the store in which workers leave something for it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from spotlight.types import BundleOffer, StoreEndpoint


class ArtifactStore(Protocol):
    """Where the coordinator keeps what workers upload; a `BundleStore`, or one of a simulation."""

    @property
    def endpoint(self) -> StoreEndpoint:
        """Where it is, for whoever may do nothing there; only after `start`."""
        ...

    async def start(self) -> StoreEndpoint:
        """Begin to serve."""
        ...

    def readable(self, prefix: str) -> StoreEndpoint:
        """Where a bundle is read, or all that are in a folder, and nothing else."""
        ...

    def writable_by(self, owner: str, *folders: str) -> StoreEndpoint:
        """Where somebody may leave bundles, below these folders alone if any are named (`*` stands
        for any one name), with a token of his own for them; the same until `revoke`."""
        ...

    def revoke(self, owner: str) -> None:
        """Take nothing more that comes with a token of this one, nor the rest of what is coming;
        what is there stays."""
        ...

    async def offer(self, key: str) -> BundleOffer:
        """A bundle that somebody has left here, to be fetched. Raises `TransferFailed`."""
        ...

    async def hand_out(self, key: str, path: Path) -> None:
        """Have a file be the bundle as well, on the disk when this returns. Raises
        `TransferFailed`."""
        ...

    async def join(self, keys: Sequence[str], key: str) -> None:
        """Have a bundle of all rows of which these have a part each. Raises `TransferFailed`."""
        ...

    async def take_in(self, path: Path, key: str) -> BundleOffer:
        """Have a bundle be a file as well. Raises `TransferFailed`."""
        ...

    def delete(self, prefix: str) -> None:
        """Drop a bundle or a folder of bundles; nothing happens if it is not there."""
        ...

    async def aclose(self) -> None:
        """Stop serving; the bundles stay."""
        ...
