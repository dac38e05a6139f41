"""One run folder, followed while somebody looks: what was written since is read a piece at a time,
and makes the next view.

All calls are made in one thread at a time. A folder that is torn, of an older version, or that goes
away while it is looked at is still shown, as far as it can be read, with a note that says so.
"""

from __future__ import annotations

import time
from pathlib import Path

from spotlight.report.run_view import RunView
from spotlight.running.record_follower import RecordFollower
from spotlight.web.stand_in_view import ViewBuilder


class WatchedRun:
    """See the module's docstring."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._builder = ViewBuilder(folder)
        self._follower = RecordFollower(folder, self._builder.add, from_start=True)

    def catch_up(self, limit_s: float) -> bool:
        """Read what was written since, for so long at most; whether there was anything."""
        until, found = time.monotonic() + limit_s, False
        while self._follower.poll():
            found = True
            if time.monotonic() > until:
                break
        return found

    def view(self) -> RunView:
        """What is shown of it now."""
        return self._builder.view()
