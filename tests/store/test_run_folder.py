import errno
import json
import os
import shutil
import subprocess
import sys
from contextlib import closing

import pytest

from spotlight import failpoints
from spotlight.errors import RunFolderError
from spotlight.jobs import JobSpec, job_from_data
from spotlight.store.run_folder import (
    RunFolder,
    checkpoint_path,
    next_run_folder,
    read_config,
    replace_file,
)


def job(**changes) -> JobSpec:
    return job_from_data(
        {
            "name": "ocr-tiny",
            "model": {"checkpoint": "builtin:ocr-tiny"},
            "prompts": {"train": "builtin:train", "validation": "builtin:validation"},
            "sampler": {"height": 32, "width": 64},
            **changes,
        }
    )


@pytest.fixture
def path(tmp_path):
    return tmp_path / "run"


@pytest.fixture
def folder(path):
    folder = RunFolder.create(path, job())
    yield folder
    folder.close()


def reopened(path, spec: JobSpec | None = None):
    """What is there after a crash: (job, last time)."""
    folder, found = RunFolder.reopen(path, spec)
    try:
        return found, folder.last_time_s()
    finally:
        folder.close()


def lines(file) -> list[dict]:
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


def iteration(number: int) -> dict:
    return {"kind": "iteration", "iteration": number}


def validation(version: int) -> dict:
    return {"kind": "validation", "weights_version": version, "iteration": version}


def append(file, data: bytes) -> None:
    with open(file, "ab") as opened:
        opened.write(data)


# --- a new folder ---


def test_a_new_folder_holds_the_whole_job(path, folder):
    assert read_config(path) == job()
    assert "checkpoint_every: 5" in (path / "config.yaml").read_text()
    assert folder.last_time_s() == 0.0


def test_folders_on_the_way_are_made(tmp_path):
    RunFolder.create(tmp_path / "a" / "b" / "run", job()).close()
    assert read_config(tmp_path / "a" / "b" / "run") == job()


def test_a_folder_that_holds_a_run_is_not_taken_for_a_new_one(path, folder):
    folder.close()
    with pytest.raises(RunFolderError, match=r"already holds a run.*--resume"):
        RunFolder.create(path, job())


def test_a_folder_with_other_files_is_not_taken(path):
    path.mkdir()
    (path / "thesis.tex").write_text("years of work")
    with pytest.raises(RunFolderError, match="is not empty"):
        RunFolder.create(path, job())
    assert [entry.name for entry in path.iterdir()] == ["thesis.tex"]


def test_a_folder_with_nothing_but_logs_is_new(path):
    (path / "logs").mkdir(parents=True)
    RunFolder.create(path, job()).close()


def test_a_path_that_is_a_file_is_refused_with_its_name(path):
    path.write_text("")
    with pytest.raises(RunFolderError, match=str(path)):
        RunFolder.create(path, job())


def test_records_are_lines_of_json_in_order(path, folder):
    folder.record_event({"time_s": 0.5, "event": "phase"})
    folder.record_event({"time_s": 1.5, "event": "group_dropped", "prompt": "„Grüße“\u2028"})
    folder.record_metrics(iteration(0))
    assert [entry["time_s"] for entry in map(json.loads, open_lines(path))] == [0.5, 1.5]
    assert lines(path / "metrics.jsonl") == [iteration(0)]
    assert folder.last_time_s() == 1.5


def open_lines(path) -> list[bytes]:
    return (path / "events.jsonl").read_bytes().strip().split(b"\n")


# --- resuming ---


def test_a_run_that_is_opened_again_keeps_its_records_and_its_clock(path, folder):
    folder.record_event({"time_s": 7.25, "event": "phase"})
    folder.record_metrics(iteration(0))
    folder.close()
    assert reopened(path) == (job(), 7.25)
    assert lines(path / "metrics.jsonl") == [iteration(0)]


def test_the_journal_comes_back_as_it_was_written(path, folder):
    folder.journal.write({"progress/1": b"one"})
    folder.close()
    again, _ = RunFolder.reopen(path, None)
    assert again.journal.items() == [("progress/1", b"one")]
    assert again.journal.term == 2
    again.close()


def test_the_journal_of_another_job_is_refused(path, folder, tmp_path):
    folder.close()
    other = RunFolder.create(tmp_path / "other", job(seed=1))
    other.close()
    (path / "journal.sqlite").write_bytes((tmp_path / "other" / "journal.sqlite").read_bytes())
    with pytest.raises(RunFolderError, match="belongs to the job"):
        RunFolder.reopen(path, None)


