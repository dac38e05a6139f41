"""What stores say of themselves and of their bundles, and the files behind that."""

from __future__ import annotations

import os
import socket
import zlib
from pathlib import Path
from typing import Annotated, BinaryIO

import msgspec

from spotlight.transport.tensors.folder import Folder
from spotlight.transport.tensors.keys import KEY_LIMIT, content_key

_CHUNK = 1024 * 1024
_VISIBLE = r"^[!-~]*\Z"
_NO_CONTROLS = r"^[^\x00-\x1f\x7f-\x9f\u2028\u2029]*\Z"


class StoreEndpoint(msgspec.Struct, frozen=True):
    """Where a store is reached."""

    host: Annotated[str, msgspec.Meta(max_length=255, pattern=r"^[A-Za-z0-9._:%-]+\Z")]
    port: Annotated[int, msgspec.Meta(ge=0, le=65_535)]
    token: Annotated[str, msgspec.Meta(max_length=200, pattern=_VISIBLE)]
    """What it lets its holder do: read, or leave bundles as well."""
    machine: Annotated[str, msgspec.Meta(max_length=400, pattern=_VISIBLE)]
    """Identity of the machine: receivers with the same one read the files themselves."""
    root: Annotated[str, msgspec.Meta(max_length=4096, pattern=_NO_CONTROLS)]

    @property
    def place(self) -> tuple[str, int, str, str]:
        """The same for two endpoints of one store, whatever their holders may do."""
        return self.host, self.port, self.machine, self.root


class BundleOffer(msgspec.Struct, frozen=True):
    """A bundle that can be pulled."""

    key: Annotated[str, msgspec.Meta(max_length=KEY_LIMIT, pattern=_VISIBLE)]
    nbytes: Annotated[int, msgspec.Meta(ge=0)]
    checksum: Annotated[int, msgspec.Meta(ge=0, lt=2**32)]
    """CRC-32 of the bytes."""
    store: StoreEndpoint


def machine_identity() -> str:
    """The same on all processes that share this machine's files, different elsewhere."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        boot = ""
    return f"{socket.gethostname()}/{boot}"


def own_file(offer: BundleOffer) -> Path | None:
    """The file of a verified copy that a store of this machine offers, to be read or mapped without
    a checksum; None when the bundle must be fetched.
    """
    if offer.store.machine != machine_identity() or offer.key != content_key(
        offer.key.rpartition(".")[0], offer.checksum
    ):
        return None
    root = Path(offer.store.root)
    try:
        with Folder(root).open(offer.key) as file:
            return root / offer.key if nbytes_of(file) == offer.nbytes else None
    except OSError:
        return None


def nbytes_of(file: BinaryIO) -> int:
    """The size of an open file; raises `OSError`."""
    return os.fstat(file.fileno()).st_size


def is_intact(data: bytes, offer: BundleOffer) -> bool:
    """Whether these are the bytes that were offered."""
    return len(data) == offer.nbytes and zlib.crc32(data) == offer.checksum


def is_intact_file(file: BinaryIO, offer: BundleOffer) -> bool:
    """Whether a file holds the bytes that were offered; raises `OSError`."""
    nbytes = checksum = 0
    buffer = memoryview(bytearray(_CHUNK))
    while count := file.readinto(buffer):  # type: ignore[attr-defined]
        nbytes += count
        checksum = zlib.crc32(buffer[:count], checksum)
    return (nbytes, checksum) == (offer.nbytes, offer.checksum)
