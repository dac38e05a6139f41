"""The files of a run's events are one text, however they were set aside."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from spotlight.errors import RunFolderError
from spotlight.store.record_files import (
    NEWEST,
    Line,
    event_lines,
    read_whole_events,
    set_newest_aside,
    whole_event_lines,
)


def write(run: Path, *texts: str) -> None:
    """Each text is a file, the last the newest."""
    for text in texts[:-1]:
        (run / NEWEST).write_text(text)
        set_newest_aside(run)
    (run / NEWEST).write_text(texts[-1])


def told(lines: Iterator[Line]) -> list[tuple[str, str, int]]:
    return [(Path(line.where).name, line.text.decode(), line.end) for line in lines]


def test_lines_come_in_order_with_their_place(tmp_path: Path) -> None:
    write(tmp_path, "1\n2\n", "3\n", "4\n")
    assert told(event_lines(tmp_path)) == [
        ("events-000001.jsonl, line 1", "1\n", 2),
        ("events-000001.jsonl, line 2", "2\n", 4),
        ("events-000002.jsonl, line 1", "3\n", 6),
        ("events.jsonl, line 1", "4\n", 8),
    ]


@pytest.mark.parametrize("end", range(9))
def test_what_was_written_later_is_left_out(tmp_path: Path, end: int) -> None:
    write(tmp_path, "1\n2\n", "3\n", "4\n")
    assert len(told(event_lines(tmp_path, end))) == end // 2


def test_a_torn_line_is_no_whole_one(tmp_path: Path) -> None:
    write(tmp_path, "1\n", "2\n3")
    assert list(whole_event_lines(tmp_path)) == [b"1", b"2"]
    assert [text for _, text, _ in told(event_lines(tmp_path))] == ["1\n", "2\n", "3"]


def test_a_run_without_events_has_none(tmp_path: Path) -> None:
    assert told(event_lines(tmp_path)) == []
    assert read_whole_events(tmp_path, 0, 100) == b""


def test_more_than_a_million_files_stay_in_order(tmp_path: Path) -> None:
    for number in ("999999", "1000000"):
        (tmp_path / f"events-{number}.jsonl").write_text(f"{number}\n")
    (tmp_path / NEWEST).write_text("last\n")
    set_newest_aside(tmp_path)
    assert list(whole_event_lines(tmp_path)) == [b"999999", b"1000000", b"last"]


def test_a_file_that_is_set_aside_while_it_is_read_is_read_once(tmp_path: Path) -> None:
    write(tmp_path, "1\n", "2\n", "3\n")
    lines = whole_event_lines(tmp_path)
    found = [next(lines)]
    set_newest_aside(tmp_path)
    (tmp_path / NEWEST).write_text("4\n")
    assert [*found, *lines] == [b"1", b"2", b"3"]


@pytest.mark.parametrize("most", [1, 3, 4, 100])
def test_whoever_reads_on_from_a_byte_gets_every_line_once(tmp_path: Path, most: int) -> None:
    write(tmp_path, "a\nb\n", "c\n", "d\ne")
    most, end, found = most + 1, 0, b""
    while read := read_whole_events(tmp_path, end, most):
        found, end = found + read, end + len(read)
    assert found == b"a\nb\nc\nd\n"
    with open(tmp_path / NEWEST, "a") as file:
        file.write("\n")
    set_newest_aside(tmp_path)
    (tmp_path / NEWEST).write_text("f\n")
    assert read_whole_events(tmp_path, end, 100) == b"e\nf\n"


def test_a_folder_in_the_place_of_events_is_named(tmp_path: Path) -> None:
    (tmp_path / "events-000001.jsonl").mkdir()
    with pytest.raises(RunFolderError, match=r"events-000001\.jsonl: is a folder"):
        list(event_lines(tmp_path))
