"""What is known of how long the gradients of slices take."""

from __future__ import annotations

import pytest

from spotlight.policies.slice_times import SliceTimes


def test_nothing_is_known_of_ranks_before_they_have_trained():
    assert SliceTimes().rank_slice_s is None


def test_the_first_measurement_counts_whole_and_later_ones_in_part():
    times = SliceTimes()
    times.taken(own=4, own_s=8.0, fetched_bytes=1000, fetch_s=2.0)
    assert (times.rank_slice_s, times.bytes_per_s) == (2.0, 500.0)
    times.taken(own=1, own_s=3.0, fetched_bytes=1000, fetch_s=1.0)
    assert times.rank_slice_s == pytest.approx(2.3)
    assert times.bytes_per_s == pytest.approx(650.0)


def test_a_rank_that_computed_or_fetched_nothing_changes_nothing():
    times = SliceTimes(rank_slice_s=2.0, fetch_bytes_per_s=500.0)
    times.taken(own=0, own_s=0.0, fetched_bytes=0, fetch_s=0.0)
    assert times == SliceTimes(rank_slice_s=2.0, fetch_bytes_per_s=500.0)


def test_a_link_is_taken_for_a_usual_one_before_anything_came_over_it():
    assert SliceTimes().bytes_per_s == 125e6


def test_a_speed_that_was_measured_long_ago_counts_no_more_than_the_next_one():
    times = SliceTimes(rank_slice_s=2.0, fetch_bytes_per_s=500.0, is_old=True)
    assert times.bytes_per_s == 500.0
    times.taken(own=0, own_s=0.0, fetched_bytes=4000, fetch_s=1.0)
    assert (times.bytes_per_s, times.is_old) == (4000.0, False)


def test_a_gradient_that_had_not_come_tells_that_the_link_is_slower():
    times = SliceTimes(fetch_bytes_per_s=500.0, gradient_bytes=1000)
    times.taken(own=4, own_s=8.0, fetched_bytes=0, fetch_s=20.0, updates=2)
    assert times.bytes_per_s == 50.0, "1000 bytes had not come after 10 s, in either update"


def test_what_had_not_come_in_a_moment_says_nothing_of_a_link():
    times = SliceTimes(fetch_bytes_per_s=500.0)
    times.not_there(1000, 0.1)
    times.not_there(0, 1e6)
    assert times.bytes_per_s == 500.0
    unknown = SliceTimes()
    unknown.not_there(10**9, 0.1)
    assert unknown.fetch_bytes_per_s is None, "what is usual was not measured"


def test_what_has_not_come_over_a_link_that_is_tried_again_takes_the_place_of_the_old_speed():
    times = SliceTimes(fetch_bytes_per_s=1.0, is_old=True)
    times.not_there(1000, 10.0)
    assert (times.bytes_per_s, times.is_old) == (50.0, False)
