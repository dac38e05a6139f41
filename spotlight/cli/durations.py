"""Durations as people write them: `30m`, `24h`, `7d`."""

from __future__ import annotations

import math
import re

from spotlight.errors import UserError

_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
_FORM = re.compile(r"(?P<number>\d{1,9}(?:\.\d{1,9})?)(?P<unit>[smhd])", re.ASCII)


def seconds_of(option: str, text: str, *, most_s: float = math.inf) -> float:
    """The seconds of a duration. Raises `UserError`, which names the option, for what is none, is
    nothing at all, or is over `most_s`."""
    found = _FORM.fullmatch(text.strip())
    if found is None:
        raise UserError(
            f"{option}: {text!r} is no duration; give a number with its unit, such as 30m, 24h or"
            " 7d (s, m, h or d)"
        )
    seconds = float(found["number"]) * _SECONDS[found["unit"]]
    if not 0 < seconds <= most_s:
        most = f" and at most {most_s / _SECONDS['d']:g}d" if most_s < math.inf else ""
        raise UserError(f"{option}: {text} must be more than nothing{most}")
    return seconds
