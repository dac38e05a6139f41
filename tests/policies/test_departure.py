import pytest
from hypothesis import given
from hypothesis import strategies as st

from spotlight.policies.departure import Departure, stop_in_s

leads = st.floats(0.0, 1000.0)


@given(leads)
def test_the_margin_is_a_fifth_of_the_lead_and_at_most_five_seconds(lead_s):
    margin = lead_s - stop_in_s(lead_s, 5.0)
    assert 0.0 <= margin <= min(5.0, 0.2 * lead_s) + 1e-9


@given(leads, leads)
def test_more_lead_never_means_an_earlier_stop(lead_s, more):
    assert stop_in_s(lead_s + more, 5.0) >= stop_in_s(lead_s, 5.0)


def test_without_lead_it_stops_at_once():
    assert stop_in_s(0.0, 5.0) == 0.0


def test_a_notice_that_says_no_time_leaves_less_than_clouds_give():
    departure = Departure()
    departure.give("cloud", "signal", None, now=100.0)
    assert departure.notice is not None
    assert departure.notice.lead_s is None
    assert departure.notice.deadline == 100.0 + departure.timings.unknown_lead_s


def test_time_that_passed_since_the_notice_is_gone():
    departure = Departure()
    departure.give("cloud", "aws", 120.0, now=0.0)
    assert departure.stop_in_s(now=20.0) == 95.0
    assert departure.stop_in_s(now=500.0) == 0.0


def test_the_earliest_deadline_counts_and_of_each_way_the_latest_notice():
    departure = Departure()
    departure.give("user", "user", 50.0, now=0.0)
    departure.give("cloud", "aws", 30.0, now=0.0)
    assert departure.notice.source == "aws"
    departure.give("cloud", "aws", 100.0, now=0.0)
    assert departure.notice.source == "user"
    assert departure.withdraw("user")
    assert not departure.withdraw("user")
    assert departure.notice.deadline == 100.0


def test_it_may_leave_once_when_every_worker_has_drained():
    departure = Departure()
    departure.drained("a")
    assert not departure.may_leave(["a"]), "nobody gave notice"
    departure.give("cloud", "aws", 30.0, now=0.0)
    assert not departure.may_leave(["a", "b"])
    departure.drained("b")
    assert departure.may_leave(["a", "b"])
    assert not departure.may_leave(["a", "b"])


def test_a_worker_that_began_anew_must_say_again_that_it_has_drained():
    departure = Departure()
    departure.give("cloud", "aws", 30.0, now=0.0)
    departure.drained("a")
    departure.restarted("a")
    assert not departure.may_leave(["a"])


@pytest.mark.parametrize("left", [True, False])
def test_staying_forgets_everything(left):
    departure = Departure()
    departure.give("cloud", "aws", 30.0, now=0.0)
    departure.drained("a")
    if left:
        departure.may_leave(["a"])
    departure.stay()
    assert (departure.notice, departure.left) == (None, False)
    departure.give("cloud", "aws", 30.0, now=100.0)
    assert not departure.may_leave(["a"])
