import pytest
from hypothesis import given
from hypothesis import strategies as st

from spotlight.policies.preemption import JoinBackoff, LossRate

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


def departed(*times: float) -> JoinBackoff:
    backoff = JoinBackoff()
    for time in times:
        backoff.left("node", time)
    return backoff


def test_a_node_that_never_left_may_join_at_once():
    assert JoinBackoff().wait_s("node", 0.0) == 0.0


def test_the_first_two_departures_are_free():
    assert departed(1.0, 2.0).wait_s("node", 2.0) == 0.0
    assert departed(1.0, 2.0, 3.0).wait_s("node", 3.0) > 0.0


def test_every_further_departure_doubles_the_wait_up_to_a_minute():
    waits = [departed(*[0.0] * count).wait_s("node", 0.0) for count in range(3, 11)]
    assert waits == [2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0, 60.0]


def test_the_wait_is_counted_from_the_last_departure():
    backoff = departed(0.0, 10.0, 20.0)
    assert backoff.wait_s("node", 21.5) == pytest.approx(0.5)
    assert backoff.wait_s("node", 23.0) == 0.0


def test_departures_are_forgotten_after_five_minutes():
    backoff = departed(*[0.0] * 9)
    backoff.left("node", 301.0)
    assert backoff.wait_s("node", 301.0) == 0.0


def test_nodes_wait_for_their_own_departures_only():
    assert departed(*[0.0] * 9).wait_s("other", 0.0) == 0.0


@given(st.lists(st.floats(0, 1000), max_size=30), st.floats(0, 2000))
def test_no_node_waits_longer_than_a_minute_and_having_waited_it_may_join(times, later):
    backoff = departed(*sorted(times))
    now = max(times, default=0.0) + later
    wait = backoff.wait_s("node", now)
    assert 0.0 <= wait <= 60.0 + 1e-6  # times are rounded
    assert backoff.wait_s("node", now + wait + 1e-6) == 0.0
