"""Bundle stores of a simulated cluster: the bytes are in memory, the way to them is the network.

A store belongs to a machine and is served by a process; it is out of reach while that process is
dead, stopped or cut off. What the coordinator's store holds outlives the process, as files do.
"""

from __future__ import annotations

import asyncio
import math
import random
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from msgspec import structs

from spotlight.errors import TransferFailed
from spotlight.transport.tensors.keys import is_below, within
from spotlight.transport.tensors.shares import SharedFolders
from spotlight.types import BundleOffer, StoreEndpoint

_LOOK_AGAIN_S = 0.25
_GIVE_UP_S = 5.0
"""A connection that does not come about, or falls silent, for so long has failed."""


@dataclass(frozen=True)
class Network:
    """How fast bytes get from machine to machine; on one they are where they are needed."""

    copy_bytes_per_s: float = math.inf
    """The speed of one copy by itself. [B/s]"""
    link_bytes_per_s: float = math.inf
    """The speed of all copies together that a machine sends, or takes. [B/s]"""

    @property
    def is_limited(self) -> bool:
        """Whether their number counts at all."""
        return self.copy_bytes_per_s < math.inf or self.link_bytes_per_s < math.inf


@dataclass
class Disk:
    """The bundles of one folder."""

    bundles: dict[str, bytes] = field(default_factory=dict)
    deleted: set[str] = field(default_factory=set)
    lost: bool = False
    """Its process ended, and no other will come back to it."""
    peak: int = 0


class Stores:
    """All stores of a cluster.

    Args:
        reaches: whether bytes get from one process to another, both named, now.
        reader: the process that asks now.
        transfer_s: least and greatest time that a transfer takes, besides that of its bytes.
        network: how fast bytes travel.
        missed: told the reader and the key when a bundle that was there is not any more.
    """

    def __init__(
        self,
        rng: random.Random,
        *,
        reaches: Callable[[str, str], bool],
        reader: Callable[[], str],
        transfer_s: tuple[float, float],
        missed: Callable[[str, str], None],
        network: Network = Network(),
    ) -> None:
        self._rng = rng
        self._reaches = reaches
        self._reader = reader
        self._transfer_s = transfer_s
        self._missed = missed
        self._network = network
        self._free_at: dict[tuple[str, str], float] = {}
        """When links have sent, or taken, all that was begun, by machine."""
        self._open: dict[tuple[str, int], SimulatedStore] = {}
        self._disks: dict[str, Disk] = {}
        self._ports = 0

    def open(self, process: str, folder: str, token: str = "") -> SimulatedStore:
        """A store that this process serves; its folder keeps what it held before."""
        disk = self._disks.setdefault(folder, Disk())
        disk.lost = False
        return SimulatedStore(self, process, folder, token, disk)

    def all_in_use(self) -> dict[str, Disk]:
        """What the folders of stores hold that are served now, or were and may be again."""
        return {folder: disk for folder, disk in self._disks.items() if not disk.lost}

    def close_all_of(self, process: str) -> None:
        """A process ended, and serves nothing any more."""
        for key in [key for key, store in self._open.items() if store.process == process]:
            self._open.pop(key).disk.lost = True

    async def fetch(self, offer: BundleOffer) -> bytes:
        """As `spotlight.transport.tensors.fetch`."""
        store = await self._reach(
            offer.store,
            f"get {offer.key}",
            lambda store: store.lets_read(offer.store.token, offer.key),
        )
        data = store.disk.bundles.get(offer.key)
        if data is None or zlib.crc32(data) != offer.checksum:
            if offer.key in store.disk.deleted:
                self._missed(self._reader(), offer.key)
            raise TransferFailed(f"get {offer.key} at {store.process} failed: no such bundle")
        await self._travel(offer.nbytes, store.process, self._reader())
        return data

    async def upload(
        self, endpoint: StoreEndpoint, key: str, data: bytes, nbytes: int = 0
    ) -> BundleOffer:
        """As `spotlight.transport.tensors.upload`; `nbytes`: what it stands for is so large."""
        store = await self._reach(
            endpoint, f"put {key}", lambda store: store.lets_write(endpoint.token, key)
        )
        offer = store.put(key, data, nbytes)
        if store.shared.may_write(endpoint.token, key):
            read = structs.replace(offer.store, token=store.shared.read_token(key))
            return structs.replace(offer, store=read)
        return offer

    def opened(self, store: SimulatedStore) -> StoreEndpoint:
        """A store begins to serve; returns where."""
        self._ports += 1
        self._open[(store.process, self._ports)] = store
        return StoreEndpoint(store.process, self._ports, store.token, store.process, store.folder)

    def closed(self, endpoint: StoreEndpoint) -> None:
        """A store serves no more."""
        self._open.pop((endpoint.host, endpoint.port), None)

    async def _travel(self, nbytes: int, source: str, destination: str) -> None:
        """The time of these bytes: as fast as one copy goes, and in its turn on both links."""
        ends = [("up", _machine(source)), ("down", _machine(destination))]
        if ends[0][1] == ends[1][1] or not self._network.is_limited:
            return
        now = asyncio.get_running_loop().time()
        began = max(now, *(self._free_at.get(end, now) for end in ends))
        free_at = began + nbytes / self._network.link_bytes_per_s
        self._free_at |= dict.fromkeys(ends, free_at)
        await asyncio.sleep(max(free_at - now, nbytes / self._network.copy_bytes_per_s))

    async def _reach(
        self, endpoint: StoreEndpoint, what: str, lets: Callable[[SimulatedStore], bool]
    ) -> SimulatedStore:
        reader = self._reader()
        await asyncio.sleep(self._rng.uniform(*self._transfer_s))
        loop = asyncio.get_running_loop()
        give_up_at = loop.time() + _GIVE_UP_S
        while True:
            store = self._open.get((endpoint.host, endpoint.port))
            if store is None or not lets(store):
                raise TransferFailed(f"{what} at {endpoint.host} failed: connection refused")
            if self._reaches(reader, endpoint.host) and self._reaches(endpoint.host, reader):
                return store
            if loop.time() >= give_up_at:
                raise TransferFailed(f"{what} at {endpoint.host} took longer than {_GIVE_UP_S:g} s")
            await asyncio.sleep(_LOOK_AGAIN_S)


