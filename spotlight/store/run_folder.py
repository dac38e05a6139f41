"""The run folder: everything that a run leaves behind, and what a resumed run starts from.

Lines of `metrics.jsonl` and `events.jsonl` are appended whole or not at all; only a crash can leave
a torn last line, which is dropped when the folder is opened again. `state.json` and `config.yaml`
are replaced at once (write, fsync, rename). One coordinator at a time: the folder is locked while
it is open. An error of the file system is a `RunFolderError` that names the path; what was written
before stays.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO, Any

import msgspec

from spotlight.errors import JobError, RunFolderError
from spotlight.jobs import JobSpec, job_to_yaml, parse_job


class SavedProgress(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a resumed run needs besides the checkpoint."""

    completed: int
    """Iterations done."""
    checkpoint: str
    """Path inside the run folder."""
    seeds: tuple[tuple[int, ...], ...]
    """Seeds of the next iteration, per prompt group."""
    preview_rewards: tuple[tuple[float | None, ...], ...]
    validated: tuple[int, ...]
    """Weights versions on record."""
    previews: int = 0
    """Previews that chose these seeds, and those that came too late to."""
    previews_late: int = 0
    training_seconds: tuple[float, ...] = ()
    """Last training times, for the window prediction."""


class RunFolder:
    """An open run folder. `close` releases the lock.

    Args:
        files: owns what is open, the lock on the folder included.
    """

    def __init__(self, path: Path, files: ExitStack) -> None:
        self.path = path
        self._metrics = files.enter_context(_append_to(path / "metrics.jsonl"))
        self._events = files.enter_context(_append_to(path / "events.jsonl"))
        self._files = files.pop_all()

    @classmethod
    def create(cls, path: Path, job: JobSpec) -> RunFolder:
        """A new folder for a job; one that holds a run already is refused."""
        with _explaining(path), ExitStack() as files:
            path.mkdir(parents=True, exist_ok=True)
            if (path / "config.yaml").exists():
                raise RunFolderError(
                    f"{path} holds a run already; resume it with --resume, or give another "
                    "--run-folder"
                )
            if any(entry.name not in (".lock", "logs") for entry in path.iterdir()):
                raise RunFolderError(f"{path} is not empty; give another --run-folder")
            files.enter_context(_lock(path))
            replace_file(path / "config.yaml", job_to_yaml(job).encode())
            return cls(path, files)

    @classmethod
    def reopen(
        cls, path: Path, job: JobSpec | None
    ) -> tuple[RunFolder, JobSpec, SavedProgress | None]:
        """The folder of an interrupted run, with its job and progress (None if it never got to a
        checkpoint).

        A `job` that differs from the folder's own is refused. Records of iterations after the saved
        progress are dropped: they will be made again.
        """
        with _explaining(path), ExitStack() as files:
            saved_job = read_config(path)
            if job is not None and job != saved_job:
                raise RunFolderError(
                    f"{path} belongs to another job (`{saved_job.name}`, its config.yaml differs); "
                    "resume without a job file, or give another --run-folder"
                )
            files.enter_context(_lock(path))
            progress = _read_progress(path)  # only now: nobody else writes it any more
            _drop_metrics_after(path / "metrics.jsonl", progress)
            _drop_torn_line(path / "events.jsonl")
            return cls(path, files), saved_job, progress

    def last_time_s(self) -> float:
        """Run time at the last recorded event: a resumed run goes on counting from there."""
        with _explaining(self.path):
            lines = _whole_lines(self.path / "events.jsonl")
        with _decoding(self.path / "events.jsonl"):
            return float(json.loads(lines[-1])["time_s"]) if lines else 0.0

    def record_metrics(self, metrics: Mapping[str, Any]) -> None:
        """Append a line to metrics.jsonl and make it durable."""
        with _explaining(self.path / "metrics.jsonl"):
            _append(self._metrics, metrics)
            os.fsync(self._metrics.fileno())

    def record_event(self, event: Mapping[str, Any]) -> None:
        """Append a line to events.jsonl."""
        with _explaining(self.path / "events.jsonl"):
            _append(self._events, event)

    def show_pictures(self, version: int, listing: list[dict[str, Any]]) -> None:
        """Move a validation's pictures out of the artifacts, with their prompts and rewards.

        Only the first and the latest validation keep theirs.
        """
        name = f"v{version:06d}"
        uploaded, shown = self.path / "artifacts" / "validation" / name, self.path / "validation"
        with _explaining(self.path):
            shown.mkdir(exist_ok=True)
            others = sorted(e for e in shown.iterdir() if e.is_dir() and e.name != name)
            for old in (*others[1:], shown / name):
                shutil.rmtree(old, ignore_errors=True)
            if uploaded.is_dir():
                uploaded.replace(shown / name)
                replace_file(shown / name / "prompts.json", json.dumps(listing).encode())

    def commit(self, progress: SavedProgress) -> None:
        """From now on the run resumes here."""
        state = self.path / "state.json"
        with _explaining(state):
            replace_file(state, msgspec.json.format(msgspec.json.encode(progress)))

    def keep_checkpoints(self, wanted: set[str]) -> None:
        """Delete checkpoints older than those named by their path inside the folder.

        Newer ones stay: they wait for their commit.
        """
        oldest = min(wanted, default="")
        with _explaining(self.path):
            for file in (self.path / "checkpoints").glob("iteration-*.safetensors"):
                if str(file.relative_to(self.path)) < oldest:
                    file.unlink(missing_ok=True)

    def close(self) -> None:
        """Release the folder."""
        self._files.close()


