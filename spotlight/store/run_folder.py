"""The run folder: everything that a run leaves behind, and what a resumed run starts from.

Lines of `metrics.jsonl` and `events.jsonl` are appended whole or not at all; only a crash can leave
a torn last line, which is dropped when the folder is opened again. Events go on in another file
when theirs is large (`record_files`), and the states of workers are kept for a while only
(`states_file`). `config.yaml`, `step-times.json` and `ledger.json` are replaced at once (write,
fsync, rename); `rollups/` has files of its own kind (`rollups`). What a coordinator that comes back
needs is in the folder's journal. One coordinator at a time: the folder is locked while it is open.
An error of the file system is a `RunFolderError` that names the path; what was written before
stays.

The journal must be as new as the other files: one that is lost looks like a new one, and the run
would begin again from the start, with the numbers of leases that workers may still hold. Where the
others say more than it can, the folder is not opened.

A run is gone on with by later versions, and with another job as far as what is there does not
depend on it (`jobs.resuming`). `config.yaml` names the version that wrote it, and the run, as the
journal does. The journal has the job as it was at the run's birth, and that of every segment
(`segments`).
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from itertools import pairwise
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import msgspec

from spotlight import __version__
from spotlight.errors import JobError, JournalError, RunFolderError, UnreadableFile
from spotlight.files import irregularity, read_text
from spotlight.jobs import (
    LARGEST_JOB_FILE,
    JobSpec,
    job_of_run,
    job_to_yaml,
    parse_job_of_run,
)
from spotlight.jobs.plain_yaml import read_yaml
from spotlight.jobs.resuming import changed_field, job_with
from spotlight.jobs.stamp import Stamp, stamp_of
from spotlight.record.run_events import (
    RunEvent,
    RunFinished,
    RunStarted,
    SegmentBegan,
    WorkerStateBegan,
    decode_event,
    name_of,
)
from spotlight.record.run_metrics import IterationMetrics, ValidationMetrics, decode_metrics
from spotlight.store import record_files, thumbnails
from spotlight.store.journal import NAME as JOURNAL
from spotlight.store.journal import Journal
from spotlight.store.journal_content import OR_ANEW
from spotlight.store.record_files import LineFile, drop_torn_line
from spotlight.store.segments import (
    JOB,
    begun_at,
    changes_of,
    config_name,
    job_of,
    next_segment,
    records_of,
    segments_of,
)
from spotlight.store.states_file import StatesFile
from spotlight.timings import CoordinatorTimings


class _EventHead(msgspec.Struct, frozen=True):
    time_s: float
    event: str = ""
    at: float | None = None


_FILES = (
    ".lock",
    "config.yaml",
    "events.jsonl",
    "journal.records",
    "journal.sqlite",
    "ledger.json",
    "metrics.jsonl",
    "states.jsonl",
    "states-older.jsonl",
    "step-times.json",
)
_HEAD = msgspec.json.Decoder(_EventHead)
PROGRESS = "progress/"
"""Beginning of the journal's records of iterations: the number of those completed follows."""
RECORDS_AHEAD = "records_ahead"
"""The journal's record of having gone back to an earlier iteration, while the other files may say
more than it."""


