"""The jobs of runs on two cores, and what is made of their curves."""

import msgspec
import pytest

from benchmarks.exploration.two_core import compared, two_core_job


def line(seconds: float) -> list[tuple[float, float]]:
    """A score that rises from 0 to 1 in so many seconds."""
    return [(seconds * step / 40, step / 40) for step in range(41)]


def test_a_speedup_is_the_ratio_of_the_times_to_the_same_score() -> None:
    figures = compared(
        "speedup", [(line(20), line(30)), (line(10), line(60)), (line(10), line(30))]
    )
    assert figures["speedup"] == pytest.approx(3.0)  # of 1.5, 6 and 3
    assert figures["speedup_low"] < 3 < figures["speedup_high"]
    assert figures["speedup_on_the_way"]["50 %"]["value"] == pytest.approx(3.0)
    assert [two / one for one, two in figures["speedup_seconds"]] == pytest.approx(
        [1.5, 6, 3], rel=0.02
    )


def test_without_runs_there_is_no_figure() -> None:
    assert compared("speedup", [])["speedup"] is None


def test_the_job_without_exploration_is_spotlights_in_all_else() -> None:
    ours, alone = (two_core_job(rival, 1) for rival in ("spotlight", "none"))
    assert ours.exploration.reuse
    assert alone.exploration.mode == "none"
    assert msgspec.structs.replace(ours, name=alone.name, exploration=alone.exploration) == alone
    pools = (ours.pools.reserved, ours.pools.spot)
    assert [pool.nodes * pool.workers for pool in pools] == [1, 1]
