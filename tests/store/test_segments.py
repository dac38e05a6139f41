"""A run goes on with other settings, or another version, as a segment of its own."""

from __future__ import annotations

import shutil
from pathlib import Path

import msgspec
import pytest
import yaml
from run_folder_kit import job

from spotlight import __version__
from spotlight.errors import JobError, RunFolderError
from spotlight.jobs import job_to_yaml
from spotlight.store.run_folder import (
    PROGRESS,
    RunFolder,
    known_iterations,
    read_config,
    read_continued,
)
from spotlight.store.segments import SEGMENT, Segment, records_of, segments_of

EARLIER = Path(__file__).parents[1] / "data" / "runs" / "0.1.0"
RATE = "training.learning_rate=1e-05"


def again(path: Path, *changes: str) -> RunFolder:
    """The folder, opened again with changes, in which a segment has begun."""
    folder, _ = RunFolder.reopen(path, None, changes)
    folder.begin_segment(known_iterations(folder.journal))
    return folder


def done(folder: RunFolder, iterations: int) -> None:
    """The journal knows so many iterations."""
    folder.journal.write({f"{PROGRESS}{iterations:06d}": b"{}"})


def rates(path: Path) -> dict[str, float]:
    """The learning rate in each of the files."""
    files = sorted(path.glob("config*.yaml"))
    return {
        file.name: yaml.safe_load(file.read_text())["training"]["learning_rate"] for file in files
    }


def test_the_config_of_a_new_segment_takes_the_place_of_one_that_is_kept(path, folder) -> None:
    done(folder, 5)
    folder.close()
    again(path, RATE).close()
    assert rates(path) == {"config-001.yaml": 3e-4, "config.yaml": 1e-5}
    assert read_config(path).training.learning_rate == 1e-5


def test_a_segment_begins_after_what_is_done_and_with_what_is_made_again(path, folder) -> None:
    done(folder, 5)
    folder.close()
    folder = again(path, RATE)
    assert [each.first for each in segments_of(folder.journal)] == [0, 5]
    folder.rewind(3, ())
    assert [each.first for each in segments_of(folder.journal)] == [0, 3]
    folder.close()


def test_nothing_begins_a_segment_but_a_change(path, folder) -> None:
    folder.close()
    for _ in range(2):
        again(path).close()
        again(path, "training.learning_rate=0.0003").close()
    folder = again(path)
    assert not folder.journal.items(SEGMENT)
    assert not folder.segments_begun()
    folder.close()
    assert rates(path) == {"config.yaml": 3e-4}


def test_a_change_by_hand_begins_a_segment_too(path, folder) -> None:
    folder.close()
    now = msgspec.structs.replace(job(), checkpoint_every=9)
    stamp = yaml.safe_load((path / "config.yaml").read_text())["spotlight"]
    (path / "config.yaml").write_text(yaml.safe_dump({"spotlight": stamp}) + job_to_yaml(now))
    folder = again(path)
    (began,) = folder.segments_begun()
    assert began.changes == ("checkpoint_every: 5 -> 9",)
    folder.close()


def test_a_kill_between_the_files_and_the_journal_loses_no_segment(path, folder) -> None:
    folder.close()
    shutil.copytree(path, path.with_name("before"))
    again(path, RATE).close()
    shutil.copy(path.with_name("before") / "journal.records", path / "journal.records")
    folder = again(path)
    assert len(segments_of(folder.journal)) == 2
    folder.close()
    assert rates(path) == {"config-001.yaml": 3e-4, "config.yaml": 1e-5}


def test_another_version_begins_a_segment(path, folder) -> None:
    earlier = Segment(0, msgspec.to_builtins(job()), "0.1.7")
    folder.journal.write(records_of([earlier]))
    folder.close()
    folder = again(path)
    (began,) = folder.segments_begun()
    assert (began.number, began.changes, began.version) == (2, (), __version__)
    folder.close()


def test_changes_that_are_refused_change_nothing(path, folder) -> None:
    done(folder, 5)
    folder.close()
    before = {file: file.read_bytes() for file in path.iterdir()}
    for change, error in (
        ("group_size=2", JobError),
        ("iterations=4", RunFolderError),
        ("nothing=1", JobError),
    ):
        with pytest.raises(error):
            RunFolder.reopen(path, None, [change])
    assert {file: file.read_bytes() for file in path.iterdir()} == before


def test_a_job_that_is_not_what_the_folders_own_becomes_is_refused(path, folder) -> None:
    folder.close()
    with pytest.raises(RunFolderError, match="belongs to another job"):
        RunFolder.reopen(path, job(), [RATE])


def test_a_run_has_done_what_its_metrics_say(path, folder) -> None:
    folder.record_metrics({"kind": "iteration", "iteration": 6})
    folder.close()
    with pytest.raises(RunFolderError, match="7 iterations are done"):
        read_continued(path, ["iterations=6"])
    assert read_continued(path, ["iterations=7"]).iterations == 7


@pytest.fixture
def earlier(tmp_path: Path) -> Path:
    """A run that 0.1.0 has left, whose journal knows nothing of its job."""
    shutil.copytree(EARLIER, tmp_path / "earlier")
    return tmp_path / "earlier"


def test_a_run_of_0_1_0_keeps_the_group_size_that_its_config_says(earlier: Path) -> None:
    with pytest.raises(JobError, match="group_size: was 2 when the run began"):
        RunFolder.reopen(earlier, None, ["group_size=4"])
    again(earlier, RATE).close()
    assert rates(earlier)["config.yaml"] == 1e-5


def test_a_config_of_0_1_0_that_was_edited_is_refused(earlier: Path) -> None:
    """Its journal has no more than a checksum of it."""
    text = (earlier / "config.yaml").read_text()
    (earlier / "config.yaml").write_text(text.replace("group_size: 2", "group_size: 4"))
    with pytest.raises(RunFolderError, match="was edited, and Spotlight"):
        RunFolder.reopen(earlier, None)
    (earlier / "config.yaml").write_text(text)
    again(earlier).close()


def test_the_first_segment_of_a_run_of_0_1_0_has_the_job_that_is_there(earlier: Path) -> None:
    folder = again(earlier, RATE)
    first, second = segments_of(folder.journal)
    assert (first.first, second.first) == (0, 2)
    assert first.job["training"]["learning_rate"] != second.job["training"]["learning_rate"]
    folder.close()
