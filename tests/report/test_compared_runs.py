"""Runs side by side: which are one variant, and what the intervals over seeds are."""

from __future__ import annotations

import random
import statistics
from pathlib import Path
from typing import Any

import pytest
from sample_run import RunWriter, sample_job
from scipy import stats

from spotlight.report.comparison import Variant, compare, estimate, spaced
from spotlight.report.comparison_page import by_score, cells, comparison_page
from spotlight.report.run_reading import RunHistory, read_run


def a_run(folder: Path, rewards: list[float], scores: dict[int, float], **job: Any) -> RunHistory:
    run = RunWriter(folder)
    run.job(sample_job(**job))
    for iteration, reward in enumerate(rewards):
        run.metric("iteration", 10.0 * iteration, iteration=iteration, reward_mean=reward)
    for iteration, score in scores.items():
        run.metric("validation", 10.0 * iteration, weights_version=iteration, iteration=iteration,
                   score=score)  # fmt: skip
    return read_run(folder)


def two_rates(folder: Path) -> tuple[Variant, ...]:
    """Three seeds of one learning rate, and one of another."""
    return compare(
        [
            a_run(folder / "a", [0.1, 0.4], {0: 0.2, 1: 0.4}, seed=0, name="a"),
            a_run(folder / "b", [0.2, 0.5, 0.9], {0: 0.3, 1: 0.5}, seed=1, name="b"),
            a_run(folder / "c", [0.3], {0: 0.9}, training={"learning_rate": 0.5}),
            a_run(folder / "d", [0.3, 0.6], {0: 0.1, 1: 0.6}, seed=2, name="d"),
        ]
    )


def test_runs_that_differ_in_seed_and_name_alone_are_one_variant(tmp_path: Path) -> None:
    several, single = two_rates(tmp_path)
    assert several.seeds == (0, 1, 2)
    assert several.runs == tuple(str(tmp_path / name) for name in "abd")
    assert single.seeds == (7,)


def test_variants_are_called_by_what_differs(tmp_path: Path) -> None:
    several, single = two_rates(tmp_path)
    assert single.label == "training.learning_rate=0.5"
    assert several.label.startswith("training.learning_rate=")


def test_one_variant_is_called_as_its_job(tmp_path: Path) -> None:
    one, other = a_run(tmp_path / "a", [], {}, seed=1), a_run(tmp_path / "b", [], {}, seed=2)
    assert [variant.label for variant in compare([one, other])] == ["ocr-tiny"]


def test_a_curve_has_the_iterations_that_all_seeds_have(tmp_path: Path) -> None:
    several, single = two_rates(tmp_path)
    assert [point.iteration for point in several.reward] == [0, 1]
    assert [point.value.mean for point in several.reward] == pytest.approx([0.2, 0.5])
    assert [point.value.mean for point in several.validation] == pytest.approx([0.2, 0.5])
    assert [point.value.margin for point in single.reward] == [None]
    assert several.iterations == 2


def test_the_best_of_each_run_counts(tmp_path: Path) -> None:
    several, single = two_rates(tmp_path)
    assert several.best is not None
    assert several.best.mean == pytest.approx(0.5)
    assert by_score([several, single]) == [single, several]


@pytest.mark.parametrize("runs", [2, 3, 8, 11, 12, 16, 25, 40, 100])
def test_an_interval_is_that_of_student(runs: int) -> None:
    rng = random.Random(runs)
    values = [rng.gauss(0.5, 0.1) for _ in range(runs)]
    found = estimate(values)
    assert found is not None and found.margin is not None
    error = statistics.stdev(values) / runs**0.5
    exact = stats.t.ppf(0.975, runs - 1) * error
    assert exact - 1e-3 * error <= found.margin <= 1.05 * exact  # rather wider than narrower


def test_of_one_run_there_is_no_interval_and_of_none_nothing() -> None:
    one = estimate([0.5])
    assert one is not None and one.margin is None
    assert estimate([]) is None


def test_a_run_that_has_measured_nothing_is_in_the_table(tmp_path: Path) -> None:
    nothing = a_run(tmp_path / "a", [], {}, training={"learning_rate": 0.5})
    something = a_run(tmp_path / "b", [0.5], {0: 0.5})
    first, last = by_score(compare([nothing, something]))
    assert first.best is not None
    assert cells(last)[-3:] == ("\N{EN DASH}",) * 3


def test_points_that_are_shown_are_evenly_apart() -> None:
    assert spaced(range(5), 10) == [0, 1, 2, 3, 4]
    assert spaced(range(100), 4) == [0, 33, 66, 99]


def test_the_page_draws_each_variant_with_a_band_and_needs_nothing_else(tmp_path: Path) -> None:
    page = comparison_page(two_rates(tmp_path))
    assert page.count('class="b c-') == 2  # a band in each of the two charts
    assert page.count("training.learning_rate=0.5") > 2
    assert "0.500 ± 0.248" in page
    assert "http://" not in page.replace("http://www.w3.org", "") and "src=" not in page


def test_names_are_text_on_the_page(tmp_path: Path) -> None:
    runs = [
        a_run(tmp_path / str(number), [0.5], {}, model={"checkpoint": f"/<b>{number}</b>"})
        for number in range(2)
    ]
    page = comparison_page(compare(runs))
    assert "<b>1</b>" not in page and "&lt;b&gt;1&lt;/b&gt;" in page


def test_as_many_curves_are_drawn_as_there_are_colours(tmp_path: Path) -> None:
    runs = [
        a_run(tmp_path / str(number), [0.1 * number], {}, group_size=2 * number + 2)
        for number in range(9)
    ]
    page = comparison_page(compare(runs))
    assert "Drawn are the best 7; the table has 2 more." in page
    assert page.count("<tr>") == 10
