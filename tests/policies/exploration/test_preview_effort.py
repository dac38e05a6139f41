import random

import msgspec
import pytest

from spotlight.policies.exploration.preview_effort import (
    Effort,
    EffortRecord,
    choose_effort,
    new_record,
)

EFFORTS = [Effort(4, 1), Effort(6, 1), Effort(6, 2), Effort(10, 4)]


def follow(earnings, iterations: int, record: EffortRecord | None = None, seed: int = 0):
    """The efforts chosen, when effort i earns earnings[i] on average, with 10 % noise."""
    rng = random.Random(seed)
    record = new_record(EFFORTS) if record is None else record
    chosen = []
    for _ in range(iterations):
        chosen.append(choose_effort(EFFORTS, record))
        contrast = 20 * earnings[chosen[-1]] * max(0.0, rng.gauss(1, 0.1))
        record = record.after(chosen[-1], contrast)
    return chosen, record


def test_every_effort_is_tried_once_first():
    assert follow([1, 1, 1, 1], 4)[0] == [0, 1, 2, 3]


@pytest.mark.parametrize("unit", [1e-6, 1.0, 1e6])
def test_the_best_effort_is_found_whatever_the_unit_of_contrast(unit):
    shares = []
    for seed in range(8):
        chosen, _ = follow([unit, 1.15 * unit, 1.4 * unit, 0.9 * unit], 100, seed=seed)
        shares.append(chosen[50:].count(2) / 50)
    assert sum(shares) / len(shares) > 0.8


def test_a_new_best_effort_is_found_when_the_old_one_gets_worse():
    shares = []
    for seed in range(8):
        _, record = follow([1, 1.15, 1.4, 0.9], 60, seed=seed)
        chosen, _ = follow([1.4, 1.15, 0.8, 0.9], 100, record, seed=seed)
        shares.append(chosen[50:].count(0) / 50)
    assert sum(shares) / len(shares) > 0.7


def test_no_effort_is_dropped_for_good():
    chosen, _ = follow([1, 1.1, 1.2, 0.9], 300)
    assert set(chosen[100:]) == {0, 1, 2, 3}


def test_what_is_long_ago_counts_less():
    record = new_record(EFFORTS).after(0, 5.0).after(1, 1.5)
    assert record.trials[0].count < 1 == record.trials[1].count
    assert record.trials[0].total / record.trials[0].count == pytest.approx(5)
    assert record.trials[1].total == 1.5


@pytest.mark.parametrize("contrast", [0.0, 0.3])
def test_equal_earnings_do_not_divide_by_zero(contrast):
    record = new_record(EFFORTS)
    for _ in range(12):
        record = record.after(choose_effort(EFFORTS, record), contrast)
    assert choose_effort(EFFORTS, record) in range(4)


def test_one_effort_is_always_chosen():
    record = new_record(EFFORTS[:1])
    for _ in range(3):
        assert choose_effort(EFFORTS[:1], record) == 0
        record = record.after(0, 1.0)


def test_a_record_survives_being_written_and_read():
    _, record = follow([1, 2, 3, 4], 9)
    assert msgspec.json.decode(msgspec.json.encode(record), type=EffortRecord) == record


@pytest.mark.parametrize(
    ("effort", "contrast"), [(4, 1.0), (-1, 1.0), (0, float("nan")), (0, -1.0)]
)
def test_impossible_outcomes_are_refused(effort, contrast):
    with pytest.raises(ValueError):
        new_record(EFFORTS).after(effort, contrast)


@pytest.mark.parametrize("efforts", [[], EFFORTS[:3]])
def test_a_record_of_other_efforts_is_refused(efforts):
    with pytest.raises(ValueError, match="a record of 4"):
        choose_effort(efforts, new_record(EFFORTS))
