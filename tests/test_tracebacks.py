"""Where code of one's own raised, as text."""

from __future__ import annotations

import pytest

from spotlight.errors import ScoringError
from spotlight.tracebacks import LONGEST_TRACEBACK, foreign_traceback


def raised(message: str, depth: int = 0) -> ScoringError:
    """As a worker has it: ours, from ours, from that of a scorer."""

    def deeper(left: int) -> None:
        if left:
            deeper(left - 1)
        raise KeyError(message)

    try:
        try:
            try:
                deeper(depth)
            except KeyError as error:
                raise ScoringError("inner") from error
        except ScoringError as error:
            raise ScoringError("outer") from error
    except ScoringError as error:
        return error


def test_the_traceback_is_that_of_what_is_not_ours() -> None:
    text = foreign_traceback(raised("no such colour"))
    assert text.startswith("Traceback (most recent call last):")
    assert text.endswith("KeyError: 'no such colour'")
    assert "in deeper" in text and "ScoringError: " not in text


def test_of_an_error_that_is_not_ours_it_is_its_own() -> None:
    def step() -> None:
        raise RuntimeError("CUDA error")

    with pytest.raises(RuntimeError) as raised_here:
        step()
    text = foreign_traceback(raised_here.value)
    assert "in step" in text and text.endswith("RuntimeError: CUDA error")


def test_an_error_that_was_raised_from_nothing_else_has_none() -> None:
    error = ScoringError("3 rewards for 4 images")
    assert foreign_traceback(error) == ""
    outer = ScoringError("outer")
    outer.__cause__ = error
    assert foreign_traceback(outer) == ""


@pytest.mark.parametrize("depth", [0, 400])
def test_it_is_bounded_and_steers_no_terminal(depth: int) -> None:
    text = foreign_traceback(raised("\x1b[31m" + "x" * 100_000, depth))
    assert len(text) <= LONGEST_TRACEBACK
    assert all(each.isprintable() or each == "\n" for each in text)
