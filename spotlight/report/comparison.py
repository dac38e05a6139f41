"""What several runs came to, side by side. Runs that differ in their seed alone are one variant,
whose figures are means with intervals.

An interval is Student's 95 % confidence interval of the mean over seeds; there is none for a single
run. Pure.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from spotlight.jobs import JobSpec
from spotlight.report.intervals import student_t95
from spotlight.report.run_reading import RunHistory

_NO_DIFFERENCE = ("name", "seed", "pools", "trackers", "prices", "budget")
"""Sections and fields that say nothing of what a run trains."""


class Estimate(msgspec.Struct, frozen=True):
    """The mean of some runs."""

    mean: float
    runs: int
    margin: float | None
    """How far the interval reaches to either side; None for a single run."""


class Point(msgspec.Struct, frozen=True):
    """A point of a curve."""

    iteration: int
    value: Estimate


class Variant(msgspec.Struct, frozen=True):
    """Runs that differ in their seed alone."""

    label: str
    """What it sets otherwise than the others, such as `training.learning_rate=0.0001`."""
    runs: tuple[str, ...]
    """The folders of these runs."""
    seeds: tuple[int, ...]
    iterations: int
    """How many the run with the fewest has done."""
    seconds: Estimate | None
    """How long they ran, in seconds of run time."""
    reward: tuple[Point, ...]
    """Mean reward of the samples of each iteration."""
    validation: tuple[Point, ...]
    """The validation score after so many iterations."""
    best: Estimate | None
    """The highest validation score of each run."""


def compare(runs: Sequence[RunHistory]) -> tuple[Variant, ...]:
    """The variants among runs, in the order of the first run of each."""
    groups: dict[bytes, list[RunHistory]] = defaultdict(list)
    for run in runs:
        groups[msgspec.json.encode(_settings(run.job))].append(run)
    told = [_flat(_settings(group[0].job)) for group in groups.values()]
    labels = _labels(told, [group[0].job.name for group in groups.values()])
    return tuple(
        _variant(label, group) for label, group in zip(labels, groups.values(), strict=True)
    )


def estimate(values: Sequence[float]) -> Estimate | None:
    """The mean of values with its interval; None of none."""
    if not values:
        return None
    mean = statistics.fmean(values)
    if len(values) == 1:
        return Estimate(mean, 1, None)
    error = statistics.stdev(values) / math.sqrt(len(values))
    return Estimate(mean, len(values), student_t95(len(values) - 1) * error)


def spaced(iterations: Sequence[int], most: int) -> list[int]:
    """At most so many of these iterations, evenly apart, the first and the last among them."""
    if len(iterations) <= most:
        return list(iterations)
    step = (len(iterations) - 1) / (most - 1)
    return [iterations[round(step * index)] for index in range(most)]


def _variant(label: str, runs: Sequence[RunHistory]) -> Variant:
    reward = [
        {one.iteration: one.reward_mean for one in run.iterations if one.reward_mean is not None}
        for run in runs
    ]
    scores = [{one.iteration: one.score for one in run.validations} for run in runs]
    return Variant(
        label,
        tuple(str(run.folder) for run in runs),
        tuple(run.job.seed for run in runs),
        min(len(run.iterations) for run in runs),
        estimate([run.run_seconds for run in runs]),
        _curve(reward),
        _curve(scores),
        estimate([max(one.values()) for one in scores if one]),
    )


def _curve(runs: Sequence[Mapping[int, float]]) -> tuple[Point, ...]:
    """Each iteration that all runs have: a mean over fewer of them would jump where one ends."""
    shared = set.intersection(*(set(run) for run in runs))
    found = ((iteration, estimate([run[iteration] for run in runs])) for iteration in shared)
    return tuple(Point(iteration, value) for iteration, value in sorted(found) if value)


def _settings(job: JobSpec) -> dict[str, Any]:
    """What a job says of what it trains."""
    said: dict[str, Any] = msgspec.to_builtins(job)
    return {name: value for name, value in said.items() if name not in _NO_DIFFERENCE}


def _flat(value: Any, path: str = "") -> dict[str, Any]:
    """Every field by its path; lists are values."""
    if not isinstance(value, Mapping):
        return {path: value}
    found: dict[str, Any] = {}
    for name, inner in value.items():
        found |= _flat(inner, f"{path}.{name}" if path else str(name))
    return found


def _labels(told: Sequence[Mapping[str, Any]], names: Iterable[str]) -> list[str]:
    """The fields in which variants differ; the name of the job where there is only one variant."""
    paths = list(dict.fromkeys(path for one in told for path in one))
    differ = [path for path in paths if len({repr(one.get(path)) for one in told}) > 1]
    labels = [", ".join(f"{path}={_short(one.get(path))}" for path in differ) for one in told]
    return [label or name for label, name in zip(labels, names, strict=True)]


def _short(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
