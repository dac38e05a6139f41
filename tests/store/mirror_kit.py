"""A run folder that is copied to object storage, and object storage of two kinds."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import fsspec

from spotlight.jobs import JobSpec, job_from_data
from spotlight.store.mirror import Mirror, Snapshot
from spotlight.store.object_store import ObjectStore, open_store
from spotlight.store.run_folder import RunFolder, checkpoint_path

RUN = "small-1"
FORGET = ("request/",)


def small_job() -> JobSpec:
    return job_from_data(
        {
            "name": "small",
            "model": {"checkpoint": "builtin:ocr-tiny"},
            "prompts": {"train": "builtin:train", "validation": "builtin:validation"},
            "sampler": {"height": 32, "width": 64},
        }
    )


def disk_store(folder: Path) -> ObjectStore:
    return open_store("--mirror", f"file://{folder}")


def memory_store() -> ObjectStore:
    files = fsspec.filesystem("memory", skip_instance_cache=True)
    files.store.clear()
    return ObjectStore(files, "/runs", "memory://runs")


def mirror(store: ObjectStore, *, run: str = RUN, writer: str = "first") -> Mirror:
    return Mirror(store, run, writer)


@contextmanager
def run_folder(path: Path) -> Iterator[RunFolder]:
    """Of a run that has two checkpoints, of which the last one is not committed yet."""
    folder = RunFolder.create(path, small_job())
    try:
        (path / "checkpoints").mkdir()
        for number in (1, 2):
            (path / checkpoint_path(number)).write_bytes(b"weights" * 1000 * number)
        (path / "validation" / "v000001").mkdir(parents=True)
        (path / "validation" / "v000001" / "p000.png").write_bytes(b"picture")
        folder.journal.write({"identity": b"who", "request/0": b"a sample", "progress/1": b"far"})
        folder.record_event({"time_s": 1.0, "event": "x"})
        yield folder
    finally:
        folder.close()


def upload(folder: RunFolder, to: Mirror, completed: int = 1) -> None:
    with Snapshot(folder, completed, FORGET) as snapshot:
        to.upload(snapshot)
