"""Events and metrics are whole lines, after a crash, a step back or on a full disk too."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from run_folder_kit import iteration, job, lines, reopened

from spotlight.errors import RunFolderError
from spotlight.record.run_events import ResultsIgnored, WorkTakenBack
from spotlight.store import record_files
from spotlight.store.run_folder import RunFolder


def validation(version: int) -> dict:
    return {"kind": "validation", "weights_version": version, "iteration": version}


def append(file, data: bytes) -> None:
    with open(file, "ab") as opened:
        opened.write(data)


def test_records_are_lines_of_json_in_order(path, folder):
    folder.record_event({"time_s": 0.5, "event": "phase"})
    folder.record_event({"time_s": 1.5, "event": "group_dropped", "prompt": "„Grüße“\u2028"})
    folder.record_metrics(iteration(0))
    assert [entry["time_s"] for entry in map(json.loads, open_lines(path))] == [0.5, 1.5]
    assert lines(path / "metrics.jsonl") == [iteration(0)]
    assert folder.last_moment().time_s == 1.5


def open_lines(path) -> list[bytes]:
    return (path / "events.jsonl").read_bytes().strip().split(b"\n")


def test_a_run_that_is_opened_again_keeps_its_records_and_its_clock(path, folder):
    folder.record_event({"time_s": 7.25, "event": "phase"})
    folder.record_metrics(iteration(0))
    folder.close()
    assert reopened(path) == (job(), 7.25)
    assert lines(path / "metrics.jsonl") == [iteration(0)]


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
        folder.last_moment().time_s if name == "events.jsonl" else folder.rewind(1, ())


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


FILL = """
import json, pathlib, resource, sys
from spotlight.errors import RunFolderError
from spotlight.store import record_files
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


def test_metrics_are_read_back(path, folder):
    folder.record_metrics({**iteration(0), "previews": 7})
    for version, score in ((0, 0.25), (5, 0.5)):
        folder.record_metrics({"kind": "validation", "weights_version": version, "score": score})
    first, *validations = folder.metrics()
    assert (first.iteration, first.previews) == (0, 7)
    assert {v.weights_version: v.score for v in validations} == {0: 0.25, 5: 0.5}
    folder.rewind(0, {0})
    assert [v.weights_version for v in folder.metrics()] == [0]


def test_events_go_on_in_another_file_when_theirs_is_large(path, folder, monkeypatch):
    monkeypatch.setattr(record_files, "LARGEST", 100)
    for number in range(10):
        folder.record_event({"time_s": float(number), "event": "work_taken_back", "items": number})
        folder.require_there()
    folder.sync_events()
    assert [file.name for file in record_files.older_files(path)] == [
        f"events-{number:06d}.jsonl" for number in (1, 2, 3, 4, 5)
    ]
    assert [event.items for event in folder.events((WorkTakenBack,))] == list(range(10))
    assert folder.last_moment().time_s == 9.0, "though its own file is empty"
    folder.close()
    assert reopened(path)[1] == 9.0


@pytest.mark.parametrize("torn", TORN)
def test_of_several_files_of_events_the_last_may_be_torn(path, folder, monkeypatch, torn):
    monkeypatch.setattr(record_files, "LARGEST", 1)
    folder.record_event({"time_s": 3.5, "event": "phase"})
    folder.close()
    append(path / "events.jsonl", torn)
    again, _ = RunFolder.reopen(path, None)
    assert again.last_moment().time_s == 3.5
    again.record_event({"time_s": 4.0, "event": "run_started"})
    again.close()
    texts = [json.loads(line)["time_s"] for line in record_files.whole_event_lines(path)]
    assert texts == [3.5, 4.0]


def test_events_are_read_back_by_their_kinds_and_lines_that_cannot_be_read_are_left_out(folder):
    for event in (
        {"event": "late_results", "worker": "a/0", "lease": 7},
        {"event": "of_another_version", "worker": "a/0"},
        {"event": "late_results", "worker": 3},
        {"event": "worker_state", "worker": "a/0", "state": "idle"},
        {"event": "leases_expired", "items": 2},
    ):
        folder.record_event({"time_s": 1.0, **event})
    found = folder.events((ResultsIgnored, WorkTakenBack))
    assert [event.fields() for event in found] == [{"worker": "a/0", "lease": 7}, {"items": 2}]