class RunFolder:
    """An open run folder. `close` releases the lock.

    Args:
        job: with which the run begins, or goes on.
        run: its identity; empty for a run of 0.1.0, whose journal alone names one.
        files: owns what is open, the lock on the folder included.
        saved: what config.yaml says, if that differs.
    """

    def __init__(
        self, path: Path, job: JobSpec, run: str, files: ExitStack, saved: JobSpec | None = None
    ) -> None:
        self.path = path
        self._job = job
        self.journal = Journal.read(
            path / JOURNAL, owner=run or None, least_term=_recorded_term(path)
        )
        files.callback(self.journal.close)
        _require_as_new(path, self.journal)
        born = _job_at_birth(self.journal)
        if born is None:
            _require_unedited(path, self.journal)
        _require_same(path, born or saved or job, job)
        _require_not_done(path, known_iterations(self.journal), job)
        self.journal.begin({JOB: msgspec.json.encode(saved or job)} if born is None else {})
        drop_torn_line(path / record_files.NEWEST)
        self._metrics = LineFile(path / "metrics.jsonl")
        files.callback(lambda: self._metrics.close())  # of what it is by then
        self._events = LineFile(path / record_files.NEWEST)
        files.callback(lambda: self._events.close())
        self._states = StatesFile(path, CoordinatorTimings().states_kept_s)
        files.callback(self._states.close)
        self._files = files.pop_all()

    @classmethod
    def create(cls, path: Path, job: JobSpec) -> RunFolder:
        """A new folder for a job; one that holds a run already is refused."""
        with _explaining(path), ExitStack() as files:
            path.mkdir(parents=True, exist_ok=True)
            if is_run(path):
                raise RunFolderError(
                    f"{path} already holds a run; resume it with --resume, or give another "
                    "--run-folder"
                )
            if any(entry.name not in (".lock", "logs") for entry in path.iterdir()):
                raise RunFolderError(f"{path} is not empty; give another --run-folder")
            _require_files(path)
            files.enter_context(_lock(path))
            stamp = Stamp(version=__version__, run=_identity(path, job))
            replace_file(path / "config.yaml", job_to_yaml(job, stamp).encode())
            return cls(path, job, stamp.run, files)

    @classmethod
    def reopen(
        cls, path: Path, job: JobSpec | None, changes: Sequence[str] = ()
    ) -> tuple[RunFolder, JobSpec]:
        """The folder of a run that has ended, with the job that it goes on with: its own with
        `changes` (see `job_with`), which are there to stay once a segment is begun.

        A `job` that differs from that is refused.
        """
        with _explaining(path), ExitStack() as files:
            saved_job, run = read_config(path), _run_of(path)
            _require_files(path)
            now = job_with(saved_job, changes)
            if job not in (None, now):
                raise RunFolderError(
                    f"{path} belongs to another job (its config.yaml differs); resume without a "
                    "job file, or give another --run-folder"
                )
            files.enter_context(_lock(path))
            folder = cls(path, now, run, files, saved_job)
            _rename_artifacts(path)
            return folder, now

    def begin_segment(self, first: int, changes: Mapping[str, bytes | None] = {}) -> None:
        """From now on the run has the job that the folder was opened with; a segment begins with
        the iteration `first` where that, or the version of Spotlight, is another one.

        `changes`: what else of the journal changes with that. If the disk refuses, nothing has
        changed. After a kill nothing has, or config.yaml alone, which is what the run goes on with.
        """
        before = segments_of(self.journal)
        segments = next_segment(before, self._job, first)
        if segments is None:
            return self.journal.write(changes) if changes else None
        with _explaining(self.path), ExitStack() as files:
            for number, each in enumerate(before, start=1):
                text = self._stamped(job_of(each), each.version)
                files.enter_context(_replaced(self.path / config_name(number), text))
            if before:
                text = self._stamped(self._job, __version__)
                files.enter_context(_replaced(self.path / "config.yaml", text))
            self.journal.write({**changes, **records_of(segments)})

    def _stamped(self, job: JobSpec, version: str) -> bytes:
        return job_to_yaml(job, Stamp(version=version, run=self.journal.owner)).encode()

    def segments_begun(self) -> list[SegmentBegan]:
        """An event of each segment that is not among the events yet; the first needs none."""
        told = {one.number for one in self.events((SegmentBegan,)) if isinstance(one, SegmentBegan)}
        segments = list(enumerate(segments_of(self.journal), start=1))
        return [
            SegmentBegan(
                number=number,
                iteration=after.first,
                changes=changes_of(before, after),
                version=after.version,
                source=after.source,
            )
            for (_, before), (number, after) in pairwise(segments)
            if number not in told
        ]

    def metrics(self) -> list[IterationMetrics | ValidationMetrics]:
        """The lines of metrics.jsonl, in their order."""
        return _metrics_of(self.path)

    def events(self, kinds: Collection[type[RunEvent]]) -> list[RunEvent]:
        """Those of these kinds in events.jsonl, in their order. A line that cannot be read is left
        out: the report names it."""
        names = {str(kind.__struct_config__.tag) for kind in kinds}
        found = []
        for line in record_files.whole_event_lines(self.path):
            with suppress(msgspec.MsgspecError):
                if name_of(line) in names:
                    found.append(decode_event(line))
        return found

    def rewind(self, completed: int, validated: Collection[int]) -> None:
        """Drop the metrics and checkpoints of later iterations, and other validations: they will be
        made again, in the last segment.
        """
        segments = segments_of(self.journal)
        if (again := begun_at(segments, completed)) != segments:
            self.journal.write(records_of(again))
        metrics = self.path / "metrics.jsonl"
        with _explaining(metrics), _decoding(metrics):
            lines = _whole_lines(metrics)
            kept = [line for line in lines if _is_kept(line, completed, validated)]
            replace_file(metrics, b"".join(line + b"\n" for line in kept))
            self._metrics.close()
            self._metrics = LineFile(metrics)
        with _explaining(self.path):
            for number in saved_iterations(self.path):
                if number > completed:
                    (self.path / checkpoint_path(number)).unlink(missing_ok=True)

    def last_moment(self) -> Moment:
        """When the last event was recorded, or the last state of a worker: a resumed run goes on
        counting time from there."""
        events, states = self.path / record_files.NEWEST, self.path / record_files.STATES
        event = _last_moment(events, record_files.whole_event_lines(self.path))
        state = _last_moment(states, record_files.whole_state_lines(self.path))
        return event if event.time_s >= state.time_s else state._replace(is_end=event.is_end)

    def record_metrics(self, metrics: Mapping[str, Any]) -> None:
        """Append a line to metrics.jsonl and make it durable."""
        with _explaining(self.path / "metrics.jsonl"):
            self._metrics.append(metrics)
            self._metrics.sync()

    def record_event(self, event: Mapping[str, Any]) -> None:
        """Append a line to events.jsonl, and begin another file when it is large."""
        newest = self.path / record_files.NEWEST
        with _explaining(newest):
            self._events.append(event)
            if self._events.nbytes >= record_files.LARGEST:
                self._events.sync()
                record_files.set_newest_aside(self.path)
                self._events.close()
                self._events = LineFile(newest)

    def keep_states(self, kept_s: float) -> None:
        """The states of workers stay for at least so long."""
        self._states.kept_s = kept_s

    def record_state(self, event: WorkerStateBegan, time_s: float, at: float | None) -> None:
        """Append to states.jsonl."""
        with _explaining(self.path / record_files.STATES):
            self._states.append(event, time_s, at)

    def require_there(self) -> None:
        """Raise `RunFolderError` if somebody has deleted or moved the folder, or its events."""
        events = self.path / record_files.NEWEST
        try:
            if self._events.is_at(events):
                return
        except OSError:
            pass
        raise RunFolderError(
            f"{self.path} was deleted or moved while the run went on; put it back and go on with"
            " --resume, or submit the job again"
        )

    def sync_events(self) -> None:
        """Make the events so far durable."""
        with _explaining(self.path / record_files.NEWEST):
            self._events.sync()

    def save_step_times(self, times: Mapping[str, Any]) -> None:
        """Replace step-times.json."""
        path = self.path / "step-times.json"
        with _explaining(path):
            replace_file(path, json.dumps(times).encode() + b"\n")

    def step_times(self) -> bytes | None:
        """What was saved last; None if nothing was."""
        path = self.path / "step-times.json"
        with _explaining(path):
            return path.read_bytes() if path.exists() else None

    def show_pictures(
        self, version: int, listing: list[dict[str, Any]], left: Mapping[str, str] = {}
    ) -> None:
        """Move a validation's pictures out of the artifacts, where each is `left` under a key, with
        their prompts and rewards.

        Only the first and the latest validation keep theirs.
        """
        name, shown = f"v{version:06d}", self.path / "validation"
        artifacts = artifacts_of(self.path).resolve()
        with _explaining(self.path):
            shown.mkdir(exist_ok=True)
            others = sorted(e for e in shown.iterdir() if e.is_dir() and e.name != name)
            for old in others[1:]:
                shutil.rmtree(old, ignore_errors=True)
            found = {file: artifacts / key for file, key in left.items() if _is_in(artifacts, key)}
            if found and (shown / name / "prompts.json").exists():  # of an earlier validation
                shutil.rmtree(shown / name, ignore_errors=True)
            for file, picture in found.items():
                (shown / name).mkdir(exist_ok=True)
                picture.replace(shown / name / file)
            if (shown / name).is_dir():  # perhaps since before a kill
                replace_file(shown / name / "prompts.json", json.dumps(listing).encode())

    def show_thumbnails(
        self, version: int, listing: Sequence[Mapping[str, Any]], left: Mapping[str, str]
    ) -> None:
        """The same for thumbnails, some of which stay for good; see `thumbnails`."""
        artifacts = artifacts_of(self.path).resolve()
        with _explaining(self.path):
            thumbnails.keep_of_validation(
                self.path, version, listing, {file: artifacts / key for file, key in left.items()}
            )

    def show_samples(self, shown: thumbnails.ShownSamples, left: Mapping[str, str]) -> None:
        """The same for the best and worst samples of an iteration."""
        artifacts = artifacts_of(self.path).resolve()
        with _explaining(self.path):
            thumbnails.keep_of_samples(
                self.path, shown, {file: artifacts / key for file, key in left.items()}
            )

    def checkpoints(self) -> list[int]:
        """How many iterations each checkpoint holds, rising."""
        with _explaining(self.path):
            return saved_iterations(self.path)

    def open_file(self, name: str) -> BinaryIO:
        """A file of the folder, such as a checkpoint, to be read."""
        with _explaining(self.path / name):
            return open(self.path / name, "rb")

    def keep_checkpoints(self, kept: Collection[int]) -> None:
        """Delete all checkpoints but these, and what a trainer that was killed left of them."""
        with _explaining(self.path):
            for number in saved_iterations(self.path):
                if number not in kept:
                    (self.path / checkpoint_path(number)).unlink(missing_ok=True)
            newest = Path(checkpoint_path(max(kept, default=0))).name
            for part in (self.path / "checkpoints").glob(".iteration-*.partial"):
                if part.name[1 : 1 + len(newest)] <= newest:
                    part.unlink(missing_ok=True)

    @contextmanager
    def new_export(self) -> Iterator[Path]:
        """A new folder, which takes the place of `export/` when the context ends well; else it is
        gone, and what was there stays."""
        part, export = self.path / ".export.partial", self.path / "export"
        with _explaining(self.path):
            shutil.rmtree(part, ignore_errors=True)
            part.mkdir()
        try:
            yield part
            with _explaining(self.path):
                shutil.rmtree(export, ignore_errors=True)
                part.replace(export)
        finally:
            shutil.rmtree(part, ignore_errors=True)

    def close(self) -> None:
        """Release the folder."""
        self._files.close()


