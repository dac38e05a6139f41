"""The keys of bundles: a path inside their store's folder, of characters without special meaning to
a file system.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib.machinery import all_suffixes

from spotlight.errors import TransferFailed
from spotlight.types import KEY_LIMIT

_CODE = (*all_suffixes(), ".pyw", ".pth", ".zip", ".egg", ".whl")
"""Ends of files that Python would take code from."""
_KEY = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]*(/[A-Za-z0-9_-][A-Za-z0-9._-]*)*")


def checked(key: str) -> str:
    """The key; raises `TransferFailed` for what is none."""
    if len(key) > KEY_LIMIT or not _KEY.fullmatch(key):
        raise TransferFailed(f"{key[:KEY_LIMIT]!r} is not a bundle key")
    if key.lower().endswith(_CODE):
        raise TransferFailed(f"{key!r} has the end of a file of code, which no bundle may have")
    return key


def is_below(key: str, folder: str) -> bool:
    """Whether a key is inside of a folder, in whose path `*` stands for any one name."""
    names, wanted = key.split("/"), folder.split("/")
    return len(names) > len(wanted) and all(
        want in ("*", name) for name, want in zip(names, wanted, strict=False)
    )


def within(key: str) -> Iterator[str]:
    """The key, and the folders that it is inside of, from the inside."""
    while key:
        yield key
        key = folder_of(key)


def folder_of(key: str) -> str:
    """The folder that a bundle or a folder is in; empty for the store's own."""
    return key.rpartition("/")[0]


def content_key(key: str, checksum: int) -> str:
    """The key of a bundle's verified copy: it names the bytes, so other bytes never bear it."""
    return f"{key}.{checksum:08x}"
