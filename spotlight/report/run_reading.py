"""Reads a run folder into typed records.

The coordinator appends to the files while it runs and may be killed at any instruction, so the last
line of a file may be torn: it is dropped, which `RunHistory.notes` tells. Anything else that is
wrong raises `RunFolderError` with the file, the line and what is wrong.

What workers did is most of what a run writes, and is not kept but read again as often as it is
asked for. Their states are in files of their own, which have the last hour, and in runs of earlier
versions among the events.

Where a resumed run wrote an iteration or a validation again, the later line counts.
"""

from __future__ import annotations

import heapq
import json
import math
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from spotlight.errors import JobError, RunFolderError, UnreadableFile
from spotlight.files import read_text
from spotlight.jobs import LARGEST_JOB_FILE, JobSpec, parse_job_of_run
from spotlight.record.former_events import as_today
from spotlight.record.ledger import Ledger
from spotlight.record.run_events import EVENTS, PhaseBegan, RunEvent, TimePassed, WorkerStateBegan
from spotlight.record.run_metrics import IterationMetrics, RunMetrics, ValidationMetrics
from spotlight.store.ledger_file import read_ledger
from spotlight.store.record_files import (
    METRICS,
    NEWEST,
    STATES,
    Line,
    event_lines,
    metrics_lines,
    state_lines,
)

_STATE = b"worker_state"
_STATE_DECODER = msgspec.json.Decoder(WorkerStateBegan)
_WINDOW = 4096
T = TypeVar("T")
EventT = TypeVar("EventT", bound=RunEvent)


class Picture(msgspec.Struct, frozen=True, kw_only=True):
    """One validation image: its prompt, its reward and the PNG."""

    prompt: str
    reward: float | None
    file: Path


class Gallery(msgspec.Struct, frozen=True, kw_only=True):
    """The validation images of one weights version, one per prompt."""

    weights_version: int
    pictures: tuple[Picture, ...]


class RunHistory(msgspec.Struct, frozen=True, kw_only=True):
    """All that a run folder says, in order of time."""

    folder: Path
    job: JobSpec
    job_yaml: str
    iterations: tuple[IterationMetrics, ...]
    validations: tuple[ValidationMetrics, ...]
    phases: tuple[PhaseBegan, ...]
    events: tuple[RunEvent, ...]
    """All that this Spotlight knows, but phases, the states of workers and that time passed."""
    last_event_s: float
    """When the last event was, of any kind, or the last state of a worker."""
    events_end: int
    """The byte up to which the text of events was read."""
    states_from_s: float = math.inf
    """When the first state began of those that are in files of their own; infinite if none is."""
    ledger: Ledger = Ledger()
    """What every second of every worker went to; empty if that was not written down."""
    galleries: tuple[Gallery, ...]
    """The galleries of the first and of the latest validated weights version, as far as they are
    there."""
    notes: tuple[str, ...]
    """What was dropped while reading."""

    @property
    def run_seconds(self) -> float:
        """Run time from the start of the job to the last thing that was written."""
        return max(
            0.0,
            *(iteration.time_s for iteration in self.iterations),
            *(validation.time_s for validation in self.validations),
            self.last_event_s,
        )

    def worker_states(self) -> Iterator[WorkerStateBegan]:
        """The states of workers, as far as they are on disk: in order of time as far as that is in
        question for `_WINDOW` lines."""
        window: list[tuple[float, int, WorkerStateBegan]] = []
        for number, event in enumerate(self._states_as_written()):
            entry = (event.time_s, number, event)
            if len(window) < _WINDOW:
                heapq.heappush(window, entry)
            else:
                yield heapq.heappushpop(window, entry)[-1]
        yield from (event for _, _, event in sorted(window))

    def _states_as_written(self) -> Iterator[WorkerStateBegan]:
        for line in event_lines(self.folder, self.events_end):
            if _STATE not in line.text:
                continue
            try:
                yield _STATE_DECODER.decode(line.text)
            except msgspec.MsgspecError:  # another event that names one, or a number that is none
                value = _json_object(line)
                if value.get("event") == "worker_state":
                    yield _convert(value, WorkerStateBegan, line.where)
        until_s = self.run_seconds
        for state in _states(self.folder, []):
            if state.time_s <= until_s:  # else it came after the rest was read
                yield state

    def events_of(self, kind: type[EventT]) -> tuple[EventT, ...]:
        """The events of a kind."""
        return tuple(event for event in self.events if isinstance(event, kind))


