"""Whether previews are trained on, and how long it pays to wait for them."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spotlight.policies.exploration.reuse import (
    MOST_DRIFT,
    NONE,
    may_reuse,
    patience,
    rewards_to_train_on,
)

ARRIVALS = st.lists(st.tuples(st.floats(0, 100), st.integers(1, 50)), max_size=20)


def worth(previews_per_sample: float) -> float:
    """Like that of the OCR example."""
    return 1 + 1.43 * math.log(previews_per_sample)


def of_pass_or_fail(previews_per_sample: float) -> float:
    return min(4 / 3, 1 + 0.5 * math.log(previews_per_sample))


def rate(kept: int, whole: int, scored: int, seconds: float) -> float:
    taught = scored / whole if scored < whole else worth(scored / kept)
    return taught / seconds


@pytest.mark.parametrize(
    ("drift", "may"),
    [(0.0, True), (MOST_DRIFT, True), (1.01 * MOST_DRIFT, False), (math.nan, False), (None, False)],
)
def test_previews_are_trained_on_while_the_weights_have_moved_little(
    drift: float | None, may: bool
) -> None:
    assert may_reuse(drift) == may


def test_what_is_noisy_is_trained_on_by_its_second_draw() -> None:
    assert rewards_to_train_on((0.1, 0.2), (False, False)) == (0.1, 0.2)
    assert rewards_to_train_on((0.1, 0.2, 0.9), (False, True)) == (0.1, 0.9)
    assert rewards_to_train_on((0.1, 0.2, 0.9), (True, False)) == (0.9, 0.2)
    assert rewards_to_train_on((0.1, 0.2, 0.8, 0.9), (True, True)) == (0.8, 0.9)


def test_twice_the_previews_are_worth_a_tenth_of_the_iteration() -> None:
    assert patience(16, 16, 16, [(4.0, 16)], 40.0, worth).scored == 32
    assert patience(16, 16, 64, [(4.0, 64)], 40.0, worth).scored == 128


def test_where_a_choice_gains_little_nobody_waits_for_more_previews() -> None:
    assert patience(16, 16, 32, [(1.0, 32)], 40.0, of_pass_or_fail) == NONE
    assert patience(16, 16, 32, [(1.0, 32)], 40.0, worth).scored == 64


def test_a_few_more_previews_are_not_worth_the_time_of_many() -> None:
    assert patience(16, 16, 64, [(10.0, 2)], 40.0, worth) == NONE
    assert patience(16, 16, 64, [(0.5, 2), (10.0, 2)], 40.0, worth).scored == 66


def test_whole_groups_are_waited_for() -> None:
    assert patience(16, 16, 8, [(20.0, 8)], 40.0, worth).scored == 16
    assert patience(16, 48, 40, [(20.0, 8)], 40.0, worth).scored == 48, "of a prompt pool"


def test_groups_that_will_not_be_whole_are_not_waited_for() -> None:
    assert patience(16, 16, 0, [(20.0, 8)], 20.0, worth) == NONE
    assert patience(16, 48, 32, [(1.0, 8)], 20.0, worth) == NONE


def test_nothing_is_waited_for_longer_than_training_took() -> None:
    assert patience(16, 16, 0, [(19.0, 16)], 20.0, worth).scored == 16
    assert patience(16, 16, 0, [(21.0, 16)], 20.0, worth) == NONE


@given(
    kept=st.integers(1, 64),
    pool=st.integers(1, 4),
    scored=st.integers(0, 500),
    arrivals=ARRIVALS,
    spent=st.floats(1, 200),
)
def test_no_other_end_of_the_wait_teaches_more_per_second(
    kept: int, pool: int, scored: int, arrivals: list[tuple[float, int]], spent: float
) -> None:
    whole = pool * kept
    found = patience(kept, whole, scored, arrivals, spent, worth)
    rates, count = {scored: rate(kept, whole, scored, spent)}, scored
    for in_s, previews in sorted(arrivals):
        count += previews
        if count >= whole and in_s <= spent:
            rates[count] = rate(kept, whole, count, spent + in_s)
    chosen = found.scored if found != NONE else scored
    assert rates[chosen] == pytest.approx(max(rates.values()))


@given(ARRIVALS, st.floats(1, 200))
def test_the_limit_leaves_time_for_those_that_are_waited_for(
    arrivals: list[tuple[float, int]], spent: float
) -> None:
    found, count = patience(16, 16, 16, arrivals, spent, worth), 16
    if found == NONE:
        return
    for in_s, previews in sorted(arrivals):
        count += previews
        if count == found.scored:
            assert in_s < found.limit_s <= in_s + 0.051 * spent
