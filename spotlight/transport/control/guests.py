"""Whose connections a process takes, and as what.

A role is a word that means something to whoever reads the messages; here it is only kept. A key
without a role gets no connection, in either direction.
"""

from __future__ import annotations

from collections.abc import Mapping


class Guests:
    """The roles of keys. `ControlTransport.dismiss` takes one away and ends its connections; taken
    away here alone it keeps those that it has."""

    def __init__(self, roles: Mapping[str, str] | None = None) -> None:
        self._roles = dict(roles or {})

    def __len__(self) -> int:
        return len(self._roles)

    def admit(self, key: str, role: str) -> None:
        """Take the connections of a key from now on. Raises `ValueError` if it has another role: a
        key means one thing for as long as it is known."""
        known = self._roles.setdefault(key, role)
        if known != role:
            raise ValueError(
                f"the key {key} is that of a {known}, and cannot be a {role}'s as well"
            )

    def forget(self, key: str) -> None:
        """Take no new connections of a key."""
        self._roles.pop(key, None)

    def role(self, key: str) -> str | None:
        """What the holder of a key is; None if it gets no connection."""
        return self._roles.get(key)
