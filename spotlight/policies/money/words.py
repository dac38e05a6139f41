"""Money in words. Pure."""

from __future__ import annotations

import math

_SIGNS = {"USD": "$"}
_MOST_DIGITS = 8


def money(amount: float, currency: str = "USD") -> str:
    """An amount with its currency, with more digits the smaller it is: `$12.34`, `$0.0021`."""
    size = abs(amount)
    sign = _SIGNS.get(currency)
    minus = "-" if amount < 0 else ""
    number = f"{size:,.{_digits(size)}f}"
    return f"{minus}{sign}{number}" if sign else f"{minus}{number} {currency}"


def _digits(size: float) -> int:
    """Behind the point: cents, and two digits that count of what is less than ten of them."""
    if size >= 1000:
        return 0
    if size >= 0.1 or size == 0:
        return 2
    return min(1 - math.floor(math.log10(size)), _MOST_DIGITS)
