"""What a job writes down while it runs: events, metrics, validation pictures, progress.

All times are seconds of run time: those of earlier, interrupted runs of the same folder included.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import structlog

from spotlight.actors.coordinator.measures import Picture
from spotlight.errors import RunFolderError
from spotlight.policies.step_times import StepTimes
from spotlight.run_events import RunEvent, encode_event
from spotlight.run_metrics import IterationMetrics, RunMetrics, ValidationMetrics
from spotlight.store.run_folder import RunFolder

log = structlog.get_logger(__name__)


class RunRecord:
    """Writes to a run folder with the run's own clock."""

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder
        self._loop = asyncio.get_running_loop()
        self._offset_s = folder.last_time_s() - self._loop.time()
        self.validations = folder.validations()
        """Those that are on record, in their order."""

    @property
    def path(self) -> Path:
        """The run folder."""
        return self._folder.path

    def time_s(self) -> float:
        """Run time now."""
        return self._loop.time() + self._offset_s

    def require_there(self) -> None:
        """Raise `RunFolderError` if the folder is gone."""
        self._folder.require_there()

    def event(self, event: RunEvent) -> None:
        """Append to events.jsonl."""
        self._folder.record_event(encode_event(event, round(self.time_s(), 4)))

    def iteration(self, metrics: IterationMetrics, training: Mapping[str, float]) -> None:
        """Append an iteration to metrics.jsonl, with the metrics of its update."""
        metrics.weights_version = metrics.iteration
        made = metrics.samples - metrics.samples_restored
        metrics.images_per_s = made / metrics.rollout_s if metrics.rollout_s else 0.0
        self._append_metrics(metrics, training)

    def validation(self, metrics: ValidationMetrics, pictures: Sequence[Picture]) -> None:
        """Append a validation to metrics.jsonl and put its pictures in place."""
        self._append_metrics(metrics)
        self.validations.append(metrics)
        self._folder.show_pictures(metrics.weights_version, msgspec.to_builtins(pictures))

    def _append_metrics(self, metrics: RunMetrics, others: Mapping[str, float] = {}) -> None:
        metrics.time_s = self.time_s()
        line: dict[str, Any] = {**msgspec.to_builtins(metrics), **others}
        self._folder.record_metrics({key: _rounded(value) for key, value in line.items()})

    def step_times(self) -> StepTimes:
        """What this run measured before; nothing if its file is absent or damaged: it will be
        measured again.
        """
        try:
            saved = self._folder.step_times()
            return StepTimes.from_dict(json.loads(saved)) if saved is not None else StepTimes()
        except (RunFolderError, ValueError, RecursionError) as error:
            path = str(self._folder.path / "step-times.json")
            log.warning("step_times_not_loaded", path=path, reason=str(error))
            return StepTimes()

    def save_step_times(self, times: StepTimes) -> None:
        """Replace step-times.json."""
        self._folder.save_step_times(times.to_dict())

    def rewind(self, completed: int, validated: Collection[int]) -> None:
        """The run goes on after so many iterations, with these versions validated."""
        self._folder.rewind(completed, validated)
        self.validations = self._folder.validations()

    def sync(self) -> None:
        """Make what was recorded so far durable."""
        self._folder.sync_events()

    def keep_checkpoint(self, path: str) -> None:
        """Older checkpoints are no longer needed."""
        self._folder.keep_checkpoints({path})

    def close(self) -> None:
        """Release the folder."""
        self._folder.close()


def _rounded(value: Any) -> Any:
    """Numbers with as many digits as anybody reads."""
    if isinstance(value, dict):
        return {key: _rounded(each) for key, each in value.items()}
    return round(value, 6) if isinstance(value, float) else value
