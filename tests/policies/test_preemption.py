import pytest
from hypothesis import given
from hypothesis import strategies as st

from spotlight.policies.preemption import LossRate

HOUR_S = 3600.0


def test_before_anything_is_seen_a_worker_is_lost_once_in_an_hour():
    assert LossRate().per_s == pytest.approx(1 / HOUR_S)


def test_with_time_the_rate_is_that_of_the_pool():
    seen = LossRate(losses=1000, worker_s=1000 * 60.0)
    assert seen.per_s == pytest.approx(1 / 60.0, rel=0.1)


@given(st.integers(0, 1000), st.floats(0, 1e9))
def test_losses_raise_the_rate_and_quiet_time_lowers_it(losses, seconds):
    rate = LossRate(losses, seconds).per_s
    assert rate > 0
    assert LossRate(losses + 1, seconds).per_s > rate
    assert LossRate(losses, seconds + HOUR_S).per_s < rate
