"""Files that a user names: only what is a file, is as long as it says, and is not too long."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from spotlight.errors import UnreadableFile
from spotlight.files import LONGEST_PATH, Lines, path_problem, read_bytes, read_text, text_problem


def problem(path: Path, most: int = 1000) -> str:
    """Why a file is not read; without the path that it begins with."""
    with pytest.raises(UnreadableFile) as caught:
        read_text(path, most=most)
    assert str(caught.value) == f"{path} {caught.value.problem}"
    return caught.value.problem


def test_a_text_is_read_whole(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("zwölf\n", encoding="utf-8")
    assert read_text(tmp_path / "text", most=7) == "zwölf\n"


def test_a_link_to_a_file_is_followed(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("here")
    (tmp_path / "link").symlink_to("text")
    assert read_bytes(tmp_path / "link", most=10) == b"here"


def test_a_file_over_the_limit_is_refused_with_both_sizes(tmp_path: Path) -> None:
    (tmp_path / "text").write_bytes(bytes(1001))
    assert (
        problem(tmp_path / "text") == "has 1,001 bytes, but at most 1,000 are read of such a file"
    )


def test_a_huge_file_is_refused_unread(tmp_path: Path) -> None:
    with open(tmp_path / "text", "wb") as file:
        file.truncate(2**34)
    assert "bytes, but at most" in problem(tmp_path / "text")


def test_nobody_writes_to_a_named_pipe_and_still_nothing_waits(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert problem(tmp_path / "pipe") == "is a named pipe, not a file"


def test_a_link_to_a_named_pipe_is_one(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("pipe")
    assert problem(tmp_path / "link") == "is a named pipe, not a file"


def test_a_pipe_that_takes_the_place_of_a_file_is_found_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "text").write_text("here")
    before = os.stat(tmp_path / "text")
    monkeypatch.setattr(os, "stat", lambda path: before)
    assert problem(tmp_path / "pipe") == "is a named pipe, not a file"


def test_other_things_that_are_no_files_are_named(tmp_path: Path) -> None:
    assert problem(tmp_path) == "is a folder, not a file"
    assert problem(Path("/dev/zero")) == "is a device, not a file"
    with socket.socket(socket.AF_UNIX) as unix:
        unix.bind(str(tmp_path / "socket"))
        assert problem(tmp_path / "socket") == "is a socket, not a file"


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="needs /proc")
def test_a_file_that_holds_more_than_it_says_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Path("/proc/self/environ").stat().st_size == 0
    assert "does not have the length" in problem(Path("/proc/self/environ"), most=10**6)


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("absent", "No such file or directory"),
        ("x" * 5000, "File name too long"),
        ("file/inside", "Not a directory"),
        ("circle", "Too many levels of symbolic links"),
        ("nul\0", "is not a path"),
        ("half\ud800", "is not a path"),
    ],
)
def test_a_path_that_leads_nowhere_is_refused_with_the_reason(
    tmp_path: Path, name: str, why: str
) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "circle").symlink_to("circle")
    assert why in problem(tmp_path / name)


def test_text_must_be_utf8(tmp_path: Path) -> None:
    (tmp_path / "text").write_bytes(b"\xe4")
    assert problem(tmp_path / "text") == "is not UTF-8 text"


@pytest.mark.parametrize("encoding", ["utf-16-be", "utf-16-le"])
def test_text_in_utf16_is_named_as_what_it_is(tmp_path: Path, encoding: str) -> None:
    (tmp_path / "text").write_bytes("\ufeffzwölf".encode(encoding))
    assert problem(tmp_path / "text") == "is not UTF-8 text, but UTF-16; save it as UTF-8"


def test_a_byte_order_mark_at_the_beginning_is_no_part_of_the_text(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("\ufeffhere", encoding="utf-8")
    assert read_text(tmp_path / "text", most=10) == "here"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("a\0b", "U+0000 (a control character)"),
        ("a\x0cb", "U+000C (a control character)"),
        ("a\x85b", "U+0085 (a control character)"),
        ("a\u2028b", "U+2028 (line separator)"),
        ("a\u2029b", "U+2029 (paragraph separator)"),
        ("a\ufeffb", "U+FEFF (a byte order mark)"),
        ("a\ufffdb", "U+FFFD (written for one that could not be read)"),
        ("a\tb", "U+0009 (a control character)"),
    ],
)
def test_what_nobody_means_to_write_is_found_in_a_text(text: str, found: str) -> None:
    assert text_problem(text) == f"holds the character {found}"


def test_what_people_write_is_no_problem() -> None:
    assert text_problem("naïve 東京 👩\u200d🚀 a\u0301 “quoted” 50 %") is None
    assert text_problem("a\tb\nc", allowed="\t\n") is None


@pytest.mark.parametrize("text", ["", "x" * (LONGEST_PATH + 1), "a\0b", "a\nb", "a\x7f", "a\ud800"])
def test_what_cannot_be_a_path_is_told_before_any_disk_is_asked(text: str) -> None:
    assert path_problem(text) is not None


@pytest.mark.parametrize("text", ["a", "/a b/ü", "x" * LONGEST_PATH, "~/a", "\u3000"])
def test_what_can_be_a_path_is_not_refused(text: str) -> None:
    assert path_problem(text) is None


def test_an_item_is_found_again_by_its_line() -> None:
    lines = Lines("file", ["a", "b"], [1, 4])
    assert lines.map(len) == Lines("file", [1, 1], [1, 4])
    assert lines.place(1) == "file, line 4"


def test_some_lines_are_spread_evenly_over_all() -> None:
    lines = Lines("file", list(range(10)), list(range(1, 11)))
    assert lines.spread(4) == Lines("file", [0, 2, 5, 7], [1, 3, 6, 8])
    assert lines.spread(10) == lines.spread(99) == lines
