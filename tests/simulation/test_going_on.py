"""A run that goes on after its end does what a longer one would have done."""

from __future__ import annotations

from typing import Any

import pytest

from spotlight.errors import RequestRefused
from spotlight_simulation.continued_run import ContinuedRun


@pytest.mark.parametrize(
    ("exploration", "cut"),
    [
        pytest.param({"mode": "uniform"}, 1, id="after-its-first-iteration"),
        pytest.param({"mode": "bandit", "prompt_pool": 2}, 3, id="with-what-it-learnt-of-prompts"),
    ],
)
def test_a_run_that_is_continued_is_the_longer_run(exploration: dict[str, Any], cut: int) -> None:
    """An iteration is explored while the one before it is trained, also where a run had ended."""
    whole = ContinuedRun(exploration, 5)
    continued = ContinuedRun(exploration, cut, "iterations=5")
    assert continued.weights == whole.weights
    assert continued.figures == whole.figures


@pytest.mark.parametrize(
    "exploration",
    [
        pytest.param({"mode": "none"}, id="without-exploration"),
        pytest.param({"mode": "uniform", "weights": "fresh"}, id="with-fresh-weights"),
    ],
)
def test_a_run_keeps_the_validation_of_where_it_had_ended(exploration: dict[str, Any]) -> None:
    whole = ContinuedRun(exploration, 4)
    continued = ContinuedRun(exploration, 3, "iterations=4")
    assert continued.weights == whole.weights
    assert continued.iterations == whole.iterations
    assert [each for each in continued.figures if each in whole.figures] == whole.figures


def test_every_segment_is_on_record_with_what_it_changed() -> None:
    rate = "training.learning_rate=0.0001"
    run = ContinuedRun({"mode": "none"}, 2, "iterations=3", rate, "iterations=4")
    assert [(each.number, each.iteration) for each in run.segments] == [(2, 2), (3, 3), (4, 3)]
    assert [each.changes for each in run.segments] == [
        ("iterations: 2 -> 3",),
        ("training.learning_rate: 0.0003 -> 0.0001",),
        ("iterations: 3 -> 4",),
    ]
    rates = {name: each["training"]["learning_rate"] for name, each in run.configs.items()}
    assert rates == {
        "config-001.yaml": 3e-4,
        "config-002.yaml": 3e-4,
        "config-003.yaml": 1e-4,
        "config.yaml": 1e-4,
    }
    assert run.configs["config.yaml"]["iterations"] == 4


def test_a_segment_begins_where_what_is_made_again_begins() -> None:
    run = ContinuedRun({"mode": "uniform"}, 3, "iterations=4")
    assert [each.iteration for each in run.segments] == [2]


def test_a_run_that_goes_on_unchanged_begins_no_segment() -> None:
    run = ContinuedRun({"mode": "none"}, 2, "iterations=2")
    assert not run.segments
    assert [*run.configs] == ["config.yaml"]


def test_a_run_cannot_have_done_more_than_it_is_asked_for() -> None:
    with pytest.raises(RequestRefused, match="3 iterations are done"):
        ContinuedRun({"mode": "none"}, 3, "iterations=2")


@pytest.mark.parametrize("at", [2, 3], ids=["before-the-last-iteration", "at-its-end"])
def test_a_fork_goes_on_as_the_run_itself_would_have_done(at: int) -> None:
    """At the end the run has not explored for what comes next, which only the fork before it
    makes good."""
    exploration = {"mode": "uniform"} if at == 2 else {"mode": "none"}
    whole = ContinuedRun(exploration, 5)
    fork = ContinuedRun(exploration, 3, "iterations=5", fork_at=at)
    assert fork.weights == whole.weights
    assert fork.iterations == whole.iterations
    (segment,) = fork.segments
    assert (segment.number, segment.iteration) == (2, at)
    assert segment.source.endswith(f"/runs/run@{at}")
    assert segment.changes == ("iterations: 3 -> 5",)


def test_a_fork_of_an_older_checkpoint_goes_on_without_what_was_explored_for_it() -> None:
    fork = ContinuedRun({"mode": "uniform"}, 4, "iterations=5", "iterations=6", fork_at=2)
    assert [each["iteration"] for each in fork.iterations] == [*range(6)]
    previews = [each["previews"] for each in fork.iterations]
    assert previews[2] == 0 < min(previews[1], *previews[3:])
