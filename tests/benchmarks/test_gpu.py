"""The benchmark of GPUs keeps to its budget, and says what it has as it goes."""

from __future__ import annotations

import json

import pytest

from benchmarks.gpu import LIMITS_S, run_step, run_steps


def test_a_step_whose_turn_comes_after_the_budget_is_not_run_and_each_says_so_as_it_ends(
    capfd: pytest.CaptureFixture[str],
) -> None:
    figures = run_steps(0.0, quick=True)
    assert figures == dict.fromkeys(LIMITS_S, "not run: the budget was spent")
    lines = [json.loads(line) for line in capfd.readouterr().err.splitlines()]
    assert [line["step"] for line in lines] == list(LIMITS_S)
    assert [line["figures"] for line in lines] == [{step: figures[step]} for step in LIMITS_S]


def test_a_step_that_takes_too_long_is_cut_short() -> None:
    assert run_step("truth", 0.4, quick=True) == {"truth": "took longer than 0.4 s"}
