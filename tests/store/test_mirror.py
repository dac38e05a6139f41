"""A run's copy in object storage."""

from __future__ import annotations

import hashlib
import json
import math
from pathlib import Path

import pytest
from mirror_kit import (
    FORGET,
    RUN,
    disk_store,
    memory_store,
    mirror,
    run_folder,
    small_job,
    upload,
)

from spotlight.errors import MirrorError
from spotlight.record.ledger import Ledger, RollupLine
from spotlight.record.run_events import WorkerStateBegan
from spotlight.store import record_files
from spotlight.store.ledger_file import read_ledger, write_ledger
from spotlight.store.mirror import Manifest, Mirror, Snapshot, read_manifest
from spotlight.store.object_store import ObjectStore
from spotlight.store.restore import restore
from spotlight.store.rollups import Rollups, read_rollups
from spotlight.store.run_folder import RunFolder, checkpoint_path


@pytest.fixture(params=["disk", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> ObjectStore:
    return disk_store(tmp_path / "there") if request.param == "disk" else memory_store()


def manifest_of(store: ObjectStore) -> Manifest:
    manifest = read_manifest(store)
    assert manifest is not None
    return manifest


def test_a_copy_has_what_a_resume_needs_and_no_checkpoint_that_is_not_committed(
    store: ObjectStore, tmp_path: Path
) -> None:
    with run_folder(tmp_path / "run") as folder:
        upload(folder, mirror(store))
    manifest = manifest_of(store)
    assert (manifest.run, manifest.completed) == (RUN, 1)
    assert {file.path for file in manifest.files} == {
        "checkpoints/iteration-000001.safetensors",
        "config.yaml",
        "events.jsonl",
        "journal.records",
        "metrics.jsonl",
        "validation/v000001/p000.png",
    }
    for file in manifest.files:
        data = store.read(f"files/{file.sha256}", most=10**6)
        assert data is not None
        assert (len(data), hashlib.sha256(data).hexdigest()) == (file.nbytes, file.sha256)


def test_events_that_were_set_aside_are_copied_and_come_back(
    store: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record_files, "LARGEST", 1)
    with run_folder(tmp_path / "run") as folder:
        copy = mirror(store)
        upload(folder, copy)
        folder.record_event({"time_s": 2.0, "event": "phase"})
        upload(folder, copy)
        lines = list(record_files.whole_event_lines(folder.path))
    names = {file.path for file in manifest_of(store).files}
    assert {"events-000001.jsonl", "events-000002.jsonl", "events.jsonl"} <= names
    restore(store, tmp_path / "back")
    assert list(record_files.whole_event_lines(tmp_path / "back")) == lines


def test_the_ledger_and_the_roll_ups_are_copied_and_come_back(
    store: ObjectStore, tmp_path: Path
) -> None:
    lines = [
        RollupLine(
            number=number,
            start_s=number - 1.0,
            end_s=number,
            at=number,
            times={"w": {"idle": 1000}},
        )
        for number in range(1, 400)
    ]
    with run_folder(tmp_path / "run") as folder:
        rollups = Rollups(folder.path / "rollups", half=3000)
        for line in lines[:-1]:
            rollups.append(line)
        write_ledger(folder.path, Ledger(number=398, time_s=398.0))
        rollups.append(lines[-1])  # the ledger does not account for it yet
        rollups.close()
        folder.record_state(WorkerStateBegan(worker="w", state="idle"), 1.0, 1.0)
        upload(folder, mirror(store))
    restore(store, back := tmp_path / "back")
    ledger = read_ledger(back)
    assert ledger == Ledger(number=398, time_s=398.0)
    read = read_rollups(back / "rollups", 0.0, math.inf, 10**6, until=ledger.number)
    assert sum(line.times["w"]["idle"] for line in read) == 398_000
    assert read[-1] == lines[-2]
    assert (back / "rollups" / "10s-older.rollup").exists()
    assert not (back / "states.jsonl").exists(), "pictures of the last hour are drawn from it"


def test_the_jobs_of_segments_that_are_over_are_copied_and_come_back(
    store: ObjectStore, tmp_path: Path
) -> None:
    with run_folder(tmp_path / "run") as folder:
        (folder.path / "config-001.yaml").write_text("name: earlier")
        (folder.path / "config-mine.yaml").write_text("name: mine")
        upload(folder, mirror(store))
    restore(store, tmp_path / "back")
    found = sorted(file.name for file in (tmp_path / "back").glob("config*.yaml"))
    assert found == ["config-001.yaml", "config.yaml"]


def test_a_restored_run_can_be_opened_and_has_forgotten_what_lay_elsewhere(
    store: ObjectStore, tmp_path: Path
) -> None:
    with run_folder(tmp_path / "run") as folder:
        upload(folder, mirror(store))
        term = folder.journal.term
    restore(store, tmp_path / "back")
    again, job = RunFolder.reopen(tmp_path / "back", None)
    try:
        assert job == small_job()
        assert again.checkpoints() == [1]
        keys = [key for key, _ in again.journal.items()]
        assert keys == ["identity", "job", "progress/1"]
        assert again.journal.term > term
        assert again.last_moment().time_s == 1.0
    finally:
        again.close()


def test_records_that_are_written_while_a_copy_is_made_are_not_in_it(
    store: ObjectStore, tmp_path: Path
) -> None:
    """The journal of the copy would not know them, and the run could not be gone on with."""
    with run_folder(tmp_path / "run") as folder, Snapshot(folder, 1, FORGET) as snapshot:
        for number in range(5):
            folder.record_metrics({"kind": "iteration", "iteration": number})
        mirror(store).upload(snapshot)
    restore(store, tmp_path / "back")
    again, _ = RunFolder.reopen(tmp_path / "back", None)
    again.close()
    assert (tmp_path / "back" / "metrics.jsonl").read_bytes() == b""


def test_what_was_copied_is_not_copied_again_whoever_copied_it(
    store: ObjectStore, tmp_path: Path
) -> None:
    with run_folder(tmp_path / "run") as folder:
        first = mirror(store)
        upload(folder, first)
        folder.record_event({"time_s": 2.0, "event": "y"})
        with Snapshot(folder, 1, FORGET) as snapshot:
            again = first.upload(snapshot)
        assert again.files <= 2  # events, and the journal, whose term may differ
        with Snapshot(folder, 1, FORGET) as snapshot:
            assert mirror(store, writer="second").upload(snapshot).nbytes < 7000


def test_what_the_manifest_does_not_name_any_more_is_removed_after_it(
    store: ObjectStore, tmp_path: Path
) -> None:
    with run_folder(tmp_path / "run") as folder:
        to = mirror(store)
        upload(folder, to)
        store.write("files/left-by-a-kill", b"")
        folder.keep_checkpoints({2})
        upload(folder, mirror(store, writer="second"), completed=2)
    manifest = manifest_of(store)
    assert "checkpoints/iteration-000002.safetensors" in {file.path for file in manifest.files}
    assert set(store.sizes("files")) == {file.sha256 for file in manifest.files}


def test_a_checkpoint_that_is_deleted_while_it_is_copied_is_copied(
    store: ObjectStore, tmp_path: Path
) -> None:
    with run_folder(tmp_path / "run") as folder, Snapshot(folder, 1, FORGET) as snapshot:
        folder.keep_checkpoints({2})
        mirror(store).upload(snapshot)
    restore(store, tmp_path / "back")
    assert (tmp_path / "back" / checkpoint_path(1)).read_bytes() == b"weights" * 1000


class Breaking(ObjectStore):
    """Object storage that fails after so many operations that change it."""

    def __init__(self, inner: ObjectStore, left: int) -> None:
        super().__init__(inner._files, inner._root, inner.url)
        self.left = left

    def _count(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise MirrorError("the store is full")

    def write(self, name: str, data: bytes) -> None:
        self._count()
        super().write(name, data)

    def upload(self, name: str, file) -> None:  # type: ignore[no-untyped-def]
        self._count()
        super().upload(name, file)

    def delete(self, name: str) -> None:
        self._count()
        super().delete(name)


@pytest.mark.parametrize("operations", range(12))
def test_a_copy_that_breaks_off_anywhere_leaves_a_whole_run_and_is_completed_later(
    operations: int, tmp_path: Path
) -> None:
    store = memory_store()
    with run_folder(tmp_path / "run") as folder:
        upload(folder, mirror(store))
        folder.keep_checkpoints({2})
        folder.record_event({"time_s": 2.0, "event": "y"})
        to = Mirror(Breaking(store, operations), RUN, "second")
        try:
            upload(folder, to, completed=2)
        except MirrorError:
            found = restore(store, tmp_path / "back")
            assert found.completed in (1, 2)
            assert (tmp_path / "back" / checkpoint_path(found.completed)).exists()
        to._store.left = 100  # type: ignore[attr-defined]
        upload(folder, to, completed=2)
    assert restore(store, tmp_path / "end").completed == 2
    assert set(store.sizes("files")) == {file.sha256 for file in manifest_of(store).files}


def test_the_copy_of_another_run_is_not_replaced(store: ObjectStore, tmp_path: Path) -> None:
    with run_folder(tmp_path / "run") as folder:
        upload(folder, mirror(store, run="other-7"))
        with pytest.raises(MirrorError, match=r"holds another run \(other-7\)"):
            upload(folder, mirror(store))
    assert manifest_of(store).run == "other-7"


def test_a_copy_that_is_further_is_not_replaced(store: ObjectStore, tmp_path: Path) -> None:
    with run_folder(tmp_path / "run") as folder:
        upload(folder, mirror(store), completed=2)
        with pytest.raises(MirrorError, match="after 2 iterations, and here it has 1; go on from"):
            upload(folder, mirror(store, writer="second"), completed=1)


def test_who_has_been_replaced_by_another_coordinator_writes_no_more(
    store: ObjectStore, tmp_path: Path
) -> None:
    with run_folder(tmp_path / "run") as folder:
        first = mirror(store)
        upload(folder, first)
        upload(folder, mirror(store, writer="second"))
        with pytest.raises(MirrorError, match="another coordinator has gone on with this run"):
            upload(folder, first)
    assert manifest_of(store).writer == "second"


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"", "is damaged"),
        (b"[]", "is damaged"),
        (b'{"format": 2}', "another format"),
        (b'{"format": 1}', "missing required field"),
    ],
)
def test_a_manifest_that_is_none_is_refused_by_name(data: bytes, problem: str) -> None:
    store = memory_store()
    store.write("manifest.json", data)
    with pytest.raises(MirrorError, match=rf"memory://runs/manifest.json .*{problem}"):
        read_manifest(store)


def test_a_manifest_can_be_read_by_people(store: ObjectStore, tmp_path: Path) -> None:
    with run_folder(tmp_path / "run") as folder:
        upload(folder, mirror(store))
    data = store.read("manifest.json", most=10**6)
    assert data is not None and data.count(b"\n") > 10
    assert json.loads(data)["completed"] == 1
