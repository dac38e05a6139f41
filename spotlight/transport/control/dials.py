"""Which addresses may be dialled now.

An address may come from a message, and its sender may have made it up. Each dial holds descriptors
until it succeeds or is given up, so only so many are under way at once, and an address that was
never reached is tried less and less often. One that was reached before is tried often, as it may be
back at any moment.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import TypeVar

_Value = TypeVar("_Value")
_KEPT = 1024
"""Addresses that are remembered, of each kind."""


@dataclass(frozen=True)
class _Failure:
    tries: int
    again_at: float
    reason: str


class Dials:
    """See the module's docstring. `now` is always the loop's time.

    Args:
        pause_s: after the first try in vain; doubled after each.
        longest_pause_s: between two tries.
        at_once: dials that may be under way.
    """

    def __init__(self, *, pause_s: float, longest_pause_s: float, at_once: int) -> None:
        self._pause_s = pause_s
        self._longest_pause_s = max(pause_s, longest_pause_s)
        self._at_once = at_once
        self._under_way: set[str] = set()
        self._failures: OrderedDict[str, _Failure] = OrderedDict()
        self._reached: OrderedDict[str, None] = OrderedDict()

    def refusal(self, address: str, now: float) -> str:
        """Why an address may not be dialled now; empty if it may."""
        failure = self._failures.get(address)
        if failure is not None and now < failure.again_at:
            return f"{failure.reason}; tried {failure.tries} times"
        if len(self._under_way) >= self._at_once:
            return f"{len(self._under_way)} other addresses are being dialled already"
        return ""

    def began(self, address: str) -> None:
        """It is being dialled."""
        self._under_way.add(address)

    def reached(self, address: str) -> None:
        """Somebody is there."""
        self._under_way.discard(address)
        self._failures.pop(address, None)
        _remember(self._reached, address, None)

    def failed(self, address: str, reason: str, now: float) -> None:
        """Nobody was reached there."""
        self._under_way.discard(address)
        before = self._failures.pop(address, None)
        tries = before.tries + 1 if before is not None else 1
        doublings = 0 if address in self._reached else min(tries - 1, 16)
        pause_s = min(self._pause_s * 2**doublings, self._longest_pause_s)
        _remember(self._failures, address, _Failure(tries, now + pause_s, reason))


def _remember(known: OrderedDict[str, _Value], address: str, value: _Value) -> None:
    known[address] = value
    known.move_to_end(address)
    if len(known) > _KEPT:
        known.popitem(last=False)
