"""The mutants of `benchmarks.mutants` still fit the package."""

from __future__ import annotations

import ast
import shutil
from pathlib import Path

import pytest

from benchmarks.mutants.mutant import ROOT, Mutant, mutants

ALL = mutants()


def test_there_are_enough() -> None:
    assert len(ALL) >= 20
    assert len({mutant.promise for mutant in ALL}) == len(ALL)


@pytest.mark.parametrize("mutant", ALL, ids=lambda mutant: mutant.name)
def test_its_line_is_there_once_and_what_it_becomes_can_be_read(
    mutant: Mutant, tmp_path: Path
) -> None:
    copy = tmp_path / mutant.file
    copy.parent.mkdir(parents=True)
    shutil.copy(ROOT / mutant.file, copy)
    before = ast.dump(ast.parse(copy.read_text(encoding="utf-8")))
    mutant.apply(tmp_path)
    assert ast.dump(ast.parse(copy.read_text(encoding="utf-8"))) != before


@pytest.mark.parametrize("mutant", ALL, ids=lambda mutant: mutant.name)
def test_the_tests_that_are_nearest_to_it_are_there(mutant: Mutant) -> None:
    assert mutant.tests
    assert all((ROOT / name).is_file() for name in mutant.tests)


def test_a_line_that_is_not_there_is_said(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("x = 1\nx = 1\n")
    mutant = Mutant("m", "It is 1.", "a.py", "x = 1\n", "x = 2\n", ())
    with pytest.raises(ValueError, match=r"is in a\.py 2 times"):
        mutant.apply(tmp_path)
