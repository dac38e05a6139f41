"""What a job writes down while it runs: events, metrics, validation pictures, progress.

All times are seconds of run time: those of earlier, interrupted runs of the same folder included.
While a coordinator is away in the middle of a job, run time goes on, as far as the wall clock tells
of how long; between the end of a job and its resumption it does not. It never goes back, and a
clock that was set by more than a day meanwhile puts it forward by one.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Any

import msgspec
import structlog

from spotlight.actors.coordinator.job.measures import Picture
from spotlight.actors.protocol.artifacts import thumbnail_key_of
from spotlight.errors import RunFolderError
from spotlight.policies.checkpoint_retention import (
    best_version,
    checks_of,
    kept_checkpoints,
    scores_of,
)
from spotlight.policies.run_tally import COUNTED, RunTally
from spotlight.policies.step_times import StepTimes
from spotlight.record.run_events import (
    RunEvent,
    SegmentBegan,
    TimePassed,
    WorkerStateBegan,
    encode_event,
)
from spotlight.record.run_metrics import (
    IterationMetrics,
    RunMetrics,
    ValidationMetrics,
    with_update,
)
from spotlight.store.ledger_file import read_ledger
from spotlight.store.run_folder import Moment, RunFolder
from spotlight.store.thumbnails import FOLDER, ShownSamples
from spotlight.trackers import (
    CallbackThread,
    IterationRecord,
    ShownPicture,
    Told,
    ValidationPictures,
)

LONGEST_AWAY_S = 86_400.0
"""Run time goes on for so long at most while no coordinator is there."""

_TOLD_PICTURES = 16
"""Trackers are shown so many pictures of a validation."""

log = structlog.get_logger(__name__)


class RunRecord:
    """Writes to a run folder with the run's own clock.

    Args:
        callbacks: told of all that is written.
        clock: the wall clock, seconds since 1970.
        came_back: an earlier coordinator was ended in the middle of the job.
    """

    def __init__(
        self,
        folder: RunFolder,
        callbacks: CallbackThread | None = None,
        *,
        clock: Callable[[], float] = time.time,
        came_back: bool = False,
    ) -> None:
        self._folder = folder
        self._tell = callbacks.put if callbacks is not None else _to_nobody
        self._loop = asyncio.get_running_loop()
        self._clock = clock
        last = folder.last_moment()
        self._written_s = last.time_s
        with suppress(RunFolderError):  # who writes the ledger says so
            self._written_s = max(last.time_s, read_ledger(folder.path).time_s)
        away_s = _away_s(last, clock()) if came_back else 0.0
        self._offset_s = max(self._written_s, last.time_s + away_s) - self._loop.time()
        self.tally = RunTally()
        """The tally of all events of the run, those of earlier coordinators included."""
        for event in folder.events(COUNTED):
            self.tally.note(event)
        self._read_metrics()

    def _read_metrics(self) -> None:
        records = self._folder.metrics()
        self.validations = [one for one in records if isinstance(one, ValidationMetrics)]
        """Those that are on record, in their order."""
        iterations = [one for one in records if isinstance(one, IterationMetrics)]
        self.latest = iterations[-1] if iterations else None
        """The iteration that was recorded last."""
        self.previews = {one.iteration: (one.previews, one.previews_late) for one in iterations}
        """How many previews of each iteration on record counted, and how many came too late."""

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
        """Append to events.jsonl, or to states.jsonl."""
        self.tally.note(event)
        time_s, at = round(self.time_s(), 4), self._at()
        if isinstance(event, WorkerStateBegan):
            self._folder.record_state(event, time_s, at)
        else:
            self._written_s = time_s
            self._folder.record_event(encode_event(event, time_s, at))
        self._tell(msgspec.structs.replace(event, time_s=time_s, at=at))

    def keep_time(self, most_s: float) -> None:
        """Write the time down if nothing was for so long."""
        if self.time_s() - self._written_s >= most_s:
            self.event(TimePassed())

    def iteration(self, metrics: IterationMetrics, training: Mapping[str, float]) -> None:
        """Append an iteration to metrics.jsonl, with the metrics of its update."""
        metrics.weights_version = metrics.iteration
        seconds = metrics.rollout_s
        metrics.images_per_s = metrics.rolled_out / seconds if seconds else 0.0
        self._append_metrics(metrics, training)
        self.latest = metrics
        self.previews[metrics.iteration] = metrics.previews, metrics.previews_late
        self._tell(IterationRecord(*with_update(metrics, training)))

    def validation(
        self,
        metrics: ValidationMetrics,
        pictures: Sequence[Picture],
        left: Mapping[str, str] = {},
    ) -> None:
        """Append a validation to metrics.jsonl and put its pictures in place, which workers have
        left under these keys, by file."""
        written = self._append_metrics(metrics)
        self.validations.append(msgspec.convert(written, ValidationMetrics))
        listing = msgspec.to_builtins(pictures)
        self._folder.show_thumbnails(
            metrics.weights_version,
            listing,
            {file: thumbnail_key_of(key) for file, key in left.items()},
        )
        self._folder.show_pictures(metrics.weights_version, listing, left)
        self._tell(metrics)
        if listing:
            self._tell(_as_told(metrics, self._folder.path, listing))

    def show_samples(self, shown: ShownSamples, left: Mapping[str, str]) -> None:
        """Put the thumbnails of an iteration's best and worst samples in place."""
        self._folder.show_samples(shown, left)

    def _append_metrics(self, metrics: RunMetrics, others: Mapping[str, float] = {}) -> Any:
        """Returns the line, which is what a coordinator that comes back reads."""
        metrics.time_s, metrics.at = self.time_s(), self._at()
        line: dict[str, Any] = {**msgspec.to_builtins(metrics), **others}
        written = {key: _rounded(value) for key, value in line.items()}
        self._folder.record_metrics(written)
        return written

    def _at(self) -> float:
        return round(self._clock(), 3)

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
        self._read_metrics()

    def sync(self) -> None:
        """Make what was recorded so far durable."""
        self._folder.sync_events()

    def segments_begun(self) -> list[SegmentBegan]:
        """The segments of the run of which no event tells yet."""
        return self._folder.segments_begun()

    def has_checkpoint(self, completed: int) -> bool:
        """Whether the checkpoint after so many iterations is there."""
        return completed in self._folder.checkpoints()

    def keep_checkpoints(self, committed: int, *, last: int, also: Collection[int] = ()) -> None:
        """Delete checkpoints that nobody needs; see `kept_checkpoints`. Those that are best by the
        rewards that nobody trains on are kept, too, and `also` these."""
        saved = self._folder.checkpoints()
        ways = (scores_of(self.validations), checks_of(self.validations))
        kept = (kept_checkpoints(saved, committed, by, last) for by in ways)
        self._folder.keep_checkpoints(frozenset(also).union(*kept))

    def new_export(self) -> AbstractContextManager[Path]:
        """A new folder, which takes the place of `export/` when the context ends well."""
        return self._folder.new_export()

    def best_checkpoint(self) -> int:
        """The one with the best validation, of those that there are. Raises `RunFolderError` if
        none has any: a job that has ended has validated what it saved last.
        """
        saved, scores = self._folder.checkpoints(), scores_of(self.validations)
        best = best_version({one: scores[one] for one in saved if one in scores})
        if best is None:
            raise RunFolderError(
                f"{self.path / 'checkpoints'} has no checkpoint of any validation; they were"
                " deleted while the job ran: submit the job again"
            )
        return best

    def close(self) -> None:
        """Release the folder."""
        self._folder.close()


def _away_s(last: Moment, now: float) -> float:
    """How long no coordinator was there since then."""
    if last.at is None or last.is_end:
        return 0.0
    return min(max(0.0, now - last.at), LONGEST_AWAY_S)


def _as_told(
    metrics: ValidationMetrics, run: Path, listing: Sequence[Mapping[str, Any]]
) -> ValidationPictures:
    """Its pictures, of which thumbnails do."""
    place = f"v{metrics.weights_version:06d}"
    shown = []
    for each in listing[:_TOLD_PICTURES]:
        whole = run / "validation" / place / each["file"]
        small = run / FOLDER / place / f"{whole.stem}.webp"
        file = small if small.exists() else whole
        shown.append(ShownPicture(whole.stem, each["prompt"], each["reward"], file))
    return ValidationPictures(metrics.weights_version, metrics.iteration, tuple(shown))


def _to_nobody(record: Told) -> None:
    """There are no callbacks."""


def _rounded(value: Any) -> Any:
    """Numbers with as many digits as anybody reads."""
    if isinstance(value, dict):
        return {key: _rounded(each) for key, each in value.items()}
    return round(value, 6) if isinstance(value, float) else value
