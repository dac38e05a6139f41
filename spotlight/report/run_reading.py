"""Reads a run folder into typed records.

The coordinator appends to the files while it runs and may be killed at any instruction, so the last
line of a file may be torn: it is dropped and said in `RunRecord.notes`. Anything else that is wrong
raises `RunFolderError` with the file, the line and what is wrong.

Where a resumed run wrote an iteration or a validation again, the later line counts.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec

from spotlight.errors import JobError, RunFolderError, UnreadableFile
from spotlight.files import open_file, read_text
from spotlight.jobs import LARGEST_JOB_FILE, JobSpec, parse_job

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


class WorkerEvent(msgspec.Struct, frozen=True, kw_only=True):
    """A worker is in `state` from `time_s` on."""

    time_s: float
    worker: str
    state: State
    node: str = ""
    pool: str = ""


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
    worker_events: tuple[WorkerEvent, ...]
    phases: tuple[PhaseEvent, ...]
    events: tuple[Event, ...]
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
            *(event.time_s for event in self.worker_events),
            *(phase.time_s for phase in self.phases),
            *(event.time_s for event in self.events),
            0.0,
        )

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
    for where, line in _json_lines(folder / "metrics.jsonl", notes):
        kind = line.get("kind")
        if kind == "iteration":
            iteration = _convert(line, IterationRecord, where)
            iterations[iteration.iteration] = iteration
        elif kind == "validation":
            validation = _convert(line, ValidationRecord, where)
            validations[validation.weights_version] = validation
        else:
            raise RunFolderError(f"{where}: `kind` must be iteration or validation, not {kind!r}")
    worker_events: list[WorkerEvent] = []
    phases: list[PhaseEvent] = []
    events: list[Event] = []
    for where, line in _json_lines(folder / "events.jsonl", notes):
        match line.get("event"):
            case "worker_state":
                worker_events.append(_convert(line, WorkerEvent, where))
            case "phase":
                phases.append(_convert(line, PhaseEvent, where))
            case _:
                events.append(_event(line, where))
    return RunRecord(
        folder=folder,
        job=job,
        job_yaml=job_yaml,
        iterations=tuple(iterations[key] for key in sorted(iterations)),
        validations=tuple(sorted(validations.values(), key=_time)),
        worker_events=tuple(sorted(worker_events, key=_time)),
        phases=tuple(sorted(phases, key=_time)),
        events=tuple(sorted(events, key=_time)),
        galleries=_read_galleries(folder / "validation"),
        notes=tuple(notes),
    )


def _time(record: ValidationRecord | WorkerEvent | PhaseEvent | Event) -> float:
    return record.time_s


def _read_config(path: Path) -> str:
    try:
        return read_text(path, most=LARGEST_JOB_FILE)
    except UnreadableFile as error:
        raise RunFolderError(f"{path}: {error.problem}; give the folder of a run") from error


def _json_lines(path: Path, notes: list[str]) -> list[tuple[str, dict[str, Any]]]:
    """(`file, line n`, object) of each line; none when the file is not there yet."""
    if not path.exists():
        return []
    try:
        with open_file(path) as file:  # it may grow meanwhile
            raw = file.read()
    except UnreadableFile as error:
        raise RunFolderError(f"{path}: {error.problem}; give the folder of a run") from error
    lines = raw.split(b"\n")
    torn = lines.pop() if lines[-1] else b""
    parsed = []
    for number, line in enumerate(lines, start=1):
        where = f"{path}, line {number}"
        if line.strip():
            parsed.append((where, _json_object(line, where)))
    if torn:
        where = f"{path}, line {len(lines) + 1}"
        try:
            parsed.append((where, _json_object(torn, where)))
        except RunFolderError:
            notes.append(f"{path.name}: the last line is torn and was left out")
    return parsed


def _json_object(text: bytes, where: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise RunFolderError(f"{where}: is not JSON ({error}); mend or remove the line") from error
    if not isinstance(value, dict):
        raise RunFolderError(f"{where}: must be a JSON object; mend or remove the line")
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