class SimulatedStore:
    """Stands where a `BundleStore` does."""

    def __init__(self, stores: Stores, process: str, folder: str, token: str, disk: Disk) -> None:
        self.process = process
        self.folder = folder
        self.token = token
        self.disk = disk
        self._stores = stores
        self._endpoint: StoreEndpoint | None = None
        self._tokens: dict[tuple[str, tuple[str, ...]], str] = {}
        """The tokens of those who may leave bundles, by their names and the folders that it is for.
        """
        self._issued = 0
        self.shared = SharedFolders("", ())

    @property
    def endpoint(self) -> StoreEndpoint:
        """Where it is, for whoever may do nothing there; only after `start`."""
        if self._endpoint is None:
            raise RuntimeError("the store is not started")
        return self._endpoint

    async def start(self) -> StoreEndpoint:
        """Begin to serve."""
        self._endpoint = self._stores.opened(self)
        return self._endpoint

    def writable_by(self, owner: str, *folders: str) -> StoreEndpoint:
        """Where somebody may leave bundles, below these folders alone if any are named, with a
        token of his own for them; the same until `revoke`."""
        if (owner, folders) not in self._tokens:
            self._issued += 1
            self._tokens[owner, folders] = f"{self.token}.{owner}.{self._issued}"
        return structs.replace(self.endpoint, token=self._tokens[owner, folders])

    def readable(self, prefix: str) -> StoreEndpoint:
        """Where a bundle is read, or all that are in a folder, and nothing else."""
        return structs.replace(self.endpoint, token=f"{self.token}/{prefix}")

    def revoke(self, owner: str) -> None:
        """Take nothing more that comes with a token of this one."""
        for whose in [each for each in self._tokens if each[0] == owner]:
            del self._tokens[whose]

    def share(self, *folders: str) -> StoreEndpoint:
        """Drop what is in these folders, and let whoever gets this endpoint say who may read and
        leave bundles there, and nobody whom the one before let in."""
        for folder in (*self.shared.folders, *folders):
            self.delete(folder)
        self._issued += 1
        self.shared = SharedFolders(f"{self.folder}/{self._issued}".replace(" ", "#"), folders)
        return structs.replace(self.endpoint, token=self.shared.secret)

    def revoke_shared(self, revoked: Mapping[str, int]) -> None:
        """In shared folders, take nothing from these writers with a token of a lower number."""
        self.shared.revoked = dict(revoked)

    async def keys(self, *folders: str) -> list[str]:
        """The bundles in these folders."""
        return [key for key in self.disk.bundles if key.partition("/")[0] in folders]

    def lets_read(self, token: str, key: str) -> bool:
        """Whether this token is good for reading a bundle."""
        own = any(token == f"{self.token}/{prefix}" for prefix in within(key))
        return own or self.shared.may_read(token, key)

    def lets_write(self, token: str, key: str) -> bool:
        """Whether this token is good for leaving a bundle."""
        return self.shared.may_write(token, key) or any(
            token == good and (not folders or any(is_below(key, folder) for folder in folders))
            for (_, folders), good in self._tokens.items()
        )

    def put(self, key: str, data: bytes, nbytes: int = 0) -> BundleOffer:
        """Keep a bundle; `nbytes`: what it stands for is so large."""
        disk = self.disk
        disk.bundles[key] = data
        disk.peak = max(disk.peak, len(disk.bundles))
        return BundleOffer(key, nbytes or len(data), zlib.crc32(data), self.readable(key))

    async def copy(
        self, offer: BundleOffer, key: str, *, limit_s: float, base: BundleOffer | None = None
    ) -> BundleOffer:
        """Keep the bundle of another store under a key of ours."""
        return self.put(key, await self._stores.fetch(offer), offer.nbytes)

    async def offer(self, key: str) -> BundleOffer:
        """A bundle that somebody has left here, to be fetched."""
        data = self._read(key)
        return BundleOffer(key, len(data), zlib.crc32(data), self.readable(key))

    async def hand_out(self, key: str, path: Path) -> None:
        """Have a file be the bundle as well."""
        path.parent.mkdir(exist_ok=True)
        part = path.with_name(f".{path.name}.partial")
        part.write_bytes(self._read(key))
        part.replace(path)

    async def join(self, keys: Sequence[str], key: str) -> None:
        """Have a bundle of all rows; in a simulation every part is the whole state."""
        parts = {self._read(each) for each in keys}
        if len(parts) > 1:
            raise TransferFailed("the parts to be joined are of different states")
        self.put(key, parts.pop())

    async def take_in(self, path: Path, key: str) -> BundleOffer:
        """Have a bundle be a file as well."""
        return self.put(key, _content(path))

    def _read(self, key: str) -> bytes:
        if key not in self.disk.bundles:
            raise TransferFailed(f"no bundle {key}")
        return self.disk.bundles[key]

    def delete(self, prefix: str) -> None:
        """Drop a bundle or a folder of bundles; nothing happens if it is not there."""
        bundles = self.disk.bundles
        for key in [key for key in bundles if key == prefix or key.startswith(f"{prefix}/")]:
            del bundles[key]
            self.disk.deleted.add(key)

    async def aclose(self) -> None:
        """Stop serving; the bundles stay."""
        if self._endpoint is not None:
            self._stores.closed(self._endpoint)


def _machine(process: str) -> str:
    """Workers run on the machine of their node."""
    return process.partition("/")[0]


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise TransferFailed(f"{path}: {error.strerror}") from error