def test_going_back_drops_the_metrics_of_what_will_be_made_again(folder, path):
    kept = [validation(0), iteration(0), iteration(1), validation(2)]
    for record in (*kept[:3], validation(1), kept[3], iteration(2), validation(3)):
        folder.record_metrics(record)
    folder.rewind(completed=2, validated=(0, 2))
    assert lines(path / "metrics.jsonl") == kept


def test_going_back_keeps_what_is_settled(folder, path):
    kept = [iteration(0), iteration(1)]
    for record in kept:
        folder.record_metrics(record)
    folder.rewind(completed=2, validated=())
    assert lines(path / "metrics.jsonl") == kept


def test_what_is_recorded_after_going_back_follows_what_was_kept(path, folder):
    folder.record_metrics(iteration(0))
    folder.record_metrics(iteration(1))
    folder.rewind(completed=1, validated=())
    folder.record_metrics(iteration(1))
    assert lines(path / "metrics.jsonl") == [iteration(0), iteration(1)]


def test_another_job_is_refused_and_nothing_is_changed(path, folder):
    folder.record_metrics(iteration(0))
    folder.close()
    with pytest.raises(RunFolderError, match=r"belongs to another job"):
        RunFolder.reopen(path, job(seed=1))
    assert lines(path / "metrics.jsonl") == [iteration(0)]
    assert reopened(path, job())[0] == job()


def test_a_folder_without_a_job_is_no_run_folder(path):
    with pytest.raises(RunFolderError, match=r"not a run folder: it has no config\.yaml"):
        RunFolder.reopen(path, None)
    assert not path.exists()


@pytest.mark.parametrize("damage", [b"name: [", b"name: x\n", b"\xff\xfe", b""])
def test_a_damaged_config_is_named(path, folder, damage):
    folder.close()
    (path / "config.yaml").write_bytes(damage)
    with pytest.raises(RunFolderError, match=r"config\.yaml cannot be used"):
        RunFolder.reopen(path, None)


@pytest.mark.parametrize("kind", ["pipe", "link"])
@pytest.mark.parametrize(
    "name", [".lock", "events.jsonl", "journal.sqlite", "metrics.jsonl", "step-times.json"]
)
def test_what_is_appended_to_is_a_file_of_the_folder(path, folder, tmp_path, name, kind):
    folder.close()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_text("mine\n")
    (path / name).unlink(missing_ok=True)
    os.mkfifo(path / name) if kind == "pipe" else (path / name).symlink_to(elsewhere)
    with pytest.raises(RunFolderError, match=rf"{name} is a (named pipe|link), not a file"):
        RunFolder.reopen(path, None)
    assert elsewhere.read_text() == "mine\n"


def test_a_lock_that_is_a_named_pipe_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / ".lock")
    with pytest.raises(RunFolderError, match=r"\.lock is a named pipe"):
        RunFolder.create(tmp_path, job())


def test_a_damaged_journal_is_named_and_leaves_the_folder_free(path, folder):
    folder.close()
    good = (path / "journal.sqlite").read_bytes()
    (path / "journal.sqlite").write_bytes(b"nonsense" * 99)
    with pytest.raises(RunFolderError, match=r"journal\.sqlite"):
        RunFolder.reopen(path, None)
    (path / "journal.sqlite").write_bytes(good)
    assert reopened(path)[0] == job()


# --- torn lines ---

TORN = [
    b'{"time_s": 99.0, "eve',
    b'{"time_s": 99.0, "event": "x"}',  # whole but for the line end: the next would be glued to it
    '{"prompt": "Grüße'.encode()[:-2],  # in the middle of a letter
    b"\0" * 16,
]


@pytest.mark.parametrize("torn", TORN)
def test_the_clock_goes_on_from_the_last_whole_event(path, folder, torn):
    folder.record_event({"time_s": 3.5, "event": "phase"})
    folder.close()
    append(path / "events.jsonl", torn)
    assert reopened(path)[1] == 3.5


@pytest.mark.parametrize("torn", TORN)
def test_events_after_a_crash_begin_on_a_line_of_their_own(path, folder, torn):
    folder.record_event({"time_s": 3.5, "event": "phase"})
    folder.close()
    append(path / "events.jsonl", torn)
    again, _ = RunFolder.reopen(path, None)
    again.record_event({"time_s": 4.0, "event": "run_started"})
    again.close()
    assert [entry["time_s"] for entry in lines(path / "events.jsonl")] == [3.5, 4.0]


