"""A share of a store: another process says who may read and leave bundles in some of its folders.

All tokens of a share follow from its secret (HMAC-SHA-256), so whoever has that makes them without
asking, and the store checks them without being told: one reads one bundle, another leaves bundles
below one writer's own folders, `FOLDER/WRITER`. The tokens of a writer are numbered. The first use
of one voids those before it, so what another process of that name had is good no longer.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass, field

from msgspec import structs

from spotlight.types import StoreEndpoint


@dataclass(frozen=True)
class Share:
    """A share, as who has its secret sees it: the token of `endpoint`."""

    endpoint: StoreEndpoint

    def readable(self, key: str) -> StoreEndpoint:
        """Where a bundle is read, and nothing else."""
        return structs.replace(self.endpoint, token=_read_token(self.endpoint.token, key))

    def writable_by(self, writer: str, number: int) -> StoreEndpoint:
        """Where a writer may leave bundles below its own folders, until it uses a higher number."""
        token = _write_token(self.endpoint.token, writer, number)
        return structs.replace(self.endpoint, token=token)


@dataclass
class SharedFolders:
    """The same, as the store sees it."""

    secret: str
    folders: tuple[str, ...]
    revoked: Mapping[str, int] = field(default_factory=dict)
    """Writers whose tokens are good from a number on."""
    _used: dict[str, int] = field(default_factory=dict)
    """The highest number of a token that each writer has shown."""

    def read_token(self, key: str) -> str:
        """What whoever may read a bundle shows."""
        return _read_token(self.secret, key)

    def may_read(self, token: str, key: str) -> bool:
        """Whether a token is good for reading a bundle."""
        return self._has(key) and _are_equal(token, self.read_token(key))

    def may_write(self, token: str, key: str) -> bool:
        """Whether a token is good for leaving a bundle."""
        if not self._has(key):
            return False
        writer, number = key.split("/")[1], _number_of(token)
        least = max(self._used.get(writer, 0), self.revoked.get(writer, 0))
        if number < least or not _are_equal(token, _write_token(self.secret, writer, number)):
            return False
        self._used[writer] = number
        return True

    def _has(self, key: str) -> bool:
        folder, _, rest = key.partition("/")
        return folder in self.folders and "/" in rest


def _number_of(token: str) -> int:
    number = token.partition(".")[0]
    return int(number) if number.isascii() and number.isdigit() and len(number) < 20 else -1


def _read_token(secret: str, key: str) -> str:
    return _derived(secret, f"read {key}")


def _write_token(secret: str, writer: str, number: int) -> str:
    return f"{number}.{_derived(secret, f'write {number} {writer}')}"


def _derived(secret: str, what: str) -> str:
    return hmac.new(secret.encode(), what.encode(), hashlib.sha256).hexdigest()


def _are_equal(token: str, other: str) -> bool:
    return hmac.compare_digest(token.encode(), other.encode())
