"""A reward that nobody trains on falls beyond noise while the score rises: the model games it."""

from __future__ import annotations

import random
import statistics

import pytest

from spotlight.policies.reward_hacking import Estimate, Fall, Validation, find_falls


def validation(version: int, score: float, error: float = 0.02, **checks: float) -> Validation:
    return Validation(
        version,
        Estimate(score, error),
        {name: Estimate(mean, error) for name, mean in checks.items()},
    )


FIRST = validation(0, 0.3, aesthetic=0.6)


def test_a_fall_beyond_noise_while_the_score_rises_is_found() -> None:
    earlier = [FIRST, validation(5, 0.4, aesthetic=0.65)]
    latest = validation(10, 0.7, aesthetic=0.4)
    assert find_falls(earlier, latest) == [Fall("aesthetic", 5, 0.65, 0.4)]


@pytest.mark.parametrize(
    "latest",
    [
        validation(10, 0.7, aesthetic=0.6),
        validation(10, 0.7, aesthetic=0.9),
        validation(10, 0.7, aesthetic=0.53),
        validation(10, 0.3, aesthetic=0.1),
        validation(10, 0.1, aesthetic=0.1),
        validation(10, 0.7, error=0.2, aesthetic=0.1),
        validation(10, 0.7),
    ],
    ids=["equal", "more", "noise", "score as before", "both fall", "few images", "not measured"],
)
def test_anything_else_is_none(latest: Validation) -> None:
    assert find_falls([FIRST], latest) == []


def test_the_first_validation_has_fallen_from_nothing() -> None:
    assert find_falls([], FIRST) == []


def test_every_reward_is_looked_at_by_itself() -> None:
    first = validation(0, 0.3, aesthetic=0.6, spelling=0.2, colour=0.9)
    latest = validation(5, 0.5, aesthetic=0.3, spelling=0.4, colour=0.5)
    assert [fall.reward for fall in find_falls([first], latest)] == ["aesthetic", "colour"]


def test_what_only_varies_by_chance_hardly_ever_falls() -> None:
    """A thousand jobs of ten validations, 64 images each, whose check never changes."""
    rng = random.Random(3)
    found = 0
    for _ in range(1000):
        earlier: list[Validation] = []
        for version in range(10):
            values = [rng.gauss(0.5, 0.3) for _ in range(64)]
            check = Estimate(statistics.fmean(values), statistics.stdev(values) / 8)
            latest = Validation(version, Estimate(0.3 + 0.05 * version, 0.01), {"x": check})
            found += bool(find_falls(earlier, latest))
            earlier.append(latest)
    assert found < 100, "of 9,000 comparisons with the best of those before"


def test_a_real_fall_is_found_with_the_images_of_a_small_validation() -> None:
    rng = random.Random(4)
    found = 0
    for _ in range(200):
        means = []
        for mean in (0.6, 0.35):
            values = [min(1.0, max(0.0, rng.gauss(mean, 0.3))) for _ in range(64)]
            means.append(Estimate(statistics.fmean(values), statistics.stdev(values) / 8))
        first = Validation(0, Estimate(0.3, 0.02), {"x": means[0]})
        found += bool(find_falls([first], Validation(5, Estimate(0.6, 0.02), {"x": means[1]})))
    assert found > 160
