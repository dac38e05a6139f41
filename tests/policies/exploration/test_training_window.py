import math

import pytest

from spotlight.policies.exploration.record import WindowPredictor


def test_no_end_is_predicted_before_the_first_measurement():
    assert WindowPredictor().predict() == math.inf


def test_one_measurement_is_the_prediction():
    assert WindowPredictor([3.0]).predict() == 3.0


@pytest.mark.parametrize(
    ("quantile", "expected"), [(0.0, 1.0), (0.25, 2.0), (0.5, 3.0), (1.0, 5.0)]
)
def test_the_prediction_is_a_quantile_of_the_measurements(quantile, expected):
    assert WindowPredictor([5.0, 3.0, 1.0, 4.0, 2.0], quantile=quantile).predict() == expected


def test_one_slow_step_does_not_stretch_the_prediction():
    predictor = WindowPredictor([2.0] * 4)
    predictor.record(60.0)
    assert predictor.predict() == 2.0


def test_old_measurements_are_forgotten():
    predictor = WindowPredictor([9.0] * 5, memory=3)
    for seconds in (1.0, 2.0, 3.0):
        predictor.record(seconds)
    assert predictor.durations == (1.0, 2.0, 3.0)
    assert predictor.predict() == 1.0


def test_a_predictor_made_from_the_durations_of_another_predicts_the_same():
    predictor = WindowPredictor([4.0, 2.0, 8.0, 6.0, 5.0])
    assert WindowPredictor(predictor.durations).predict() == predictor.predict()