class Moment(NamedTuple):
    """A moment of a run."""

    time_s: float
    """The moment in run time."""
    at: float | None
    """The moment in seconds since 1970; None if nobody wrote it down."""
    is_end: bool
    """Whether the job had ended."""


def artifacts_of(run: Path) -> Path:
    """Where workers leave things for a run. No module can be imported from a folder so called."""
    return run / "artifacts.d"


def checkpoint_path(completed: int) -> str:
    """Where the checkpoint after so many iterations is, inside its run folder."""
    return f"checkpoints/iteration-{completed:06d}.safetensors"


def saved_iterations(run: Path) -> list[int]:
    """How many iterations each checkpoint of a run folder holds, rising."""
    names = (file.stem for file in (run / "checkpoints").glob("iteration-*.safetensors"))
    numbers = (name.removeprefix("iteration-") for name in names)
    return sorted(int(number) for number in numbers if number.isascii() and number.isdigit())


def validations_of(run: Path) -> list[ValidationMetrics]:
    """The validations of a run folder that are on record so far, in their order."""
    return [record for record in _metrics_of(run) if isinstance(record, ValidationMetrics)]


def metrics_until(run: Path, completed: int) -> list[dict[str, Any]]:
    """The lines of metrics.jsonl as they stand there, up to so many iterations."""
    metrics = run / "metrics.jsonl"
    with _explaining(metrics), _decoding(metrics):
        lines = _whole_lines(metrics) if metrics.exists() else []
        return [
            json.loads(line) for line in lines if _is_kept(line, completed, range(completed + 1))
        ]


