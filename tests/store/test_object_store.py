"""Folders in object storage."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from mirror_kit import disk_store, memory_store

from spotlight.errors import MirrorError, MissingDependency, UserError
from spotlight.store.object_store import ObjectStore, open_store


@pytest.fixture(params=["disk", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> ObjectStore:
    return disk_store(tmp_path / "there") if request.param == "disk" else memory_store()


def test_what_is_written_is_read_listed_and_deleted(store: ObjectStore, tmp_path: Path) -> None:
    inner = store.below("run")
    assert inner.read("a", most=10) is None
    assert inner.sizes("files") == {}
    inner.write("a", b"one")
    inner.write("a", b"other")
    assert inner.read("a", most=10) == b"other"
    inner.write("files/b", b"12")
    assert inner.sizes("files") == {"b": 2}
    assert inner.download("files/b", tmp_path / "b")
    assert (tmp_path / "b").read_bytes() == b"12"
    assert not inner.download("files/c", tmp_path / "c")
    inner.delete("files/b")
    inner.delete("files/b")
    assert inner.sizes("files") == {}


def test_an_open_file_is_copied_though_it_was_deleted(store: ObjectStore, tmp_path: Path) -> None:
    path = tmp_path / "weights"
    path.write_bytes(b"0123456789")
    with open(path, "rb") as file:
        file.seek(5)
        path.unlink()
        store.upload("files/x", file)
    assert store.read("files/x", most=10) == b"0123456789"


def test_a_file_that_is_larger_than_it_may_be_is_not_read(store: ObjectStore) -> None:
    store.write("a", b"12345")
    with pytest.raises(MirrorError, match="/a has 5 bytes, and at most 4 are read"):
        store.read("a", most=4)


def test_a_write_to_a_disk_that_breaks_off_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = disk_store(tmp_path)
    store.write("a", b"old")

    def break_off(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("fsspec.implementations.local.LocalFileSystem.mv", break_off)
    with pytest.raises(MirrorError, match=r"file://.*/a: OSError: .*No space left on device"):
        store.write("a", b"new")
    assert (tmp_path / "a").read_bytes() == b"old"


def test_whatever_a_library_raises_is_one_line_that_names_the_file(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = memory_store()

    def fail(*_: object) -> None:
        raise RuntimeError("no\ncredentials " * 100)

    monkeypatch.setattr("fsspec.implementations.memory.MemoryFileSystem.pipe_file", fail)
    with pytest.raises(
        MirrorError, match=r"^memory://runs/a: RuntimeError: no credentials"
    ) as told:
        store.write("a", b"")
    assert len(str(told.value)) < 400 and "\n" not in str(told.value)


@pytest.mark.parametrize(
    "url",
    ["", "runs", "/mnt/runs", "http://host/runs", "S3://bucket", "s3:/bucket", "memory://x"],
)
def test_a_url_of_another_kind_is_refused_by_its_option(url: str) -> None:
    with pytest.raises(UserError, match=r"^--mirror .*begins with file://, s3:// or gs://"):
        open_store("--mirror", url)


@pytest.mark.parametrize(
    "url",
    ["s3://", "s3://key:secret@bucket/runs", "s3://bucket/a b", "s3://bucket/a\nb", "s3://b?x=1"],
)
def test_a_url_with_more_than_a_place_is_refused_and_not_repeated(url: str) -> None:
    with pytest.raises(UserError, match=r"^--mirror: name only a bucket") as told:
        open_store("--mirror", url)
    assert "secret" not in str(told.value)


def test_a_relative_path_is_refused() -> None:
    with pytest.raises(UserError, match="absolute path"):
        open_store("--mirror", "file://runs")


def test_a_package_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "gcsfs" else name)
    with pytest.raises(MissingDependency, match=r"`gcsfs` is not installed.*\[storage\]"):
        open_store("--mirror", "gs://bucket/runs")


def test_opening_a_place_reads_nothing(tmp_path: Path) -> None:
    open_store("--mirror", f"file://{tmp_path}/absent")
    assert os.listdir(tmp_path) == []
