"""How stores describe themselves and their bundles, and the files behind these offers."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import BinaryIO

from isal.isal_zlib import crc32

from spotlight.transport.tensors.folder import Folder
from spotlight.transport.tensors.keys import content_key
from spotlight.types import BundleOffer

CHECKSUM = "X-Checksum"
"""The header of an upload that says its CRC-32, in hexadecimal digits."""
WRITTEN = "X-Written"
"""The header of an upload without a body, from the store's own machine: the name that it has among
what is not finished in the store's folder."""
UCX = "X-UCX"
"""The header of a request that says where UCX is to send a bundle to, and of its answer, which says
how many bytes come."""
BASE = "X-Base"
"""The header of a request that names a bundle that the receiver has, and of its answer if the body
says what differs from that one (`deltas`)."""
_CHUNK = 1024 * 1024


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
    folder = Folder(Path(offer.store.root))
    if not folder.is_store:
        return None
    try:
        with folder.open(offer.key) as file:
            return folder.root / offer.key if nbytes_of(file) == offer.nbytes else None
    except OSError:
        return None


def nbytes_of(file: BinaryIO) -> int:
    """The size of an open file; raises `OSError`."""
    return os.fstat(file.fileno()).st_size


def is_intact(data: bytes, offer: BundleOffer) -> bool:
    """Whether these are the bytes that were offered."""
    return len(data) == offer.nbytes and crc32(data) == offer.checksum


def is_intact_file(file: BinaryIO, nbytes: int, checksum: int) -> bool:
    """Whether a file holds the bytes that were offered; raises `OSError`."""
    return measured(file) == (nbytes, checksum)


def measured(file: BinaryIO) -> tuple[int, int]:
    """The size and the checksum of what is left to read of a file, which may be larger than the
    memory; raises `OSError`."""
    nbytes = checksum = 0
    buffer = memoryview(bytearray(_CHUNK))
    while count := file.readinto(buffer):  # type: ignore[attr-defined]
        nbytes += count
        checksum = crc32(buffer[:count], checksum)
    return nbytes, checksum
