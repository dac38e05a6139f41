"""The mutants of `benchmarks.mutants` still fit the package."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from benchmarks.mutants.mutant import ROOT, Mutant, mutants

ALL = mutants()


def test_there_are_enough() -> None:
    assert len(ALL) >= 100
    assert len({mutant.promise for mutant in ALL}) == len(ALL)


@pytest.mark.parametrize("mutant", ALL, ids=lambda mutant: mutant.name)
def test_its_line_is_there_once_and_what_it_becomes_can_be_read(mutant: Mutant) -> None:
    assert mutant.line != mutant.becomes
    ast.parse(mutant.changed(ROOT))


@pytest.mark.parametrize("mutant", ALL, ids=lambda mutant: mutant.name)
def test_the_tests_that_are_likeliest_to_notice_are_there(mutant: Mutant) -> None:
    assert mutant.tests
    assert all((ROOT / name).is_file() for name in mutant.tests)


def test_a_line_that_is_not_there_is_said(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("x = 1\nx = 1\n")
    mutant = Mutant("m", "It is 1.", "a.py", "x = 1\n", "x = 2\n", ())
    with pytest.raises(ValueError, match=r"is in a\.py 2 times"):
        mutant.changed(tmp_path)


def test_a_room_is_the_innermost_folder_of_tests_that_mirrors_the_folder() -> None:
    mutant = Mutant("m", "It is 1.", "spotlight/store/deep/er/a.py", "", "", ())
    assert mutant.room == "tests/store"
