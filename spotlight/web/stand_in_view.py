"""Makes a view of the metrics of a run alone."""

from __future__ import annotations

from pathlib import Path

from spotlight.errors import RunFolderError
from spotlight.jobs import JobSpec
from spotlight.record.run_events import PhaseBegan, RunFinished, RunStarted
from spotlight.record.run_metrics import ValidationMetrics
from spotlight.report.run_view import CURVES, JobPart, RunView, ValidationPart
from spotlight.store.run_folder import read_config
from spotlight.trackers import IterationRecord, RunRecords


class ViewBuilder:
    """Fed with the records of a run."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._notes: tuple[str, ...] = ()
        self._job: JobSpec | None = None
        try:
            self._job = read_config(folder)
        except RunFolderError as error:
            self._notes = (str(error),)
        self._rows: dict[int, dict[str, float | None]] = {}
        self._scores: dict[int, float] = {}
        self._time_s = 0.0
        self._phase = ""
        self._ended = ("running", "")

    def add(self, record: RunRecords) -> None:
        """The next record."""
        if isinstance(record, IterationRecord):
            one = record.metrics
            self._time_s = max(self._time_s, one.time_s)
            self._rows[one.iteration] = {
                "iteration": float(one.iteration + 1),
                "time_s": one.time_s,
                "reward": one.reward_mean,
                "loss": one.loss,
                "grad_norm": one.grad_norm,
                "learning_rate": one.learning_rate,
                "kl": record.loss.get("kl"),
                "contrast": one.contrast,
                "contrast_at_random": one.contrast_at_random,
                "fidelity": one.probe_correlation,
            }
            return
        self._time_s = max(self._time_s, record.time_s)
        if isinstance(record, ValidationMetrics):
            self._scores[record.weights_version] = record.score
            if record.iteration - 1 in self._rows:
                self._rows[record.iteration - 1]["validation"] = record.score
        elif isinstance(record, PhaseBegan):
            self._phase = record.phase
        elif isinstance(record, RunStarted):
            self._ended = ("running", "")
        elif isinstance(record, RunFinished):
            self._ended = (record.outcome, record.reason)

    def view(self) -> RunView:
        """What is shown now."""
        rows = [self._rows[key] for key in sorted(self._rows)][-1000:]
        scores = [self._scores[key] for key in sorted(self._scores)]
        outcome, reason = self._ended
        return RunView(
            job=JobPart(
                name=self._job.name if self._job else self._folder.name,
                outcome=outcome,
                reason=reason,
                phase=self._phase,
                iteration=max(self._rows, default=-1) + 1,
                iterations=self._job.iterations if self._job else 0,
                time_s=self._time_s,
            ),
            validation=ValidationPart(
                first=scores[0] if scores else None,
                latest=scores[-1] if scores else None,
                best=max(scores, default=None),
            ),
            rows=tuple(tuple(row.get(name) for name in CURVES) for row in rows),
            notes=self._notes,
        )
