"""Reads a run folder into typed records.

The coordinator appends to the files while it runs and may be killed at any instruction, so the last
line of a file may be torn: it is dropped and said in `RunRecord.notes`. Anything else that is wrong
raises `RunFolderError` with the file, the line and what is wrong.

What workers did is most of a run's events, and is not kept but read again as often as it is asked
for.

Where a resumed run wrote an iteration or a validation again, the later line counts.
"""

from __future__ import annotations

import heapq
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar

import msgspec

from spotlight.errors import JobError, RunFolderError, UnreadableFile
from spotlight.files import open_file, read_text
from spotlight.jobs import LARGEST_JOB_FILE, JobSpec, parse_job

_EVENTS = "events.jsonl"
_STATE = b"worker_state"
_WINDOW = 4096
T = TypeVar("T")
State = Literal[
    "starting", "loading", "rollout", "explore", "evaluate", "score", "train", "idle", "gone"
]


class IterationRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One finished iteration; times in seconds of run time, spreads as standard deviations."""

    iteration: int
    time_s: float
    """When the iteration was over."""
    weights_version: int = 0
    rollout_s: float | None = None
    train_s: float | None = None
    publish_s: float | None = None
    samples: int = 0
    samples_restored: int = 0
    """Of those, the ones that were there before a coordinator came back in this rollout."""
    scoring_s: float | None = None
    """Worker time in scorers since the iteration before, beside whatever else the workers did."""
    images_per_s: float | None = None
    reward_mean: float | None = None
    reward_std: float | None = None
    group_std_mean: float | None = None
    """Mean over the prompt groups of the spread of their rewards."""
    zero_variance_groups: int = 0
    contrast: float | None = None
    """Root mean square over the prompt groups of the spread of their rewards."""
    contrast_at_random: float | None = None
    """The same, to expect of as many seeds taken at random, from the rewards of probes."""
    loss: float | None = None
    grad_norm: float | None = None
    previews: int = 0
    previews_late: int = 0
    window_s: float | None = None
    """Time to explore in for the next iteration, which validation may leave nothing of."""
    explored_prompts: int = 0
    preview_group_std_mean: float | None = None
    """The same spread as the previews of the kept seeds promised it."""
    rank_correlation: float | None = None
    probes: int = 0
    """Previewed seeds, drawn at random, that were regenerated to see whether previews are true."""
    realised_share: float | None = None
    """Of the gain in spread over seeds taken at random that previews promised."""
    probe_tau: float | None = None
    """Kendall's, of all probes so far, which fade."""


class ValidationRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One validation of one weights version."""

    weights_version: int
    time_s: float
    score: float
    iteration: int = 0
    images: int = 0


class WorkerEvent(msgspec.Struct, frozen=True, kw_only=True, tag_field="event", tag="worker_state"):
    """A worker is in `state` from `time_s` on."""

    time_s: float
    worker: str
    state: State
    node: str = ""
    pool: str = ""


_DECODER = msgspec.json.Decoder(WorkerEvent)


class PhaseEvent(msgspec.Struct, frozen=True, kw_only=True):
    """The job is in `phase` from `time_s` on."""

    time_s: float
    phase: str
    iteration: int = 0


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """Any other event, with its fields as they were written."""

    time_s: float
    name: str
    fields: dict[str, Any]

    @property
    def reissued(self) -> int:
        """Requests that the event says were given out again: a number, or numbers by kind."""
        said = self.fields.get("requests_reissued")
        counts = said.values() if isinstance(said, dict) else (said,)
        return sum(count for count in counts if isinstance(count, int))


class Picture(msgspec.Struct, frozen=True, kw_only=True):
    """One validation image: its prompt, its reward and the PNG."""

    prompt: str
    reward: float | None
    file: Path


class Gallery(msgspec.Struct, frozen=True, kw_only=True):
    """The validation images of one weights version, one per prompt."""

    weights_version: int
    pictures: tuple[Picture, ...]


class RunRecord(msgspec.Struct, frozen=True, kw_only=True):
    """All that a run folder says, in order of time."""

    folder: Path
    job: JobSpec
    job_yaml: str
    iterations: tuple[IterationRecord, ...]
    validations: tuple[ValidationRecord, ...]
    phases: tuple[PhaseEvent, ...]
    events: tuple[Event, ...]
    """All but phases and what workers said."""
    last_event_s: float
    """When the last event was, of any kind."""
    events_end: int
    """Up to this byte events.jsonl was read."""
    galleries: tuple[Gallery, ...]
    """Of the first and of the latest validated weights version, as far as they are there."""
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

    def worker_events(self) -> Iterator[WorkerEvent]:
        """What workers said, in order of time as far as that is in question for `_WINDOW` lines."""
        window: list[tuple[float, int, WorkerEvent]] = []
        for number, event in enumerate(self._worker_events()):
            entry = (event.time_s, number, event)
            if len(window) < _WINDOW:
                heapq.heappush(window, entry)
            else:
                yield heapq.heappushpop(window, entry)[-1]
        yield from (event for _, _, event in sorted(window))

    def _worker_events(self) -> Iterator[WorkerEvent]:
        """As they were written."""
        for line in _lines(self.folder / _EVENTS, self.events_end):
            if _STATE not in line.text:
                continue
            try:
                yield _DECODER.decode(line.text)
            except msgspec.MsgspecError:  # it speaks of one, or has a number that is none
                value = _json_object(line)
                if value.get("event") == "worker_state":
                    yield _convert(value, WorkerEvent, line.where)

    def events_named(self, *names: str) -> tuple[Event, ...]:
        """The events with one of these names."""
        return tuple(event for event in self.events if event.name in names)


def read_run(folder: Path) -> RunRecord:
    """Read a run folder; of a run that goes on, what is there so far.

    Raises `RunFolderError` naming the file (and the line) that is missing or malformed.
    """
    notes: list[str] = []
    job_yaml = _read_config(folder / "config.yaml")
    try:
        job = parse_job(job_yaml, source=str(folder / "config.yaml"))
    except JobError as error:
        raise RunFolderError(f"{folder / 'config.yaml'}: is not a job: {error}") from error
    iterations: dict[int, IterationRecord] = {}
    validations: dict[int, ValidationRecord] = {}
    for where, line, _ in _json_lines(folder / "metrics.jsonl", notes):
        kind = line.get("kind")
        if kind == "iteration":
            iteration = _convert(line, IterationRecord, where)
            iterations[iteration.iteration] = iteration
        elif kind == "validation":
            validation = _convert(line, ValidationRecord, where)
            validations[validation.weights_version] = validation
        else:
            raise RunFolderError(f"{where}: `kind` must be iteration or validation, not {kind!r}")
    phases: list[PhaseEvent] = []
    events: list[Event] = []
    last_event_s, events_end = 0.0, 0
    for where, line, end in _json_lines(folder / _EVENTS, notes):
        match line.get("event"):
            case "worker_state":
                event: WorkerEvent | PhaseEvent | Event = _convert(line, WorkerEvent, where)
            case "phase":
                event = _convert(line, PhaseEvent, where)
                phases.append(event)
            case _:
                event = _event(line, where)
                events.append(event)
        last_event_s, events_end = max(last_event_s, event.time_s), end
    return RunRecord(
        folder=folder,
        job=job,
        job_yaml=job_yaml,
        iterations=tuple(iterations[key] for key in sorted(iterations)),
        validations=tuple(sorted(validations.values(), key=_time)),
        phases=tuple(sorted(phases, key=_time)),
        events=tuple(sorted(events, key=_time)),
        last_event_s=last_event_s,
        events_end=events_end,
        galleries=_read_galleries(folder / "validation"),
        notes=tuple(notes),
    )


def _time(record: ValidationRecord | PhaseEvent | Event) -> float:
    return record.time_s


def _read_config(path: Path) -> str:
    try:
        return read_text(path, most=LARGEST_JOB_FILE)
    except UnreadableFile as error:
        raise RunFolderError(f"{path}: {error.problem}; give the folder of a run") from error


class _Line(NamedTuple):
    where: str
    """`file, line n`."""
    text: bytes
    end: int
    """Of the line in the file."""


def _lines(path: Path, end: int | None = None) -> Iterator[_Line]:
    """Of a file up to a byte, one by one; none when the file is not there yet."""
    if not path.exists():
        return
    try:
        with open_file(path) as file:  # it may grow meanwhile
            position = 0
            for number, text in enumerate(file, start=1):
                position += len(text)
                if end is not None and position > end:
                    return
                yield _Line(f"{path}, line {number}", text, position)
    except UnreadableFile as error:
        raise RunFolderError(f"{path}: {error.problem}; give the folder of a run") from error


def _json_lines(path: Path, notes: list[str]) -> Iterator[tuple[str, dict[str, Any], int]]:
    """(`file, line n`, object, end) of each line that says something."""
    for line in _lines(path):
        if not line.text.strip():
            continue
        try:
            value = _json_object(line)
        except RunFolderError:
            if line.text.endswith(b"\n"):
                raise
            notes.append(f"{path.name}: the last line is torn and was left out")
        else:
            yield line.where, value, line.end


def _json_object(line: _Line) -> dict[str, Any]:
    try:
        value = json.loads(line.text)
    except (ValueError, RecursionError) as error:
        raise RunFolderError(
            f"{line.where}: is not JSON ({error}); mend or remove the line"
        ) from error
    if not isinstance(value, dict):
        raise RunFolderError(f"{line.where}: must be a JSON object; mend or remove the line")
    # A loss can become NaN; for a reader it is a value that is not there.
    return {key: None if _not_finite(item) else item for key, item in value.items()}


def _not_finite(value: object) -> bool:
    return isinstance(value, float) and not math.isfinite(value)


def _convert(line: dict[str, Any], kind: type[T], where: str) -> T:
    try:
        return msgspec.convert(line, kind)
    except msgspec.ValidationError as error:
        raise RunFolderError(f"{where}: {str(error)[:1].lower()}{str(error)[1:]}") from error


def _event(line: dict[str, Any], where: str) -> Event:
    head = _convert(line, _EventHead, where)
    fields = {key: value for key, value in line.items() if key not in ("time_s", "event")}
    return Event(time_s=head.time_s, name=head.event, fields=fields)


class _EventHead(msgspec.Struct, frozen=True):
    time_s: float
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