def read_config(path: Path) -> JobSpec:
    """The job of a run folder; raises `RunFolderError` if it is not one."""
    config = path / "config.yaml"
    if not config.is_file():
        raise RunFolderError(
            f"{path} is not a run folder: it has no config.yaml; give the folder of a run"
        )
    try:
        with _explaining(config):
            return parse_job(config.read_text(encoding="utf-8"), source=str(config))
    except (JobError, UnicodeDecodeError) as error:
        raise RunFolderError(f"{config} cannot be used: {error}") from error


def next_run_folder(base: Path, name: str) -> Path:
    """The first unused `base/name-001`, `base/name-002`, ..."""
    number = 1
    while (base / f"{name}-{number:03d}").exists():
        number += 1
    return base / f"{name}-{number:03d}"


def replace_file(path: Path, data: bytes) -> None:
    """Write a file so that it is either the old or the new one after a crash or an error."""
    temporary = path.with_name(path.name + ".part")
    try:
        with open(temporary, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError:
        with suppress(OSError):
            temporary.unlink()
        raise
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _read_progress(path: Path) -> SavedProgress | None:
    state = path / "state.json"
    if not state.exists():
        return None
    try:
        return msgspec.json.decode(state.read_bytes(), type=SavedProgress)
    except msgspec.MsgspecError as error:
        raise RunFolderError(
            f"{state} is damaged ({error}); start the job again in another folder"
        ) from error


def _drop_metrics_after(metrics: Path, progress: SavedProgress | None) -> None:
    if not metrics.exists():
        return
    with _decoding(metrics):
        kept = [line for line in _whole_lines(metrics) if _was_committed(line, progress)]
    replace_file(metrics, b"".join(line + b"\n" for line in kept))


def _was_committed(line: bytes, progress: SavedProgress | None) -> bool:
    if progress is None:
        return False
    record = json.loads(line)
    if record["kind"] == "validation":
        return record["weights_version"] in progress.validated
    return bool(record["iteration"] < progress.completed)


@contextmanager
def _decoding(path: Path) -> Iterator[None]:
    try:
        yield
    except (ValueError, LookupError, TypeError) as error:
        raise RunFolderError(
            f"{path} has a damaged line ({error}); mend or remove the line, then resume again"
        ) from error


def _drop_torn_line(path: Path) -> None:
    """So that the next line does not go on where a crash broke off."""
    if path.exists():
        os.truncate(path, sum(len(line) + 1 for line in _whole_lines(path)))


def _whole_lines(path: Path) -> list[bytes]:
    """Without what follows the last line end: the torn line of a crash."""
    return path.read_bytes().split(b"\n")[:-1]


def _append_to(path: Path) -> IO[bytes]:
    return open(path, "ab", buffering=0)


def _append(file: IO[bytes], record: Mapping[str, Any]) -> None:
    """Add a line whole or, when the file system refuses, not at all."""
    line = json.dumps(record, ensure_ascii=False).encode() + b"\n"
    before = os.fstat(file.fileno()).st_size
    try:
        while line:
            line = line[os.write(file.fileno(), line) :]
    except OSError:
        with suppress(OSError):
            os.truncate(file.fileno(), before)
        raise


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
            "then go on with --resume"
        ) from error
