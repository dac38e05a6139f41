"""Step times, checkpoints, exports and pictures take the place of earlier ones as a whole."""

from __future__ import annotations

import errno
import json
import os
from contextlib import closing

import pytest

from spotlight.errors import RunFolderError
from spotlight.store.run_folder import RunFolder, artifacts_of, checkpoint_path, replace_file


def test_replacing_a_file_leaves_the_old_one_when_it_fails(tmp_path, monkeypatch):
    file = tmp_path / "state.json"
    replace_file(file, b"old")

    def refuse(*_) -> None:
        assert file.read_bytes() == b"old"
        raise OSError(errno.EIO, "broken")

    monkeypatch.setattr("os.replace", refuse)
    with pytest.raises(OSError, match="broken"):
        replace_file(file, b"new")
    assert file.read_bytes() == b"old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["state.json"]


def test_a_file_is_durable_before_it_takes_the_place_of_the_old_one(tmp_path, monkeypatch):
    calls = []
    for name in ("fsync", "replace"):
        original = getattr(os, name)
        monkeypatch.setattr(os, name, lambda *args, n=name, f=original: (calls.append(n), f(*args)))
    replace_file(tmp_path / "state.json", b"new")
    assert calls == ["fsync", "replace", "fsync"]
    assert (tmp_path / "state.json").read_bytes() == b"new"


def test_step_times_are_replaced_and_found_again(path, folder):
    assert folder.step_times() is None
    for number in (1, 2):
        folder.save_step_times({"step_times": [number]})
    assert json.loads(folder.step_times()) == {"step_times": [2]}
    folder.close()
    with closing(RunFolder.reopen(path, None)[0]) as again:
        assert json.loads(again.step_times()) == {"step_times": [2]}


def test_a_full_disk_leaves_the_step_times_as_they_were(folder, path, full_disk):
    (path / "step-times.json").write_text("old")
    with pytest.raises(RunFolderError, match=r"step-times\.json"):
        folder.save_step_times({"step_times": []})
    assert folder.step_times() == b"old"


def touch_checkpoints(path, *numbers: int) -> None:
    (path / "checkpoints").mkdir(exist_ok=True)
    for number in numbers:
        (path / checkpoint_path(number)).touch()


def test_checkpoints_that_are_not_kept_are_deleted(path, folder):
    touch_checkpoints(path, 5, 10, 15, 1_000_000)
    (path / "checkpoints" / "notes.txt").touch()
    (path / "checkpoints" / "iteration-best.safetensors").touch()
    assert folder.checkpoints() == [5, 10, 15, 1_000_000]
    folder.keep_checkpoints({5, 1_000_000})
    assert folder.checkpoints() == [5, 1_000_000]
    others = {file.name for file in (path / "checkpoints").iterdir()}
    assert {"notes.txt", "iteration-best.safetensors"} <= others


def test_what_a_kill_left_of_checkpoints_is_deleted(path, folder):
    (path / "checkpoints").mkdir()
    parts = [f".iteration-{number:06d}.safetensors.partial" for number in (5, 10, 15)]
    for name in parts:
        (path / "checkpoints" / name).write_bytes(b"")
    folder.keep_checkpoints({5, 10})
    # A later one may be written now.
    assert [file.name for file in (path / "checkpoints").iterdir()] == parts[2:]


def test_a_run_that_goes_back_forgets_the_checkpoints_of_what_is_made_again(path, folder):
    touch_checkpoints(path, 5, 10, 15)
    folder.rewind(10, ())
    assert folder.checkpoints() == [5, 10]


def test_without_checkpoints_there_is_nothing_to_delete(folder):
    folder.keep_checkpoints({5})
    assert folder.checkpoints() == []


# --- the exported model ---


def test_a_new_export_takes_the_place_of_the_earlier_one_as_a_whole(path, folder):
    for name in ("first", "second"):
        with folder.new_export() as export:
            (export / name).write_text(name)
        assert [file.name for file in (path / "export").iterdir()] == [name]
    assert list(path.glob(".export*")) == []


