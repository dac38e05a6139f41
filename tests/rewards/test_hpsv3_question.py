"""The question is read out of the authors' package, none of whose code runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from spotlight.errors import MissingDependency, ScoringError
from spotlight.rewards.hpsv3_question import hpsv3_question
from spotlight.types import Prompt
from tests.rewards.hpsv3_kit import QUESTION, hpsv3_package


def test_the_prompt_is_put_into_both_parts_of_the_authors_question(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hpsv3_package(tmp_path, monkeypatch)
    asked = hpsv3_question(Prompt("a {red} sign"))
    assert asked == QUESTION.format(text_prompt="a {red} sign")


def test_without_the_package_it_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.path", [])
    with pytest.raises(MissingDependency, match=r"pip install --no-deps hpsv3$"):
        hpsv3_question(Prompt("a cat"))


@pytest.mark.parametrize(
    ("text", "problem"),
    [("INSTRUCTION = ", "cannot be read"), ("ASKED = 'a {text_prompt}'", "has no question")],
    ids=["broken", "other names"],
)
def test_a_package_without_the_question_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, problem: str
) -> None:
    file = hpsv3_package(tmp_path, monkeypatch, text)
    with pytest.raises(ScoringError, match=rf"^{file} {problem}.*; install hpsv3"):
        hpsv3_question(Prompt("a cat"))


def test_a_package_whose_file_is_no_text_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = hpsv3_package(tmp_path, monkeypatch)
    file.write_bytes(b"\xff")
    with pytest.raises(ScoringError, match=rf"^{file} cannot be read .*; install hpsv3"):
        hpsv3_question(Prompt("a cat"))
