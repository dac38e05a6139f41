"""The chart: whole, standing alone, and right where figures are missing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from xml.etree import ElementTree

from benchmarks.staleness.staleness_chart import draw_chart
from benchmarks.staleness.staleness_record import Rewards, Scoring, StalenessRecord, compare

SVG = "{http://www.w3.org/2000/svg}"
SEEDS = ((1, 2, 3, 4, 5), (6, 7, 8, 9, 10), (11, 12, 13, 14, 15))
FRESH: Rewards = ((0.0, 0.2, 0.5, 0.9, 1.0), (0.1, 0.3, 0.2, 0.8, 0.7), (0.5, 0.4, 0.6, 0.1, 0.2))


def record(stale: Callable[[Sequence[float]], Sequence[float]], fresh: Rewards) -> StalenessRecord:
    """Two lags, at which a row of rewards was what `stale` makes of the newest."""
    older = tuple(tuple(stale(row)) for row in fresh)
    scorings = tuple(
        Scoring(treatment=treatment, lag=lag, steps=8, rewards=rewards)
        for treatment, lag, rewards in (
            ("rollout", 2, older),
            ("rollout", 1, older),
            ("rollout", 0, fresh),
            ("repeat", 0, fresh),
        )
    )
    return StalenessRecord(
        job="<small>",
        checkpoint="",
        completed=0,
        trained=2,
        sampler="ode",
        stochastic=False,
        keep=2,
        seed=0,
        prompts=("a", "b", "c"),
        seeds=SEEDS,
        scorings=scorings,
        comparisons=compare(scorings, keep=2, seeds=SEEDS, seed=0),
    )


def drawn(found: StalenessRecord) -> ElementTree.Element:
    return ElementTree.fromstring(draw_chart(found))


def values(chart: ElementTree.Element) -> list[str]:
    """What the dots say, those of the correlations first."""
    return [title.text or "" for title in chart.iter(f"{SVG}title")]


def test_every_lag_has_a_dot_in_both_lines() -> None:
    found = record(lambda row: row, FRESH)
    assert values(drawn(found)) == ["1.000"] * 6


def test_figures_below_zero_stay_inside() -> None:
    chart = drawn(record(lambda row: [1 - reward for reward in row], FRESH))
    assert values(chart)[:3] == ["1.000", "-1.000", "-1.000"]
    heights = [float(dot.attrib["cy"]) for dot in chart.iter(f"{SVG}circle")]
    assert all(0 < y < 380 for y in heights)


def test_without_figures_there_are_axes_only() -> None:
    chart = drawn(record(lambda row: row, tuple((0.5,) * 5 for _ in SEEDS)))
    assert not values(chart)
    assert len(list(chart.iter(f"{SVG}text"))) > 3


def test_what_chance_gives_is_that_of_the_newest_weights() -> None:
    found = record(lambda row: row, FRESH)
    newest = next(c for c in found.comparisons if (c.treatment, c.lag) == ("rollout", 0))
    text = " ".join(one.text or "" for one in drawn(found).iter(f"{SVG}text"))
    assert f"at random, {newest.fidelity.random_over_oracle:.2f}" in text
    assert "<small>" in text, "names are escaped"