def test_an_earlier_export_stays_when_a_new_one_fails(path, folder):
    with folder.new_export() as export:
        (export / "model").write_text("first")
    with pytest.raises(ValueError, match="half"), folder.new_export() as export:
        (export / "model").write_text("second")
        raise ValueError("half of it")
    assert (path / "export" / "model").read_text() == "first"
    assert list(path.glob(".export*")) == []


def test_what_a_kill_left_of_an_export_is_not_in_the_next_one(path, folder):
    (path / ".export.partial").mkdir()
    (path / ".export.partial" / "left").write_text("")
    with folder.new_export() as export:
        (export / "model").write_text("model")
    assert [file.name for file in (path / "export").iterdir()] == ["model"]


def test_an_export_that_cannot_be_begun_names_the_folder(path, folder):
    (path / ".export.partial").write_text("in the way")
    with (
        pytest.raises(RunFolderError, match=r"\.export\.partial: File exists"),
        folder.new_export(),
    ):
        pytest.fail("there is no folder")


# --- pictures ---


def upload(path, version: int, name: str = "p000.png") -> None:
    there = path / "artifacts.d" / left(version, name)[name]
    there.parent.mkdir(parents=True, exist_ok=True)
    there.write_bytes(b"png")


def left(version: int, name: str = "p000.png") -> dict[str, str]:
    """Where a worker has left it."""
    return {name: f"validation/v{version:06d}/node/0/{name}"}


def shown(path) -> list[str]:
    return sorted(str(e.relative_to(path / "validation")) for e in path.glob("validation/*/*"))


def test_the_pictures_of_the_first_and_the_latest_validation_are_shown(path, folder):
    for version in (0, 5, 10):
        upload(path, version)
        folder.show_pictures(version, [{"prompt": "a", "file": "p000.png"}], left(version))
    assert shown(path) == [
        f"v{version:06d}/{name}" for version in (0, 10) for name in ("p000.png", "prompts.json")
    ]


def test_pictures_that_were_in_place_at_a_kill_stay(path, folder):
    upload(path, 5)
    folder.show_pictures(5, [], left(5))
    folder.show_pictures(5, [{"prompt": "a", "file": "p000.png"}], left(5))
    assert shown(path) == ["v000005/p000.png", "v000005/prompts.json"]
    assert "p000" in (path / "validation" / "v000005" / "prompts.json").read_text()


def test_pictures_that_are_made_again_replace_the_earlier_ones(path, folder):
    upload(path, 5, "old.png")
    folder.show_pictures(5, [], left(5, "old.png"))
    upload(path, 5, "new.png")
    folder.show_pictures(5, [], left(5, "new.png"))
    assert shown(path) == ["v000005/new.png", "v000005/prompts.json"]


@pytest.mark.parametrize("link", ["validation", "validation/v000005"])
def test_pictures_behind_a_symbolic_link_are_not_shown(path, folder, tmp_path, link):
    outside = tmp_path / "outside" / link.removeprefix("validation").strip("/")
    (tmp_path / "outside" / "v000005").mkdir(parents=True)
    (path / "artifacts.d" / link).parent.mkdir(parents=True, exist_ok=True)
    (path / "artifacts.d" / link).symlink_to(outside)
    upload(path, 5)
    folder.show_pictures(5, [{"prompt": "a", "file": "p000.png"}], left(5))
    assert shown(path) == []
    assert list((tmp_path / "outside").rglob("*.png")) == [
        tmp_path / "outside" / "v000005" / "node" / "0" / "p000.png"
    ]


def test_what_workers_left_for_a_run_of_an_earlier_version_is_found_when_it_is_resumed(
    path, folder
):
    folder.close()
    (path / "artifacts" / "state").mkdir(parents=True)
    (path / "artifacts" / "state" / "0-0").write_bytes(b"state")
    again, _ = RunFolder.reopen(path, None)
    again.close()
    assert (artifacts_of(path) / "state" / "0-0").read_bytes() == b"state"


def test_a_validation_without_pictures_shows_none(path, folder):
    folder.show_pictures(5, [])
    assert shown(path) == []
