import pytest
from hypothesis import given
from hypothesis import strategies as st

from spotlight.policies.fleet.rejoin import JoinBackoff


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