def _metrics_of(run: Path) -> list[IterationMetrics | ValidationMetrics]:
    metrics = run / "metrics.jsonl"
    with _explaining(metrics), _decoding(metrics):
        lines = _whole_lines(metrics) if metrics.exists() else []
        return [decode_metrics(line) for line in lines]


def read_config(path: Path) -> JobSpec:
    """The job of a run folder; raises `RunFolderError` if it is not one."""
    config = path / "config.yaml"
    try:
        return parse_job_of_run(read_config_text(path), source=str(config))
    except JobError as error:
        raise RunFolderError(f"{config} cannot be used: {error}") from error


def read_continued(path: Path, changes: Sequence[str]) -> JobSpec:
    """The job that the run in a folder goes on with: its own with `changes`, each `path=value`.

    Raises `RunFolderError` if it is no run folder, or has done more than that job asks for, and
    `JobError` for a change that cannot be made.
    """
    job = job_with(read_config(path), changes)
    iterations = [one for one in _metrics_of(path) if isinstance(one, IterationMetrics)]
    _require_not_done(path, max((one.iteration + 1 for one in iterations), default=0), job)
    return job


def read_config_text(path: Path) -> str:
    """The job of a run folder as it stands there; raises `RunFolderError` if there is none."""
    config = path / "config.yaml"
    try:
        return read_text(config, most=LARGEST_JOB_FILE)
    except UnreadableFile as error:
        if not os.path.lexists(config):
            raise RunFolderError(
                f"{path} is not a run folder: it has no config.yaml; give the folder of a run"
            ) from error
        raise RunFolderError(f"{config} cannot be used: it {error.problem}") from error


