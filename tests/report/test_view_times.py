"""What workers' time went to, in parts of a run."""

from __future__ import annotations

from itertools import pairwise

import pytest

from spotlight.report.view_times import TimeShares


@pytest.mark.parametrize("beyond_s", [0.0, 1e-7, 4e-4, 6e-4, 0.5], ids=str)
def test_a_run_that_ends_a_moment_after_a_part_has_no_part_without_length(beyond_s: float) -> None:
    shares = TimeShares()
    shares.interval("spot/0", "spot", "spot", "explore", 0.0, 64.0 + beyond_s)
    areas = shares.areas()
    assert all(left < right for left, right in pairwise(areas.edges))
    assert areas.edges[-1] == round(64.0 + beyond_s, 3)
    *workers, last = areas.pools["spot"]["explore"]
    assert set(workers) == {1.0} and 0 < last <= 1, "ends are told in whole thousandths"
