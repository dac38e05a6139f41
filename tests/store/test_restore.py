"""A run that is brought back from object storage."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path

import msgspec
import pytest
from mirror_kit import memory_store, mirror, run_folder, upload

from spotlight.errors import MirrorError, RunFolderError
from spotlight.store.mirror import MANIFEST, Manifest, MirroredFile, read_manifest
from spotlight.store.object_store import ObjectStore
from spotlight.store.restore import restore

EARLIER = Path(__file__).parents[1] / "data" / "runs"


@pytest.fixture
def store(tmp_path: Path) -> ObjectStore:
    """With a run."""
    store = memory_store()
    with run_folder(tmp_path / "run") as folder:
        upload(folder, mirror(store))
    return store


def change(store: ObjectStore, changed: str, **fields: object) -> None:
    """Have the manifest say something else of a file."""
    manifest = read_manifest(store)
    assert manifest is not None
    files = tuple(
        msgspec.structs.replace(file, **fields) if file.path == changed else file
        for file in manifest.files
    )
    store.write(MANIFEST, msgspec.json.encode(msgspec.structs.replace(manifest, files=files)))


def the(store: ObjectStore, path: str) -> MirroredFile:
    manifest = read_manifest(store)
    assert manifest is not None
    (found,) = (file for file in manifest.files if file.path == path)
    return found


CHECKPOINT = "checkpoints/iteration-000001.safetensors"


def test_a_run_is_restored_into_a_new_or_an_empty_folder(
    store: ObjectStore, tmp_path: Path
) -> None:
    (tmp_path / "empty").mkdir()
    for target in (tmp_path / "deep" / "new", tmp_path / "empty"):
        assert restore(store, target).completed == 1
        for file in ("config.yaml", CHECKPOINT, "events.jsonl", "validation/v000001/p000.png"):
            assert (target / file).read_bytes() == (tmp_path / "run" / file).read_bytes()
        assert [path for path in target.parent.iterdir() if path.name.startswith(".")] == []


def test_a_folder_with_anything_in_it_is_left_alone(store: ObjectStore, tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match="is not empty"):
        restore(store, tmp_path / "run")
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(RunFolderError, match="Not a directory"):
        restore(store, tmp_path / "file")


@pytest.mark.parametrize("path", [CHECKPOINT, "journal.records", "events.jsonl"])
@pytest.mark.parametrize("damage", ["half", "flipped", "missing"])
def test_a_damaged_file_is_refused_by_name_and_leaves_no_folder(
    store: ObjectStore, tmp_path: Path, path: str, damage: str
) -> None:
    file = the(store, path)
    name = f"files/{file.sha256}"
    data = store.read(name, most=10**6)
    assert data is not None
    if damage == "missing":
        store.delete(name)
    else:
        store.write(name, data[: len(data) // 2] if damage == "half" else data[:-1] + b"\xff")
    with pytest.raises(
        MirrorError, match=rf"{path}.*({'missing' if damage == 'missing' else 'dam'})"
    ):
        restore(store, tmp_path / "back")
    assert {each.name for each in tmp_path.iterdir()} == {"run"}


@pytest.mark.parametrize(
    "path",
    [
        "../config.yaml",
        "/etc/passwd",
        "checkpoints/../../x",
        "checkpoints//x",
        "checkpoints/.hidden",
        "checkpoints/a\0b",
        "logs/x",
        ".lock",
        "",
    ],
)
def test_a_manifest_that_leads_elsewhere_is_refused(
    store: ObjectStore, tmp_path: Path, path: str
) -> None:
    change(store, CHECKPOINT, path=path)
    with pytest.raises(MirrorError, match="is no file of a run"):
        restore(store, tmp_path / "back")
    assert {each.name for each in tmp_path.iterdir()} == {"run"}


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"path": "config.yaml"}, "names config.yaml 2 times"),
        ({"sha256": "../../x"}, "no checksum and size of"),
        ({"nbytes": -1}, "no checksum and size of"),
    ],
)
def test_a_manifest_that_contradicts_itself_is_refused(
    store: ObjectStore, tmp_path: Path, fields: dict[str, object], problem: str
) -> None:
    change(store, CHECKPOINT, **fields)
    with pytest.raises(MirrorError, match=problem):
        restore(store, tmp_path / "back")


def test_a_manifest_without_a_journal_is_refused(store: ObjectStore, tmp_path: Path) -> None:
    change(store, "journal.records", path="step-times.json")
    with pytest.raises(MirrorError, match=r"does not name journal\.records"):
        restore(store, tmp_path / "back")


def test_a_place_without_a_run_says_what_to_give(tmp_path: Path) -> None:
    with pytest.raises(MirrorError, match=r"memory://runs holds no run.*name of its run folder"):
        restore(memory_store(), tmp_path / "back")


def test_a_copy_that_is_replaced_while_it_is_read_is_read_again(
    store: ObjectStore, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    other.mkdir()

    class Replaced(ObjectStore):
        reads = 0

        def download(self, name: str, to: Path) -> bool:
            self.reads += 1
            if self.reads == 3:
                with run_folder(other / "run") as folder:
                    folder.record_event({"time_s": 9.0, "event": "later"})
                    upload(folder, mirror(store, writer="second"), completed=2)
            return super().download(name, to)

    changing = Replaced(store._files, store._root, store.url)
    assert restore(changing, tmp_path / "back").completed == 2
    assert b"later" in (tmp_path / "back" / "events.jsonl").read_bytes()


def test_a_copy_of_0_1_0_is_restored_with_its_journal(tmp_path: Path) -> None:
    store, run = memory_store(), EARLIER / "0.1.0"
    paths = ("config.yaml", "events.jsonl", "metrics.jsonl", "journal.sqlite")
    files = tuple(
        MirroredFile(path, len(data), sha256(data).hexdigest())
        for path in paths
        for data in [(run / path).read_bytes()]
    )
    for file in files:
        store.write(f"files/{file.sha256}", (run / file.path).read_bytes())
    store.write(MANIFEST, msgspec.json.encode(Manifest(1, "run", "writer", 1, files)))
    restore(store, tmp_path / "restored")
    assert (tmp_path / "restored" / "journal.sqlite").exists()
