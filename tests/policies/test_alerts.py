"""What people are told of a job that goes on."""

from __future__ import annotations

import pytest

from spotlight.policies import alerts

GB = 10**9


@pytest.mark.parametrize(
    ("share", "tau", "said"),
    [
        (1.0, 0.9, ""),
        (0.5, 0.2, "exploration is reduced to 50%"),
        (0.0, 0.02, "exploration is off: previews say too little of what rewards will be"),
        (0.0, None, "exploration is off"),
    ],
    ids=["all", "half", "off", "off, and nobody knows why"],
)
def test_exploration_is_told_of_when_it_makes_fewer_previews(
    share: float, tau: float | None, said: str
) -> None:
    found = alerts.of_exploration(share, tau)
    assert found.startswith(said) and bool(found) == bool(said)
    assert ("tau" in found) == (bool(said) and tau is not None)


@pytest.mark.parametrize(
    ("free", "total", "full"),
    [
        (9 * GB, 1000 * GB, True),
        (11 * GB, 1000 * GB, False),
        (2 * GB, 30 * GB, False),
        (1 * GB, 30 * GB, True),
        (0, 0, False),
    ],
    ids=str,
)
def test_a_disk_is_nearly_full_when_little_and_a_small_share_are_free(
    free: int, total: int, full: bool
) -> None:
    assert bool(alerts.of_disk("/runs", free, total)) == full


def test_the_disk_is_named_with_what_is_free() -> None:
    assert alerts.of_disk("/runs/a", GB, 500 * GB) == (
        "the disk of /runs/a is nearly full: 0.2% of 500 GB are free"
    )
