"""How much room a store has for the uploads of others.

An upload counts from the moment at which it is announced, so nobody can start more than there is
room for. When several may upload, none may take more than half. Bundles are counted as well: a file
system has room for so many files, however small they are.
"""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from http import HTTPStatus

from spotlight.errors import TransferRefused

_SHARE = 2
_MOST_BUNDLES = 2**18


class Quota:
    """Bytes kept and under way, by owner.

    Args:
        limit: bytes in all; None for as many as there is room for.
        free: bytes that the disk has left for this.
        most: bundles in all.
    """

    def __init__(
        self, limit: int | None, free: Callable[[], int], *, most: int = _MOST_BUNDLES
    ) -> None:
        self._limit = limit
        self._most = most
        self._free = free
        self._kept: dict[str, tuple[str, int]] = {}
        """Owner and bytes, by key."""
        self._kept_nbytes = 0
        self._bundles = Counter[str]()
        """Kept, by owner."""
        self._used: dict[str, int] = {}
        """Bytes by owner, what is under way included."""
        self._lock = threading.RLock()
        """Bundles arrive on another thread than that of their deletion."""

    def found(self, sizes: Mapping[str, int]) -> None:
        """What was there before is nobody's."""
        for key, nbytes in sizes.items():
            self.keep("", key, nbytes)

    @contextlib.contextmanager
    def under_way(self, owner: str, nbytes: int, *, alone: bool) -> Iterator[None]:
        """A bundle of so many bytes is coming; `alone`: nobody else may leave anything.

        Raises `TransferRefused` when there is no room for it.
        """
        with self._lock:
            self._announce(owner, nbytes, alone=alone)
        try:
            yield
        finally:
            self._add(owner, -nbytes)

    def _announce(self, owner: str, nbytes: int, *, alone: bool) -> None:
        room = self._room()
        used = sum(self._used.values())
        own = self._used.get(owner, 0)
        if used + nbytes > room:
            raise TransferRefused(
                HTTPStatus.INSUFFICIENT_STORAGE,
                f"{nbytes} bytes do not fit: {used} of {room} usable bytes are taken;"
                " free some space there, or name a larger folder (--store of a node)",
            )
        if not alone and own + nbytes > room // _SHARE:
            raise TransferRefused(
                HTTPStatus.INSUFFICIENT_STORAGE,
                f"{nbytes} bytes do not fit: {owner} already uses {own} of the"
                f" {room // _SHARE} that one node may use; free some space there",
            )
        most = self._most if alone else self._most // _SHARE
        if self._bundles[owner] >= most or len(self._kept) >= self._most:
            raise TransferRefused(
                HTTPStatus.INSUFFICIENT_STORAGE,
                f"{owner} has left {self._bundles[owner]:,} bundles of the {most:,} that may be"
                f" there, and all together {len(self._kept):,} of {self._most:,}",
            )
        self._add(owner, nbytes)

    def keep(self, owner: str, key: str, nbytes: int) -> None:
        """A bundle has come, and replaces the one of the same key."""
        with self._lock:
            self.forget(key)
            self._kept[key] = (owner, nbytes)
            self._bundles[owner] += 1
            self._kept_nbytes += nbytes
            self._add(owner, nbytes)

    def drop(self, prefix: str) -> None:
        """A bundle or a folder of bundles is gone."""
        with self._lock:
            if prefix in self._kept:
                return self.forget(prefix)
            for key in [key for key in self._kept if key.startswith(f"{prefix}/")]:
                self.forget(key)

    def forget(self, key: str) -> None:
        """A bundle is gone, or its place is taken by one that does not count."""
        with self._lock:
            if key not in self._kept:
                return
            owner, nbytes = self._kept.pop(key)
            self._bundles[owner] -= 1
            self._kept_nbytes -= nbytes
            self._add(owner, -nbytes)

    def _add(self, owner: str, nbytes: int) -> None:
        with self._lock:
            left = self._used.get(owner, 0) + nbytes
            if left:
                self._used[owner] = left
            else:
                self._used.pop(owner, None)

    def _room(self) -> int:
        # What of the rest is written already counts twice: the disk has less, and it is announced.
        available = self._kept_nbytes + self._free()
        return available if self._limit is None else min(self._limit, available)
