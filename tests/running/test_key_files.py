"""Key pairs that outlive their process."""

from __future__ import annotations

from pathlib import Path

import pytest

from spotlight.errors import UserError
from spotlight.running.key_files import key_pair_of
from spotlight.transport.control.keys import KeyPair


def test_a_pair_is_made_once_and_is_the_same_from_then_on(tmp_path: Path) -> None:
    made, was_there = key_pair_of("--key-file", tmp_path / "key")
    assert not was_there
    assert key_pair_of("--key-file", tmp_path / "key") == (made, True)
    assert (tmp_path / "key").stat().st_mode & 0o777 == 0o600
    assert KeyPair.of(made.secret) == made


@pytest.mark.parametrize("text", ["", "abc", "x" * 44, "$" * 43, "sl1.a:1.b.c.d"])
def test_what_is_no_key_is_refused_and_stays(tmp_path: Path, text: str) -> None:
    file = tmp_path / "key"
    file.write_text(text)
    file.chmod(0o600)
    with pytest.raises(UserError, match=f"--key-file {file}: this is no key; remove the file"):
        key_pair_of("--key-file", file)
    assert file.read_text() == text


def test_a_key_that_others_may_read_is_refused(tmp_path: Path) -> None:
    key_pair_of("--key-file", tmp_path / "key")
    (tmp_path / "key").chmod(0o644)
    with pytest.raises(UserError, match=r"--key-file: .* is open to others \(mode 0644\)"):
        key_pair_of("--key-file", tmp_path / "key")


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"--key-file .*: No such file or directory; give a file"):
        key_pair_of("--key-file", tmp_path / "absent" / "key")
