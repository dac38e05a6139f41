"""Ledgers as somebody else writes them: one that is not there, or cannot be read, is none."""

from __future__ import annotations

from pathlib import Path

import msgspec

from spotlight.record.ledger import Ledger, NodeBill

NAME = "ledger.json"
_LARGEST = 64 << 20
_MS_PER_HOUR = 3_600_000


def read_ledger_of(folder: Path) -> Ledger | None:
    """That of a run, or of the time without a job; None if there is none to be read."""
    try:
        with open(folder / NAME, "rb") as file:
            return msgspec.json.decode(file.read(_LARGEST), type=Ledger)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return None


def spent_of(ledger: Ledger) -> float | None:
    """What is known to have been spent; None if nothing is priced."""
    priced = [spent_on(bill) for bill in ledger.bills]
    known = [spent for spent in priced if spent is not None]
    return sum(known) if known else None


def spent_on(bill: NodeBill) -> float | None:
    """What a bill comes to; None if its time is unpriced."""
    if bill.price is None:
        return None
    milliseconds = sum(sum(times.values()) for times in bill.times.values())
    return milliseconds / _MS_PER_HOUR * bill.price.usd_per_gpu_hour
