"""A door that is open to everybody, for tests and measurements of something else."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from spotlight.actors.runtime import Down
from spotlight.transport.control import Guests, Message

ANYBODY = "anybody"
"""The role of whoever comes."""


class Everybody(Guests):
    """Everybody with a key is a guest who was not dismissed, as `ANYBODY` unless admitted as
    something else."""

    def __init__(self, roles: Mapping[str, str] | None = None) -> None:
        super().__init__(roles)
        self._forgotten: set[str] = set()

    def admit(self, key: str, role: str) -> None:
        """See `Guests`."""
        super().admit(key, role)
        self._forgotten.discard(key)

    def forget(self, key: str) -> None:
        """See `Guests`."""
        super().forget(key)
        self._forgotten.add(key)

    def role(self, key: str) -> str | None:
        """See `Guests`."""
        if not key or key in self._forgotten:
            return None
        return super().role(key) or ANYBODY


class _EveryRole(frozenset[str]):
    """Those too that somebody was admitted as."""

    def __contains__(self, role: object) -> bool:
        return True


class _AnybodySaysAnything(Mapping[type[Message], frozenset[str]]):
    """There is a row for every message, those of tests included."""

    def __getitem__(self, message_type: type[Message]) -> frozenset[str]:
        return frozenset() if message_type is Down else _EveryRole((ANYBODY,))

    def __iter__(self) -> Iterator[type[Message]]:
        return iter(())

    def __len__(self) -> int:
        return 0


ANYBODY_SAYS_ANYTHING: Mapping[type[Message], frozenset[str]] = _AnybodySaysAnything()
"""Rights for an `ActorSystem` with the guests `Everybody`."""
