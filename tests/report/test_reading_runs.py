"""Reading a run folder: what is tolerated, and what is refused with the file and the line."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from sample_run import RESERVED, RunWriter

from spotlight.errors import RunFolderError
from spotlight.record.ledger import Ledger
from spotlight.record.run_events import WeightsPublished, WorkerLost, WorkerStateBegan
from spotlight.report.run_reading import read_run


def _append(run: RunWriter, file: str, text: str) -> None:
    with (run.folder / file).open("a", encoding="utf-8") as stream:
        stream.write(text)


def test_a_finished_run_is_read_whole(finished_run: Path) -> None:
    record = read_run(finished_run)
    assert [one.iteration for one in record.iterations] == list(range(12))
    assert [one.weights_version for one in record.validations] == [0, 5, 10, 12]
    assert [gallery.weights_version for gallery in record.galleries] == [0, 12]
    assert record.job.name == "ocr-tiny"
    assert record.notes == ()


def test_a_run_that_has_not_written_anything_yet_is_empty(run: RunWriter) -> None:
    record = read_run(run.folder)
    assert record.iterations == () and record.events == () and record.run_seconds == 0


def test_a_torn_last_line_is_dropped_and_said(run: RunWriter) -> None:
    run.metric("validation", 1.0, weights_version=0, score=0.5)
    _append(run, "metrics.jsonl", '{"kind":"iteration","itera')
    record = read_run(run.folder)
    assert len(record.validations) == 1
    assert record.notes == ("metrics.jsonl: the last line is torn and was left out",)


def test_a_last_line_that_only_lacks_its_newline_counts(run: RunWriter) -> None:
    line = {"kind": "validation", "time_s": 2.0, "weights_version": 0, "score": 0.5}
    _append(run, "metrics.jsonl", json.dumps(line))
    assert len(read_run(run.folder).validations) == 1


def test_a_malformed_line_in_the_middle_is_refused_with_file_and_line(run: RunWriter) -> None:
    run.event("run_started", 0.0)
    _append(run, "events.jsonl", "{oops\n")
    run.event("run_finished", 1.0)
    with pytest.raises(RunFolderError, match=r"events\.jsonl, line 2: is not JSON"):
        read_run(run.folder)


def test_a_malformed_last_line_that_was_written_whole_is_refused(run: RunWriter) -> None:
    _append(run, "events.jsonl", "[1, 2]\n")
    with pytest.raises(RunFolderError, match=r"events\.jsonl, line 1: must be a JSON object"):
        read_run(run.folder)


@pytest.mark.parametrize(
    ("file", "line", "problem"),
    [
        (
            "metrics.jsonl",
            {"kind": "iteration", "time_s": 1.0},
            "object missing required field `iter",
        ),
        ("metrics.jsonl", {"kind": "other", "time_s": 1.0}, "`kind` must be iteration or valid"),
        (
            "events.jsonl",
            {"event": "phase", "phase": "train"},
            "object missing required field `time_s`",
        ),
        ("events.jsonl", {"event": 7, "time_s": 1.0}, "expected `str`"),
        ("events.jsonl", {"event": "moon_rose"}, "object missing required field `time_s`"),
        (
            "events.jsonl",
            {"event": "checkpoint_saved", "time_s": 1.0, "iteration": 1},
            "object missing required field `path`",
        ),
        (
            "metrics.jsonl",
            {"kind": "iteration", "iteration": 1},
            "object missing required field `time",
        ),
        (
            "events.jsonl",
            {"event": "worker_state", "time_s": 1.0, "worker": "w", "state": "sleeping"},
            "invalid enum value 'sleeping'",
        ),
        (
            "states.jsonl",
            {"event": "worker_state", "time_s": 1.0, "worker": "w", "state": "sleeping"},
            "invalid enum value 'sleeping'",
        ),
        ("states.jsonl", {"event": "worker_state", "worker": "w"}, "object missing required field"),
    ],
)
def test_a_line_of_the_wrong_shape_is_refused(
    run: RunWriter, file: str, line: dict, problem: str
) -> None:
    _append(run, file, json.dumps(line) + "\n")
    with pytest.raises(RunFolderError, match=rf"{file}, line 1: {problem}"):
        read_run(run.folder)


def test_a_loss_that_is_not_a_number_is_absent(run: RunWriter) -> None:
    run.metric("iteration", 1.0, iteration=0, loss=float("nan"))
    assert read_run(run.folder).iterations[0].loss is None


def test_fields_that_are_not_known_are_ignored(run: RunWriter) -> None:
    run.metric("iteration", 1.0, iteration=0, clip_fraction=0.1)
    assert len(read_run(run.folder).iterations) == 1


def test_of_an_iteration_that_was_run_twice_the_later_line_counts(run: RunWriter) -> None:
    run.metric("iteration", 1.0, iteration=0, reward_mean=0.1)
    run.metric("iteration", 2.0, iteration=0, reward_mean=0.2)
    (iteration,) = read_run(run.folder).iterations
    assert iteration.reward_mean == 0.2


def test_events_of_workers_and_phases_are_kept_apart(run: RunWriter) -> None:
    run.state(RESERVED, 1.0, "idle")
    run.event("phase", 2.0, iteration=0, phase="rollout")
    run.event("weights_published", 3.0, version=1)
    record = read_run(run.folder)
    assert [event.state for event in record.worker_states()] == ["idle"]
    assert [phase.phase for phase in record.phases] == ["rollout"]
    assert record.events == (WeightsPublished(time_s=3.0, version=1),)


def test_an_event_that_is_not_known_counts_as_the_time_at_which_it_was(run: RunWriter) -> None:
    run.event("moon_rose", 4.0, phase="full")
    record = read_run(run.folder)
    assert (record.events, record.run_seconds) == ((), 4.0)


def test_what_an_older_line_lacks_is_its_default(run: RunWriter) -> None:
    run.event("worker_state", 1.0, worker="w", state="idle")
    run.event("worker_lost", 2.0, worker="w")
    record = read_run(run.folder)
    assert list(record.worker_states()) == [WorkerStateBegan(time_s=1.0, worker="w", state="idle")]
    assert record.events == (WorkerLost(time_s=2.0, worker="w"),)


def test_a_torn_last_state_is_left_out_and_noted(run: RunWriter) -> None:
    run.state(RESERVED, 1.0, "idle")
    _append(run, "states.jsonl", '{"time_s": 2.0, "ev')
    record = read_run(run.folder)
    assert record.notes == ("states.jsonl: the last line is torn and was left out",)
    assert [event.state for event in record.worker_states()] == ["idle"]


def test_states_among_the_events_of_an_earlier_version_come_first(run: RunWriter) -> None:
    run.event("worker_state", 1.0, worker="w", state="rollout")
    run.event("run_started", 5.0)
    run.state_line(6.0, worker="w", state="idle")
    record = read_run(run.folder)
    assert [event.state for event in record.worker_states()] == ["rollout", "idle"]
    assert (record.states_from_s, record.run_seconds) == (6.0, 6.0)


def test_a_ledger_that_cannot_be_read_is_left_out_and_noted(run: RunWriter) -> None:
    (run.folder / "ledger.json").write_text("{")
    record = read_run(run.folder)
    (note,) = record.notes
    assert note.startswith(f"{run.folder / 'ledger.json'} is damaged")
    assert record.ledger == Ledger()


def test_a_folder_without_a_job_is_not_a_run(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match=r"config\.yaml: cannot be read .*give the folder"):
        read_run(tmp_path)


@pytest.mark.parametrize("name", ["config.yaml", "metrics.jsonl", "events.jsonl"])
def test_a_named_pipe_is_not_waited_for(run: RunWriter, name: str) -> None:
    (run.folder / name).unlink(missing_ok=True)
    os.mkfifo(run.folder / name)
    with pytest.raises(RunFolderError, match=f"{name}: is a named pipe"):
        read_run(run.folder)


def test_a_job_that_does_not_parse_is_refused(run: RunWriter) -> None:
    (run.folder / "config.yaml").write_text("name: x\n")
    with pytest.raises(RunFolderError, match=r"config\.yaml: is not a job: model: is missing"):
        read_run(run.folder)


def test_a_picture_outside_its_folder_is_refused(run: RunWriter) -> None:
    folder = run.folder / "validation" / "v000000"
    folder.mkdir(parents=True)
    listing = [{"prompt": "p", "reward": 0.5, "file": "../../config.yaml"}]
    (folder / "prompts.json").write_text(json.dumps(listing))
    with pytest.raises(RunFolderError, match="must be a name in the same folder"):
        read_run(run.folder)


def test_of_many_validations_only_the_first_and_the_latest_show_pictures(run: RunWriter) -> None:
    for version in (0, 5, 10):
        folder = run.folder / "validation" / f"v{version:06d}"
        folder.mkdir(parents=True)
        (folder / "prompts.json").write_text("[]")
    assert [one.weights_version for one in read_run(run.folder).galleries] == [0, 10]
