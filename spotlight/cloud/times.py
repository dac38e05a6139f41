"""Times as metadata services write them."""

from __future__ import annotations

from datetime import UTC, datetime
from email.utils import parsedate_to_datetime


def seconds_until(text: str, wall_s: float) -> float | None:
    """Seconds from `wall_s` (seconds since 1970) until a time written in RFC 3339 or RFC 1123; UTC
    where it names no zone.

    Negative when past; None when it is not a time.
    """
    for parse in (datetime.fromisoformat, parsedate_to_datetime):
        try:
            moment = parse(text)
            if moment.tzinfo is None:
                moment = moment.replace(tzinfo=UTC)
            return moment.timestamp() - wall_s
        except (ValueError, OverflowError):
            continue
    return None