def known_iterations(journal: Journal) -> int:
    """How many iterations of its run a journal knows to be complete."""
    return max((int(key.removeprefix(PROGRESS)) for key, _ in journal.items(PROGRESS)), default=0)


def is_run(path: Path) -> bool:
    """Whether a folder is that of a run, of whatever job."""
    return (path / "config.yaml").exists()


def next_run_folder(base: Path, name: str) -> Path:
    """The first unused `base/name-001`, `base/name-002`, ..."""
    number = 1
    while (base / f"{name}-{number:03d}").exists():
        number += 1
    return base / f"{name}-{number:03d}"


def replace_file(path: Path, data: bytes, *, mode: int = 0o666) -> None:
    """Write a file so that it is either the old or the new one after a crash or an error. `mode`:
    who may open it, less what the umask forbids."""
    temporary = path.with_name(path.name + ".part")
    temporary.unlink(missing_ok=True)  # it may be open to others
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    try:
        with open(temporary, "wb", opener=lambda name, _: os.open(name, flags, mode)) as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError:
        with suppress(OSError):
            temporary.unlink()
        raise
    _sync_folder(path.parent)


@contextmanager
def _replaced(path: Path, data: bytes) -> Iterator[None]:
    """Replace a file. If the context raises an error the file is what it was, for which the disk
    need have no room."""
    former = path.with_name(path.name + ".former")
    was_there = path.exists()
    try:
        if was_there:
            replace_file(former, path.read_bytes())
        replace_file(path, data)
        try:
            yield
        except Exception:
            if was_there:
                former.replace(path)
            else:
                path.unlink(missing_ok=True)
            _sync_folder(path.parent)
            raise
    finally:
        former.unlink(missing_ok=True)


