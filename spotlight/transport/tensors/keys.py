"""The keys of bundles: a path inside their store's folder, of characters without special meaning to
a file system.
"""

from __future__ import annotations

import re

from spotlight.errors import TransferFailed
from spotlight.types import KEY_LIMIT

_KEY = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]*(/[A-Za-z0-9_-][A-Za-z0-9._-]*)*")


def checked(key: str) -> str:
    """The key; raises `TransferFailed` for what is none."""
    if len(key) > KEY_LIMIT or not _KEY.fullmatch(key):
        raise TransferFailed(f"{key[:KEY_LIMIT]!r} is not a bundle key")
    return key


def content_key(key: str, checksum: int) -> str:
    """The key of a bundle's verified copy: it names the bytes, so other bytes never bear it."""
    return f"{key}.{checksum:08x}"
