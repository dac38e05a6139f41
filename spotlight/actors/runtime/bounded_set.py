"""A bounded memory of what happened lately."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Generic, TypeVar

KeyT = TypeVar("KeyT", bound=Hashable)


class BoundedSet(Generic[KeyT]):
    """The `limit` keys that were added last, oldest first."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._keys: dict[KeyT, None] = {}

    def add(self, key: KeyT) -> None:
        """Remember a key as the latest."""
        self._keys.pop(key, None)
        self._keys[key] = None
        if len(self._keys) > self._limit:
            del self._keys[next(iter(self._keys))]

    def __contains__(self, key: object) -> bool:
        return key in self._keys

    def __iter__(self) -> Iterator[KeyT]:
        return iter(self._keys)