@pytest.mark.parametrize("torn", TORN)
def test_a_torn_metric_is_dropped(path, folder, torn):
    folder.record_metrics(iteration(0))
    append(path / "metrics.jsonl", torn)
    folder.rewind(completed=1, validated=())
    folder.record_metrics(iteration(1))
    assert lines(path / "metrics.jsonl") == [iteration(0), iteration(1)]


def test_a_torn_first_event_leaves_the_clock_at_zero(path, folder):
    folder.close()
    append(path / "events.jsonl", TORN[0])
    assert reopened(path)[1] == 0.0


@pytest.mark.parametrize("name", ["metrics.jsonl", "events.jsonl"])
@pytest.mark.parametrize("damage", [b"nonsense\n", b"7\n", b"{}\n", b"\0\0\n"])
def test_a_damaged_whole_line_is_named(path, folder, name, damage):
    append(path / name, damage)
    with pytest.raises(RunFolderError, match=f"{name} has a damaged line"):
        folder.last_time_s() if name == "events.jsonl" else folder.rewind(1, ())


# --- one coordinator at a time ---


def test_a_second_opening_is_refused_while_the_first_is_open(path, folder):
    with pytest.raises(RunFolderError, match="in use by another coordinator"):
        RunFolder.reopen(path, None)
    folder.record_event({"time_s": 1.0, "event": "phase"})
    folder.close()
    assert reopened(path)[1] == 1.0


HOLD = """
import pathlib, sys
from spotlight.store.run_folder import RunFolder
folder, _ = RunFolder.reopen(pathlib.Path(sys.argv[1]), None)
print("open", flush=True)
sys.stdin.read()
"""


def test_another_process_holds_the_folder_until_it_dies(path, folder):
    folder.close()
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"open\n"
        with pytest.raises(RunFolderError, match="in use by another coordinator"):
            RunFolder.reopen(path, None)
        other.kill()
        other.wait(timeout=10)
    reopened(path)


def test_a_refused_opening_changes_no_records(path, folder):
    folder.record_metrics(iteration(0))
    with pytest.raises(RunFolderError):
        RunFolder.reopen(path, None)
    assert lines(path / "metrics.jsonl") == [iteration(0)]


def test_a_lock_that_the_file_system_cannot_give_is_no_other_coordinator(path, monkeypatch):
    def flock(*_) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr("fcntl.flock", flock)
    with pytest.raises(RunFolderError, match=os.strerror(errno.ENOLCK)):
        RunFolder.create(path, job())


# --- a file system that refuses ---


@pytest.fixture
def full_disk(monkeypatch):
    """The disk is full until the list is emptied."""
    full = [True]
    fsync = os.fsync

    def refuse(descriptor: int) -> None:
        if full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        fsync(descriptor)

    monkeypatch.setattr("os.fsync", refuse)
    return full


def test_a_full_disk_names_the_file_and_what_to_do(folder, full_disk):
    with pytest.raises(RunFolderError, match=r"metrics\.jsonl: No space left.*free some space"):
        folder.record_metrics(iteration(0))


def test_going_back_leaves_all_metrics_when_it_fails(path, folder, full_disk):
    full_disk.clear()
    folder.record_metrics(iteration(0))
    full_disk.append(True)
    with pytest.raises(RunFolderError, match=r"metrics\.jsonl.*: No space left"):
        folder.rewind(0, ())
    full_disk.clear()
    folder.record_metrics(iteration(1))
    assert lines(path / "metrics.jsonl") == [iteration(0), iteration(1)]
    assert not list(path.glob("*.part"))


def test_events_are_durable_when_they_are_synced(folder, full_disk):
    folder.record_event({"time_s": 0.5, "event": "phase"})
    with pytest.raises(RunFolderError, match=r"No space left"):
        folder.sync_events()


def test_a_folder_that_cannot_be_begun_can_be_begun_later(path, full_disk):
    with pytest.raises(RunFolderError, match="No space left"):
        RunFolder.create(path, job())
    full_disk.clear()
    RunFolder.create(path, job()).close()


def test_a_folder_that_cannot_be_reopened_is_left_free(path, folder):
    def refuse(place: str) -> None:
        if place == "journal.commit":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    folder.close()
    failpoints.install(refuse)
    try:
        with pytest.raises(RunFolderError, match="No space left"):
            RunFolder.reopen(path, None)
    finally:
        failpoints.install(None)
    reopened(path)


