"""Everything that a job writes down. The first failed write ends the job with the reason, and
nothing is written after it.
"""

from __future__ import annotations

from collections.abc import Callable

import structlog

from spotlight.actors.coordinator.run_record import RunRecord
from spotlight.errors import RunFolderError
from spotlight.run_events import RunEvent

log = structlog.get_logger(__name__)


class JobRecord:
    """See the module's docstring.

    Args:
        run: what is written to.
        fail: ends the job with a reason.
    """

    def __init__(self, run: RunRecord, fail: Callable[[str], None]) -> None:
        self.run = run
        self._fail = fail
        self._unwritable = False

    def write(self, write: Callable[[], None]) -> None:
        """Write to the run folder or the journal."""
        if self._unwritable:
            return
        try:
            write()
        except RunFolderError as error:
            self.stop_for(error)

    def event(self, event: RunEvent) -> None:
        """Append to events.jsonl."""
        self.write(lambda: self.run.event(event))

    def stop_for(self, error: RunFolderError) -> None:
        """Something could not be written."""
        log.error("run_folder", reason=str(error))
        self._fail(str(error))
        self._unwritable = True

    def close(self) -> None:
        """Release the run folder."""
        self._unwritable = True
        self.run.close()
