"""Where the ranks of a group meet: a store of torch.distributed whose entries travel over the
control channel, from members whom the group's plan names, rather than through a server of its own
that takes entries from anybody.

Every rank has one and sees what the others set. `get` blocks the thread that forms the group until
the entry arrives, at most `timeout_s`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch.distributed

from spotlight.errors import TransportError

_c10d: Any = torch.distributed
"""What is used of it here has no type stubs."""


class Rendezvous(_c10d.Store):  # type: ignore[misc]
    """See the module's docstring.

    Args:
        send: hands an entry to all other ranks; called in the thread that forms the group.
        timeout_s: how long an entry may be missing.
    """

    def __init__(self, send: Callable[[str, bytes], None], *, timeout_s: float) -> None:
        super().__init__()
        self._send = send
        self._timeout_s = timeout_s
        self._entries: dict[str, bytes] = {}
        self._changed = threading.Condition()
        self._reason = ""

    def deliver(self, key: str, value: bytes) -> None:
        """Another rank has set this."""
        with self._changed:
            self._entries[key] = value
            self._changed.notify_all()

    def close(self, reason: str) -> None:
        """Whoever waits here fails with this reason; nothing happens if it is closed already."""
        with self._changed:
            self._reason = self._reason or reason
            self._changed.notify_all()

    def set(self, key: str, value: str | bytes) -> None:
        """Called by torch: set an entry for all ranks."""
        data = value.encode() if isinstance(value, str) else bytes(value)
        self.deliver(key, data)
        self._send(key, data)

    def get(self, key: str) -> bytes:
        """Called by torch: the entry, once it is there. Raises `TransportError`."""
        self.wait([key])
        return self._entries[key]

    def check(self, keys: Sequence[str]) -> bool:
        """Called by torch: whether all entries are there."""
        with self._changed:
            return all(key in self._entries for key in keys)

    def wait(self, keys: Sequence[str], timeout: object = None) -> None:
        """Called by torch: return once all entries are there. Raises `TransportError`."""
        give_up_at = time.monotonic() + self._timeout_s
        with self._changed:
            while absent := [key for key in keys if key not in self._entries]:
                left = give_up_at - time.monotonic()
                if self._reason:
                    raise TransportError(self._reason)
                if left <= 0:
                    raise TransportError(f"no {absent[0]} after {self._timeout_s:g} s")
                self._changed.wait(left)
