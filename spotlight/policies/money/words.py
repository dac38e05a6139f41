"""Money in words. Pure."""

from __future__ import annotations

_SIGNS = {"USD": "$"}


def money(amount: float, currency: str = "USD") -> str:
    """An amount with its currency, with more digits the smaller it is: `$12.34`, `$0.0021`."""
    size = abs(amount)
    digits = 0 if size >= 1000 else 2 if size >= 0.1 or size == 0 else 4
    sign = _SIGNS.get(currency)
    minus = "-" if amount < 0 else ""
    number = f"{size:,.{digits}f}"
    return f"{minus}{sign}{number}" if sign else f"{minus}{number} {currency}"
