"""What the planner of spot time comes to, against the model in closed form."""

from __future__ import annotations

import pytest

from benchmarks.spot_time import KNOWN_WORTHS, gain_of, known_figures


def test_every_known_figure_follows_from_the_plans() -> None:
    for name, pairs in known_figures().items():
        for got, known in pairs:
            assert got == pytest.approx(known, rel=0.06), name


@pytest.mark.parametrize("rewards", KNOWN_WORTHS)
def test_the_gain_passes_through_what_is_known_of_it(rewards: str) -> None:
    gain, worths = gain_of(KNOWN_WORTHS[rewards]), KNOWN_WORTHS[rewards]
    assert [gain(n) for n in (1, 2, 4, 8, 16)] == pytest.approx([1, *worths])
    assert gain(32) - worths[-1] == pytest.approx(worths[-1] - worths[-2])
