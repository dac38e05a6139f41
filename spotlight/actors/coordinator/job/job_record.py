"""Everything that a job writes down. Nothing is written after the first write that failed. Where
the disk was full another runner goes on from what is there once it has room, as after a kill; else
the job ends with the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from spotlight.actors.coordinator.job.measures import Picture
from spotlight.actors.coordinator.job.run_record import RunRecord
from spotlight.actors.coordinator.tenant.tenant_log import TenantLog
from spotlight.errors import RunFolderError, is_disk_full
from spotlight.record.run_events import RunEvent
from spotlight.record.run_metrics import IterationMetrics, ValidationMetrics

if TYPE_CHECKING:
    from spotlight.actors.coordinator.job.job_runner import JobRunner


class JobRecord:
    """See the module's docstring.

    Args:
        run: what is written to.
        log: tells operators of the job.
        job: ends, or waits, when something cannot be written.
    """

    def __init__(self, run: RunRecord, log: TenantLog, job: JobRunner) -> None:
        self.run = run
        self._log = log
        scores = [one.score for one in run.validations]
        log.begins(run.time_s(), scores[-1] if scores else None)
        self._job = job
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
        """Append to events.jsonl, and tell the log if people want to know."""
        self._log.event(event)
        self.write(lambda: self.run.event(event))

    def iteration(self, metrics: IterationMetrics, training: Mapping[str, float]) -> None:
        """An iteration is done; `training` are the metrics of its update."""
        self.write(lambda: self.run.iteration(metrics, training))
        self._log.iteration(metrics, self.run.time_s())

    def validation(
        self, metrics: ValidationMetrics, shown: Sequence[Picture], left: Mapping[str, str]
    ) -> None:
        """A weights version is validated; see `RunRecord.validation`."""
        self.write(lambda: self.run.validation(metrics, shown, left))
        self._log.validation(metrics)

    def stop_for(self, error: RunFolderError) -> None:
        """Something could not be written."""
        self._log.lines.error("run_folder", reason=str(error))
        (self._job.wait_for_room if is_disk_full(error) else self._job.fail)(str(error))
        self._unwritable = True

    def close(self) -> None:
        """Release the run folder."""
        self._unwritable = True
        self.run.close()
