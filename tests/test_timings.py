from __future__ import annotations

from dataclasses import fields, is_dataclass, replace
from operator import attrgetter
from typing import Any

import pytest

from spotlight.timings import ConnectionTimings, Timings, WeightsTimings, WorkerTimings


def groups(times: Any) -> list[Any]:
    inner = (getattr(times, field.name) for field in fields(times))
    return [times, *(group for each in inner if is_dataclass(each) for group in groups(each))]


def changed(times: Any, path: str, seconds: float) -> Any:
    """The same with another limit."""
    name, _, rest = path.partition(".")
    return replace(
        times, **{name: changed(getattr(times, name), rest, seconds) if rest else seconds}
    )


RULES = [
    pytest.param(group, rule, id=f"{type(group).__name__}: {rule}")
    for group in groups(Timings())
    for rule in group.ORDER
]


@pytest.mark.parametrize(("group", "rule"), RULES)
def test_a_limit_that_is_not_longer_than_it_must_be_is_refused(group: Any, rule: str) -> None:
    longer, shorter = rule.split(" > ")
    terms = [(int(times or 1), path) for times, _, path in map(parted, shorter.split(" + "))]
    least = sum(times * attrgetter(path)(group) for times, path in terms)
    with pytest.raises(ValueError) as refused:
        changed(group, longer, least)
    # A limit that is too short may break a rule of its own group first.
    assert longer.rpartition(".")[2] in str(refused.value)


def parted(term: str) -> tuple[str, str, str]:
    return term.rpartition(" * ")


def test_a_refusal_names_both_limits_and_says_why() -> None:
    with pytest.raises(ValueError) as refused:
        WorkerTimings(connect_limit_s=70.0)
    assert str(refused.value) == (
        "WorkerTimings is out of order: not connect_limit_s > meet_limit_s"
        " (A rank whose address is known may yet be out of reach.)"
    )


def test_limits_of_two_groups_are_held_against_each_other() -> None:
    with pytest.raises(ValueError, match=r"dispatch.lease_s > 3 \* worker.pull_s"):
        Timings(worker=WorkerTimings(pull_s=5.0))


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("nan"), float("inf")])
def test_a_limit_that_is_no_time_is_refused(seconds: float) -> None:
    with pytest.raises(ValueError, match=r"ConnectionTimings\.retry_s must be above 0"):
        ConnectionTimings(retry_s=seconds)
    with pytest.raises(ValueError, match=r"WeightsTimings\.rests_s must be above 0"):
        WeightsTimings(rests_s=(1.0, seconds))


def test_every_limit_names_its_unit() -> None:
    inner = [field.name for group in groups(Timings())[1:] for field in fields(group)]
    assert all(name.endswith("_s") for name in inner)