FILL = """
import json, pathlib, resource, sys
from spotlight.errors import RunFolderError
from spotlight.store.run_folder import RunFolder
folder, _ = RunFolder.reopen(pathlib.Path(sys.argv[1]), None)
resource.setrlimit(resource.RLIMIT_FSIZE, (2500, 2500))
whole = 0
try:
    while True:
        folder.record_event({"time_s": whole, "event": "phase", "text": "x" * 90})
        whole += 1
except RunFolderError as error:
    print(whole, error)
folder.close()
"""


def test_a_line_that_does_not_fit_is_not_begun(path, folder):
    folder.close()
    outcome = subprocess.run(
        [sys.executable, "-c", FILL, str(path)], capture_output=True, text=True, timeout=30
    )
    assert outcome.returncode == 0, outcome.stderr
    whole, _, message = outcome.stdout.partition(" ")
    assert "events.jsonl: File too large" in message
    assert int(whole) > 10
    assert len(lines(path / "events.jsonl")) == int(whole)
    assert reopened(path)[1] == int(whole) - 1


# --- files ---


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


def test_the_scores_of_validations_are_read_back(path, folder):
    folder.record_metrics(iteration(0))
    for version, score in ((0, 0.25), (5, 0.5)):
        folder.record_metrics({"kind": "validation", "weights_version": version, "score": score})
    assert {v.weights_version: v.score for v in folder.validations()} == {0: 0.25, 5: 0.5}
    folder.rewind(0, {0})
    assert {v.weights_version: v.score for v in folder.validations()} == {0: 0.25}


def test_a_folder_that_is_there_is_no_error(folder):
    folder.require_there()


@pytest.mark.parametrize("how", ["delete", "move", "replace"])
def test_a_folder_that_is_gone_while_it_is_open_is_named(path, folder, how):
    if how == "delete":
        shutil.rmtree(path)
    else:
        path.rename(path.with_name("elsewhere"))
    if how == "replace":
        shutil.copytree(path.with_name("elsewhere"), path)
    with pytest.raises(RunFolderError, match=f"{path} was deleted or moved"):
        folder.require_there()


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
    there = path / "artifacts" / "validation" / f"v{version:06d}"
    there.mkdir(parents=True)
    (there / name).write_bytes(b"png")


def shown(path) -> list[str]:
    return sorted(str(e.relative_to(path / "validation")) for e in path.glob("validation/*/*"))


def test_the_pictures_of_the_first_and_the_latest_validation_are_shown(path, folder):
    for version in (0, 5, 10):
        upload(path, version)
        folder.show_pictures(version, [{"prompt": "a", "file": "p000.png"}])
    assert shown(path) == [
        f"v{version:06d}/{name}" for version in (0, 10) for name in ("p000.png", "prompts.json")
    ]


def test_pictures_that_were_in_place_at_a_kill_stay(path, folder):
    upload(path, 5)
    folder.show_pictures(5, [])
    folder.show_pictures(5, [{"prompt": "a", "file": "p000.png"}])
    assert shown(path) == ["v000005/p000.png", "v000005/prompts.json"]
    assert "p000" in (path / "validation" / "v000005" / "prompts.json").read_text()


def test_pictures_that_are_made_again_replace_the_earlier_ones(path, folder):
    upload(path, 5, "old.png")
    folder.show_pictures(5, [])
    upload(path, 5, "new.png")
    folder.show_pictures(5, [])
    assert shown(path) == ["v000005/new.png", "v000005/prompts.json"]


@pytest.mark.parametrize("link", ["validation", "validation/v000005"])
def test_pictures_behind_a_symbolic_link_are_not_shown(path, folder, tmp_path, link):
    outside = tmp_path / "outside" / link.removeprefix("validation").strip("/")
    (tmp_path / "outside" / "v000005").mkdir(parents=True)
    (path / "artifacts" / link).parent.mkdir(parents=True, exist_ok=True)
    (path / "artifacts" / link).symlink_to(outside)
    folder.show_pictures(5, [{"prompt": "a", "file": "p000.png"}])
    assert shown(path) == []
    assert list((tmp_path / "outside").rglob("*")) == [tmp_path / "outside" / "v000005"]


def test_a_validation_without_pictures_shows_none(path, folder):
    folder.show_pictures(5, [])
    assert shown(path) == []


def test_the_next_run_folder_is_the_first_unused_number(tmp_path):
    assert next_run_folder(tmp_path, "ocr") == tmp_path / "ocr-001"
    for number in (1, 2, 4):
        (tmp_path / f"ocr-{number:03d}").mkdir()
    assert next_run_folder(tmp_path, "ocr") == tmp_path / "ocr-003"


def test_closing_twice_is_harmless(folder):
    folder.close()
    folder.close()
