import copy
import json
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spotlight.policies.step_times import SERIAL_SHARE, StepKey, StepTimes

KEY = StepKey("tiny", height=512, width=512, degree=1, micro_batch=4)
SECONDS = st.floats(1e-4, 1e3)
KEYS = st.builds(
    StepKey,
    st.sampled_from(["tiny", "large"]),
    height=st.sampled_from([256, 512]),
    width=st.sampled_from([256, 512]),
    degree=st.integers(1, 8),
    micro_batch=st.sampled_from([1, 4]),
    frames=st.sampled_from([1, 9]),
)
MEASUREMENTS = st.lists(st.tuples(KEYS, SECONDS), max_size=40)


def at(degree: int) -> StepKey:
    return KEY._replace(degree=degree)


def learned(*measurements: tuple[StepKey, float]) -> StepTimes:
    times = StepTimes()
    for key, seconds in measurements:
        times.measure(key, seconds)
    return times


def test_before_anything_is_measured_nothing_is_known():
    assert StepTimes().get(KEY) is None
    assert StepTimes().estimate(KEY) is None


def test_a_slow_first_step_moves_nothing():
    times = learned((KEY, 60.0), *[(KEY, 1.0)] * 4)
    assert times.get(KEY) == times.estimate(KEY) == 1.0


def test_a_lasting_change_is_learned():
    times = learned(*[(KEY, 1.0)] * 100, *[(KEY, 2.0)] * 8)
    assert times.get(KEY) == 2.0


@settings(deadline=None)
@given(st.lists(SECONDS, min_size=1, max_size=15), st.randoms(use_true_random=False))
def test_the_order_of_the_newest_measurements_does_not_matter(seconds, rng: random.Random):
    shuffled = seconds.copy()
    rng.shuffle(shuffled)
    first, second = (learned(*((KEY, s) for s in order)) for order in (seconds, shuffled))
    assert first.get(KEY) == second.get(KEY)


def test_a_measurement_wins_over_every_estimate():
    times = learned((at(1), 1.0), (at(2), 0.9), (at(4), 0.25))
    assert times.estimate(at(2)) == 0.9


def test_one_measured_degree_and_the_prior_give_the_others():
    times = learned((at(1), 1.0))
    assert times.estimate(at(4)) == pytest.approx((1 - SERIAL_SHARE) / 4 + SERIAL_SHARE)
    times = learned((at(4), (1 - SERIAL_SHARE) / 4 + SERIAL_SHARE))
    assert times.estimate(at(1)) == pytest.approx(1.0)


@settings(deadline=None)
@given(t1=SECONDS, share=st.floats(0, 1), degree=st.integers(1, 64))
def test_two_measured_degrees_give_the_efficiency_of_this_model(t1, share, degree):
    def seconds(d: int) -> float:
        return t1 * ((1 - share) / d + share)

    times = learned((at(2), seconds(2)), (at(4), seconds(4)))
    assert times.estimate(at(degree)) == pytest.approx(seconds(degree), rel=1e-6)


def test_faster_than_linear_in_the_degree_is_taken_for_linear():
    times = learned((at(1), 1.0), (at(2), 0.4))
    assert times.estimate(at(1000)) == pytest.approx(0.001, rel=0.1)


def test_where_more_members_are_slower_no_degree_is_taken_for_faster():
    times = learned((at(1), 1.0), (at(2), 1.2))
    assert times.estimate(at(8)) == pytest.approx(1.1)


def test_another_resolution_is_scaled_by_pixels():
    assert learned((KEY, 1.0)).estimate(KEY._replace(height=1024)) == pytest.approx(2.0)


def test_another_micro_batch_is_scaled_by_samples():
    assert learned((KEY, 1.0)).estimate(KEY._replace(micro_batch=1)) == pytest.approx(0.25)


def test_the_nearest_resolution_is_scaled():
    far, near = KEY._replace(height=64, width=64), KEY._replace(height=1024)
    times = learned((far, 1.0), (near, 5.0))
    assert times.estimate(KEY) == pytest.approx(2.5)


def test_another_resolution_lends_its_efficiency_too():
    times = learned((at(1), 1.0), (at(2), 0.5))
    assert times.estimate(at(4)._replace(width=1024)) == pytest.approx(0.5)


def test_the_same_pixels_in_another_shape_are_no_measurement_of_this_one():
    times = learned((KEY._replace(height=256, width=1024), 3.0), (at(2), 0.5))
    assert times.estimate(KEY) == pytest.approx(0.5 / ((1 - SERIAL_SHARE) / 2 + SERIAL_SHARE))


def test_models_do_not_lend_to_each_other():
    assert learned((KEY, 1.0)).estimate(KEY._replace(model="large")) is None


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("inf"), float("nan")])
def test_only_finite_times_above_zero_are_measured(seconds):
    with pytest.raises(ValueError, match="finite time above 0"):
        StepTimes().measure(KEY, seconds)


@settings(deadline=None)
@given(MEASUREMENTS, KEYS)
def test_an_estimate_is_positive_and_does_not_depend_on_the_order_of_the_keys(measurements, key):
    by_key = sorted(measurements, key=lambda item: item[0])
    estimate = learned(*measurements).estimate(key)
    assert estimate is None or estimate > 0
    assert learned(*by_key).estimate(key) == estimate


@settings(deadline=None)
@given(MEASUREMENTS, KEYS, SECONDS)
def test_what_is_saved_as_json_goes_on_as_before(measurements, key, seconds):
    times = learned(*measurements)
    loaded = StepTimes.from_dict(json.loads(json.dumps(times.to_dict())))
    assert loaded.to_dict() == times.to_dict()
    for either in (times, loaded):
        either.measure(key, seconds)
    assert loaded.estimate(key) == times.estimate(key)


SAVED = learned((KEY, 1.0), (at(2), 0.5)).to_dict()


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("model", 3),
        ("height", 0),
        ("height", 10**400),
        ("width", "512"),
        ("degree", True),
        ("micro_batch", None),
        ("recent_s", []),
        ("recent_s", [1.0] * 16),
        ("recent_s", ["1"]),
        ("recent_s", [10**400]),
        ("recent_s", [0.0]),
        ("recent_s", [float("nan")]),
    ],
)
def test_a_malformed_entry_is_named(field, value):
    damaged = copy.deepcopy(SAVED)
    damaged["step_times"][1][field] = value
    with pytest.raises(ValueError, match=rf"step_times\[1\]\.{field}"):
        StepTimes.from_dict(damaged)


@pytest.mark.parametrize("damaged", [None, [], {}, {"step_times": {}}])
def test_something_else_than_step_times_is_refused(damaged):
    with pytest.raises(ValueError, match="step_times"):
        StepTimes.from_dict(damaged)


def test_an_entry_that_is_no_table_is_named():
    with pytest.raises(ValueError, match=r"step_times\[0\]"):
        StepTimes.from_dict({"step_times": [1]})


def test_the_same_key_twice_is_refused():
    entry = SAVED["step_times"][0]
    with pytest.raises(ValueError, match=r"step_times\[1\].*twice"):
        StepTimes.from_dict({"step_times": [entry, entry]})
