"""Ledgers as somebody else writes them: one that is not there, or cannot be read, is none."""

from __future__ import annotations

from pathlib import Path

import msgspec

from spotlight.policies.money.bill import account
from spotlight.record.ledger import Ledger

NAME = "ledger.json"
_LARGEST = 64 << 20


def read_ledger_of(folder: Path) -> Ledger | None:
    """That of a run, or of the time without a job; None if there is none to be read."""
    try:
        with open(folder / NAME, "rb") as file:
            return msgspec.json.decode(file.read(_LARGEST), type=Ledger)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return None


def spent_of(ledger: Ledger) -> float | None:
    """What is known to have been spent; None if nothing is priced."""
    spent = account(ledger.bills).spent
    return None if spent is None else float(spent)