def _sync_folder(path: Path) -> None:
    folder = os.open(path, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _recorded_term(path: Path) -> int:
    """The last of the journal that the other files show: each coordinator says its own as it
    begins, and the metrics are there only since a journal is."""
    lines = record_files.whole_event_lines(path)
    with _decoding(path / record_files.NEWEST):
        begun = [decode_event(line) for line in lines if b'"run_started"' in line]
    terms = [event.term for event in begun if isinstance(event, RunStarted)]
    return max(terms, default=0) or int((path / "metrics.jsonl").exists())


def _require_as_new(path: Path, journal: Journal) -> None:
    """Raise `JournalError` where metrics or checkpoints are of iterations that the journal does not
    know; of the last one the metrics are written first."""
    if journal.items(RECORDS_AHEAD):
        return
    metrics = path / "metrics.jsonl"
    with _decoding(metrics):
        records = map(json.loads, _whole_lines(metrics) if metrics.exists() else [])
        recorded = [each["iteration"] + 1 for each in records if each["kind"] == "iteration"]
    known = known_iterations(journal)
    for what, completed, allowed in (
        ("metrics.jsonl has", max(recorded, default=0), known + 1),
        ("a checkpoint holds", max(saved_iterations(path), default=0), known),
    ):
        if completed > allowed:
            raise JournalError(
                f"{journal.path} knows {known} iterations, and {what} {completed}: what was"
                " written to it last is lost",
                f"put it back from a copy, {OR_ANEW}",
            )


def _is_in(folder: Path, key: str) -> bool:
    """Whether a file is there, and no link on the way to it leads elsewhere."""
    path = folder / key
    return path.is_file() and path.resolve() == path


def _identity(path: Path, job: JobSpec) -> str:
    """Tells a new run from any other: those of other folders, and of other jobs."""
    told = hashlib.sha256(f"{path.resolve()}\n{job_to_yaml(job)}".encode())
    return f"run-{told.hexdigest()[:32]}"


def _run_of(path: Path) -> str:
    """The identity in a folder whose config.yaml can be read; empty for a run of 0.1.0."""
    return stamp_of(read_yaml(read_config_text(path))).run


def _job_at_birth(journal: Journal) -> JobSpec | None:
    """None if nobody has begun the run, or 0.1.0 did."""
    body = journal.get(JOB)
    if body is None:
        return None
    try:
        return job_of_run(msgspec.json.decode(body))
    except (JobError, msgspec.MsgspecError) as error:
        version = journal.version_of(JOB)
        raise JournalError(
            f"{journal.path}: the job that the run began with cannot be read ({error})",
            f"resume with Spotlight {version}, which wrote it",
        ) from error


def _require_same(path: Path, born: JobSpec, job: JobSpec) -> None:
    """Raise `RunFolderError` naming a field that says another thing than at the run's birth, and
    may not."""
    changed = changed_field(born, job)
    if changed is not None:
        raise RunFolderError(
            f"{path / 'config.yaml'}: {changed.path}: is {changed.now}, and was {changed.born} when"
            " the run began, on which what is there depends; put it back, or begin a new run in"
            " another run folder"
        )


def _require_unedited(path: Path, journal: Journal) -> None:
    """Raise `RunFolderError` if config.yaml is not what 0.1.0 wrote, whose journal knows no more of
    the job than a checksum of that file: nobody could tell what was changed."""
    if not journal.was_taken_over:
        return
    text = read_config_text(path)
    if hashlib.sha256(text.encode()).hexdigest() != journal.owner:
        raise RunFolderError(
            f"{path / 'config.yaml'} was edited, and Spotlight 0.1.0, which began the run, kept no"
            " other record of the job; put back what it wrote, and name what is to change with"
            " --set"
        )


def _require_not_done(path: Path, done: int, job: JobSpec) -> None:
    """Raise `RunFolderError` if the run has done more iterations than the job has."""
    if job.iterations < done:
        raise RunFolderError(
            f"{path}: {done} iterations are done, so `iterations` cannot become {job.iterations};"
            f" give at least {done}, or fork the run at an earlier one"
        )


def _is_kept(line: bytes, completed: int, validated: Collection[int]) -> bool:
    record = json.loads(line)
    if record["kind"] == "validation":
        return record["weights_version"] in validated
    return bool(record["iteration"] < completed)


@contextmanager
def _decoding(path: Path) -> Iterator[None]:
    try:
        yield
    except (ValueError, LookupError, TypeError, msgspec.MsgspecError) as error:
        raise RunFolderError(
            f"{path} has a damaged line; fix or remove the line, then resume again"
        ) from error


def _require_files(path: Path) -> None:
    """What is appended to is a file of this folder: on a named pipe it would wait for a reader, and
    a link may lead anywhere.
    """
    for name in _FILES:
        with suppress(FileNotFoundError):
            problem = irregularity(os.lstat(path / name).st_mode)
            if problem is not None:
                raise RunFolderError(f"{path / name} {problem}; give another --run-folder")


def _rename_artifacts(run: Path) -> None:
    """Of a run of an earlier version, from whose folder modules could be imported."""
    before, folder = run / "artifacts", artifacts_of(run)
    if before.is_dir() and not before.is_symlink() and not folder.exists():
        before.rename(folder)


def _last_moment(path: Path, lines: Iterator[bytes]) -> Moment:
    last = deque(lines, maxlen=1)
    with _decoding(path):
        if not last:
            return Moment(0.0, None, False)
        told = _HEAD.decode(last[0])
        return Moment(told.time_s, told.at, told.event == RunFinished.__struct_config__.tag)


def _whole_lines(path: Path) -> list[bytes]:
    """Without what follows the last line end: the torn line of a crash."""
    return path.read_bytes().split(b"\n")[:-1]


@contextmanager
def _lock(path: Path) -> Iterator[None]:
    with open(path / ".lock", "ab") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise RunFolderError(
                f"{path} is in use by another coordinator; cancel that job first, or give another "
                "--run-folder"
            ) from error
        yield


@contextmanager
def _explaining(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        where = error.filename or path
        raise RunFolderError(
            f"{where}: {error.strerror or error}; free some space or give another --run-folder, "
            "then continue with --resume"
        ) from error
