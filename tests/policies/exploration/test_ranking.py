import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spotlight.policies.exploration.ranking import median_or_none, spearman, spread

VALUES = st.one_of(st.floats(-1e6, 1e6), st.sampled_from([0.0, 0.5, 1.0]))


def test_the_spread_is_the_population_standard_deviation():
    assert spread([1.0, 3.0]) == 1.0


@pytest.mark.parametrize("values", [[], [0.7], [0.1, 0.1, 0.1]])
def test_what_does_not_vary_has_no_spread(values):
    assert spread(values) == 0.0


def test_equal_rankings_agree_fully_whatever_the_values():
    assert spearman([1.0, 2.0, 3.0], [0.1, 10.0, 1000.0]) == pytest.approx(1.0)
    assert spearman([1.0, 2.0, 3.0], [3.0, 2.0, 1.0]) == pytest.approx(-1.0)


def test_ties_share_their_average_rank():
    # Ranks 0, 1.5, 1.5, 3 against 0, 1, 2, 3: sqrt(0.9) by hand.
    assert spearman([0.0, 5.0, 5.0, 9.0], [1.0, 2.0, 3.0, 4.0]) == pytest.approx(math.sqrt(0.9))


@pytest.mark.parametrize("first", [[], [1.0], [2.0, 2.0]])
def test_without_variation_there_is_no_correlation(first):
    assert spearman(first, [float(number) for number in range(len(first))]) is None


def test_rankings_of_different_lengths_are_refused():
    with pytest.raises(ValueError, match="2 and 3"):
        spearman([1.0, 2.0], [1.0, 2.0, 3.0])


@given(st.lists(st.tuples(VALUES, VALUES), max_size=12))
def test_the_correlation_is_symmetric_and_between_minus_one_and_one(pairs):
    first, second = [a for a, _ in pairs], [b for _, b in pairs]
    value = spearman(first, second)
    assert value is None or -1 - 1e-9 <= value <= 1 + 1e-9
    assert value == (None if value is None else pytest.approx(spearman(second, first)))


def test_the_median_leaves_out_what_is_not_there():
    assert median_or_none([None, 0.2, 0.8, None]) == pytest.approx(0.5)
    assert median_or_none([None]) is None
    assert median_or_none([]) is None
