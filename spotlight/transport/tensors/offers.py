"""What stores say of themselves and of their bundles, and the files behind that."""

from __future__ import annotations

import re
import socket
import zlib
from pathlib import Path

import msgspec

from spotlight.errors import TransferFailed

_CHUNK = 1024 * 1024
_KEY = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]*(/[A-Za-z0-9_-][A-Za-z0-9._-]*)*")


class StoreEndpoint(msgspec.Struct, frozen=True):
    """Where a store is reached."""

    host: str
    port: int
    token: str
    machine: str
    """Identity of the machine: receivers with the same one read the files themselves."""
    root: str


class BundleOffer(msgspec.Struct, frozen=True):
    """A bundle that can be pulled."""

    key: str
    nbytes: int
    checksum: int
    """CRC-32 of the bytes."""
    store: StoreEndpoint


def machine_identity() -> str:
    """The same on all processes that share this machine's files, different elsewhere."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        boot = ""
    return f"{socket.gethostname()}/{boot}"


def path_under(root: Path, key: str) -> Path:
    """A bundle's file in a store's folder; raises `TransferFailed` for what is no key."""
    if not _KEY.fullmatch(key):
        raise TransferFailed(f"{key!r} is not a bundle key")
    return root / key


def content_key(key: str, checksum: int) -> str:
    """The key of a bundle's verified copy: it names the bytes, so other bytes never bear it."""
    return f"{key}.{checksum:08x}"


def own_file(offer: BundleOffer) -> Path | None:
    """The file of a verified copy that a store of this machine offers, to be read or mapped without
    a checksum; None when the bundle must be fetched.
    """
    if offer.store.machine != machine_identity() or offer.key != content_key(
        offer.key.rpartition(".")[0], offer.checksum
    ):
        return None
    path = path_under(Path(offer.store.root), offer.key)
    try:
        return path if path.stat().st_size == offer.nbytes else None
    except OSError:
        return None


def is_intact(data: bytes, offer: BundleOffer) -> bool:
    """Whether these are the bytes that were offered."""
    return len(data) == offer.nbytes and zlib.crc32(data) == offer.checksum


def is_intact_file(path: Path, offer: BundleOffer) -> bool:
    """Whether a file holds the bytes that were offered; raises `OSError`."""
    nbytes = checksum = 0
    buffer = memoryview(bytearray(_CHUNK))
    with path.open("rb", buffering=0) as file:
        while count := file.readinto(buffer):
            nbytes += count
            checksum = zlib.crc32(buffer[:count], checksum)
    return (nbytes, checksum) == (offer.nbytes, offer.checksum)
