"""What workers did in a span of a run's time, at the best resolution there is."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import msgspec

from spotlight.report.run_view import Areas, LanePart, RunView


class WantedTime(NamedTuple):
    """A span of run time; None stands for the beginning, or the end, of the run."""

    from_s: float | None
    to_s: float | None


class ShownTime(msgspec.Struct, frozen=True):
    """What each pool's time went to, and what workers or nodes did."""

    areas: Areas
    lanes: tuple[LanePart, ...]


def time_of(folder: Path, view: RunView, wanted: WantedTime) -> ShownTime:
    """What is known of that span."""
    return ShownTime(view.areas, view.lanes)
