"""Files that nobody but their owner may look into."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from spotlight.errors import UnreadableFile
from spotlight.store.secret_files import read_secret_file, write_secret_file


def test_what_was_written_is_read_and_open_to_nobody_else(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    write_secret_file(file, "abc")
    assert read_secret_file(file) == "abc"
    assert file.stat().st_mode & 0o777 == 0o600
    assert list(tmp_path.iterdir()) == [file]


def test_it_is_open_to_nobody_even_where_an_earlier_one_was(tmp_path: Path) -> None:
    for name in ("secret", "secret.part"):
        (tmp_path / name).write_text("old")
        (tmp_path / name).chmod(0o666)
    write_secret_file(tmp_path / "secret", "abc")
    assert (tmp_path / "secret").stat().st_mode & 0o777 == 0o600
    assert read_secret_file(tmp_path / "secret") == "abc"


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o602, 0o700, 0o4600])
def test_a_file_that_is_open_to_others_is_refused_and_not_shown(tmp_path: Path, mode: int) -> None:
    file = tmp_path / "secret"
    file.write_text("hush")
    file.chmod(mode)
    with pytest.raises(UnreadableFile, match=rf"mode {mode:04o}\); .*`chmod 600 ") as error:
        read_secret_file(file)
    assert "hush" not in str(error.value)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_a_file_of_another_user_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    write_secret_file(file, "abc")
    os.chown(file, 1, 1)
    with pytest.raises(UnreadableFile, match="belongs to another user"):
        read_secret_file(file)


def test_what_is_no_such_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "large").write_bytes(b"a" * 5000)
    (tmp_path / "large").chmod(0o600)
    os.mkfifo(tmp_path / "pipe", 0o600)
    for name, problem in (
        ("absent", "No such file"),
        ("large", "is too large"),
        ("pipe", "is a named pipe"),
        ("", "is a folder"),
    ):
        with pytest.raises(UnreadableFile, match=problem):
            read_secret_file(tmp_path / name)
