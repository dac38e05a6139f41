"""Where the value of an Authorization header comes from."""

from __future__ import annotations

from pathlib import Path

import pytest

from spotlight.errors import UserError
from spotlight.rewards.authorization import read_authorization


def test_a_file_holds_it_and_its_last_newline_does_not_count(tmp_path: Path) -> None:
    file = tmp_path / "authorization"
    file.write_text("Bearer sesame\n")
    assert read_authorization(str(file), None) == "Bearer sesame"


def test_a_variable_holds_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OF_THE_JOB", "Bearer sesame")
    assert read_authorization(None, "OF_THE_JOB") == "Bearer sesame"


def test_where_none_is_named_there_is_none() -> None:
    assert read_authorization(None, None) is None


@pytest.mark.parametrize("value", ["", "\n", "Bearer a\nHost: other", "Bearer s\u00e9same"])
def test_what_is_no_value_of_a_header_is_refused_and_not_repeated(
    tmp_path: Path, value: str
) -> None:
    file = tmp_path / "authorization"
    file.write_text(value)
    with pytest.raises(UserError) as error:
        read_authorization(str(file), None)
    assert str(file) in str(error.value)
    assert value.strip() == "" or value.strip() not in str(error.value)


def test_a_missing_file_and_a_missing_variable_are_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="not-there"):
        read_authorization(str(tmp_path / "not-there"), None)
    with pytest.raises(UserError, match="NOT_THERE"):
        read_authorization(None, "NOT_THERE")