def read_run(folder: Path) -> RunHistory:
    """Read a run folder; of a run that goes on, what is there so far.

    Raises `RunFolderError` naming the file (and the line) that is missing or malformed.
    """
    notes: list[str] = []
    job_yaml = _read_config(folder / "config.yaml")
    try:
        job = parse_job_of_run(job_yaml, source=str(folder / "config.yaml"))
    except JobError as error:
        raise RunFolderError(f"{folder / 'config.yaml'}: is not a job: {error}") from error
    iterations: dict[int, IterationMetrics] = {}
    validations: dict[int, ValidationMetrics] = {}
    for where, line, _ in _json_lines(metrics_lines(folder), METRICS, notes):
        kind = line.get("kind")
        if kind == "iteration":
            iteration = _convert(line, IterationMetrics, where)
            iterations[iteration.iteration] = iteration
        elif kind == "validation":
            validation = _convert(line, ValidationMetrics, where)
            validations[validation.weights_version] = validation
        else:
            raise RunFolderError(f"{where}: `kind` must be iteration or validation, not {kind!r}")
        _convert(line, _Timed, where)
    phases: list[PhaseBegan] = []
    events: list[RunEvent] = []
    last_event_s, events_end = 0.0, 0
    for where, line, end in _json_lines(event_lines(folder), NEWEST, notes):
        line = as_today(line)
        head = _convert(line, _EventHead, where)
        last_event_s, events_end = max(last_event_s, head.time_s), end
        if head.event not in EVENTS:
            continue  # of another Spotlight
        event = _convert(line, EVENTS[head.event], where)
        if isinstance(event, PhaseBegan):
            phases.append(event)
        elif not isinstance(event, WorkerStateBegan | TimePassed):
            events.append(event)
    states_from_s = math.inf
    for state in _states(folder, notes):
        states_from_s = min(states_from_s, state.time_s)
        last_event_s = max(last_event_s, state.time_s)
    return RunHistory(
        folder=folder,
        job=job,
        job_yaml=job_yaml,
        iterations=tuple(iterations[key] for key in sorted(iterations)),
        validations=tuple(sorted(validations.values(), key=_time)),
        phases=tuple(sorted(phases, key=_time)),
        events=tuple(sorted(events, key=_time)),
        last_event_s=last_event_s,
        events_end=events_end,
        states_from_s=states_from_s,
        ledger=_read_ledger(folder, notes),
        galleries=_read_galleries(folder / "validation"),
        notes=tuple(notes),
    )


def _read_ledger(folder: Path, notes: list[str]) -> Ledger:
    """An empty one where there is none that can be read."""
    try:
        return read_ledger(folder)
    except RunFolderError as error:
        notes.append(str(error))
        return Ledger()


def _states(folder: Path, notes: list[str]) -> Iterator[WorkerStateBegan]:
    """Those in files of their own."""
    for line in state_lines(folder):
        try:
            yield _STATE_DECODER.decode(line.text)
        except msgspec.MsgspecError:
            for where, value, _ in _json_lines([line], STATES, notes):
                yield _convert(value, WorkerStateBegan, where)


def _time(record: RunMetrics | RunEvent) -> float:
    return record.time_s


def _read_config(path: Path) -> str:
    try:
        return read_text(path, most=LARGEST_JOB_FILE)
    except UnreadableFile as error:
        raise RunFolderError(f"{path}: {error.problem}; give the folder of a run") from error


def _json_lines(
    lines: Iterable[Line], name: str, notes: list[str]
) -> Iterator[tuple[str, dict[str, Any], int]]:
    """(`file, line n`, object, end) of each line that says something."""
    for line in lines:
        if not line.text.strip():
            continue
        try:
            value = _json_object(line)
        except RunFolderError:
            if line.text.endswith(b"\n"):
                raise
            notes.append(f"{name}: the last line is torn and was left out")
        else:
            yield line.where, value, line.end


def _json_object(line: Line) -> dict[str, Any]:
    try:
        value = json.loads(line.text)
    except (ValueError, RecursionError) as error:
        raise RunFolderError(
            f"{line.where}: is not JSON ({error}); fix or remove the line"
        ) from error
    if not isinstance(value, dict):
        raise RunFolderError(f"{line.where}: must be a JSON object; fix or remove the line")
    # A loss can become NaN; for a reader it is a value that is not there.
    return {key: None if _not_finite(item) else item for key, item in value.items()}


def _not_finite(value: object) -> bool:
    return isinstance(value, float) and not math.isfinite(value)


def _convert(line: dict[str, Any], kind: type[T], where: str) -> T:
    try:
        return msgspec.convert(line, kind)
    except msgspec.ValidationError as error:
        raise RunFolderError(f"{where}: {str(error)[:1].lower()}{str(error)[1:]}") from error


class _Timed(msgspec.Struct, frozen=True):
    """A line must say when it was written, though its record can be made without."""

    time_s: float


class _EventHead(_Timed, frozen=True):
    event: str


class _PictureLine(msgspec.Struct, frozen=True):
    prompt: str
    file: str
    reward: float | None = None


def _read_galleries(folder: Path) -> tuple[Gallery, ...]:
    """The galleries of the first and of the latest version that has one."""
    versions = sorted(
        (int(path.parent.name[1:]), path)
        for path in folder.glob("v*/prompts.json")
        if path.parent.name[1:].isdecimal()
    )
    ends = versions[:1] + versions[1:][-1:]
    return tuple(_read_gallery(version, path) for version, path in ends)


def _read_gallery(version: int, path: Path) -> Gallery:
    try:
        lines = msgspec.json.decode(path.read_bytes(), type=list[_PictureLine])
    except msgspec.DecodeError as error:
        raise RunFolderError(f"{path}: {error}") from error
    pictures = []
    for line in lines:
        if Path(line.file).name != line.file:
            raise RunFolderError(f"{path}: `file` must be a name in the same folder: {line.file!r}")
        pictures.append(
            Picture(prompt=line.prompt, reward=line.reward, file=path.parent / line.file)
        )
    return Gallery(weights_version=version, pictures=tuple(pictures))
