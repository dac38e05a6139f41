"""For how long this process and its machine are there, as Linux tells."""

from __future__ import annotations

import os
import time
from pathlib import Path

MOST_START_S = 1800.0
"""A machine that was up for longer before the process began was there for other things."""
_START_TIME = 19
"""The place in `/proc/PID/stat` of the ticks after which the process began, behind its name."""


def process_s() -> float:
    """Seconds since this process began."""
    return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - _began_s())


def machine_s() -> float:
    """Seconds from the start of the machine to that of this process; 0 for a machine that was
    there for other things."""
    began_s = _began_s()
    return began_s if began_s <= MOST_START_S else 0.0


def _began_s() -> float:
    """Seconds from the start of the machine."""
    stat = Path("/proc/self/stat").read_text(encoding="utf-8", errors="replace")
    fields = stat.rpartition(")")[2].split()
    return int(fields[_START_TIME]) / os.sysconf("SC_CLK_TCK")
