"""What a tracker is told of the run when it is made."""

from __future__ import annotations

from pathlib import Path

import msgspec

from spotlight.jobs import JobSpec, TrackerSpec


class TrackedRun(msgspec.Struct, frozen=True, kw_only=True):
    """The run of a tracker; it is the same when a run is resumed."""

    id: str
    """Names the run among all runs; letters, digits, `.`, `_` and `-`."""
    job: JobSpec
    """What is run."""
    folder: Path
    """The run folder."""
    tracker: TrackerSpec
    """What the job says of the tracker."""
