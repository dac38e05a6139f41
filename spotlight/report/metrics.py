"""The figures of a run: what its record adds up to. Pure functions of a `RunRecord`.

Invariant: the seconds of a worker's states add up exactly to the worker's total, and those of a
pool's states to the pool's. For that, times are rounded to 1/1024 s: sums of such numbers are exact
in floating point, in any order.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from spotlight.report.formatting import natural_order
from spotlight.report.run_reading import Event, RunRecord, WorkerEvent, read_run

__all__ = [
    "STATES",
    "Gain",
    "Interval",
    "Lane",
    "Span",
    "coarsened",
    "exploration_gain",
    "iteration_spans",
    "lanes",
    "outcome",
    "read_run",
    "resumptions",
    "state_seconds",
    "summarise",
    "typical_iteration",
]

STATES = ("rollout", "explore", "train", "score", "evaluate", "idle", "loading", "starting")
"""What a worker can be doing, useful work first."""

_TICKS_PER_SECOND = 1024


class Interval(msgspec.Struct, frozen=True):
    """A worker's state over a span of run time, in seconds."""

    state: str
    start: float
    end: float


class Lane(msgspec.Struct, frozen=True):
    """All that one worker did; gaps are times when it was not there."""

    worker: str
    node: str
    pool: str
    intervals: tuple[Interval, ...]


class Span(msgspec.Struct, frozen=True):
    """One iteration from the start of its rollout to the end of its publication, in seconds."""

    iteration: int
    start: float
    end: float


class Gain(msgspec.Struct, frozen=True):
    """What the choice of seeds has brought, over all iterations with probes."""

    contrast: float
    """Root mean square over prompt groups of the standard deviation of the rewards of samples."""
    at_random: float
    """The same, to expect of as many seeds taken at random."""
    times: float
    """The one over the other."""
    error: float
    """Standard error of that, from iteration to iteration (jackknife)."""
    probes: int
    """From whose rewards `at_random` follows."""


def summarise(record: RunRecord) -> dict[str, Any]:
    """The main figures as JSON-able data; times in seconds, scores in [0, 1], absent ones None."""
    scores = [validation.score for validation in record.validations]
    rollout_s = sum(iteration.rollout_s or 0.0 for iteration in record.iterations)
    samples = sum(iteration.samples for iteration in record.iterations)
    made = samples - sum(iteration.samples_restored for iteration in record.iterations)
    scoring = [one.scoring_s for one in record.iterations if one.scoring_s is not None]
    workers = lanes(record)
    how, why = outcome(record)
    gain = exploration_gain(record)
    return {
        "job": record.job.name,
        "outcome": how,
        "reason": why,
        "iterations": len(record.iterations),
        "run_seconds": _on_tick(record.run_seconds),
        "validation_start": scores[0] if scores else None,
        "validation_end": scores[-1] if scores else None,
        "validation_best": max(scores, default=None),
        "reward_start": _reward(record, 0),
        "reward_end": _reward(record, -1),
        "samples": samples,
        "images_per_s": made / rollout_s if rollout_s > 0 else None,
        "scoring_s": sum(scoring) if scoring else None,
        "previews": sum(iteration.previews for iteration in record.iterations),
        "previews_late": sum(iteration.previews_late for iteration in record.iterations),
        "exploration_gain": msgspec.to_builtins(gain) if gain else None,
        "requests_reissued": requests_reissued(record),
        "nodes_lost": len(record.events_named("node_lost")),
        "groups_dropped": len(record.events_named("group_dropped")),
        "resumptions": len(resumptions(record)),
        "pools": {
            pool: _times([lane for lane in workers if lane.pool == pool])
            for pool in dict.fromkeys(lane.pool for lane in workers)
        },
        "workers": {
            lane.worker: {"pool": lane.pool, "node": lane.node, **_times([lane])}
            for lane in workers
        },
    }


def _reward(record: RunRecord, index: int) -> float | None:
    return record.iterations[index].reward_mean if record.iterations else None


def _times(workers: Iterable[Lane]) -> dict[str, Any]:
    seconds = state_seconds(workers)
    total = sum(seconds.values())
    share = {state: value / total if total else 0.0 for state, value in seconds.items()}
    return {"seconds": total, "states": seconds, "share": share}


def exploration_gain(record: RunRecord) -> Gain | None:
    """None before three iterations have had probes whose rewards differ."""
    told = [
        (one.contrast**2, one.contrast_at_random**2)
        for one in record.iterations
        if one.contrast is not None and one.contrast_at_random is not None
    ]
    if sum(other > 0 for _, other in told) < 3:
        return None
    kept, others = sum(one for one, _ in told), sum(other for _, other in told)
    without_one = [math.sqrt(max(0.0, kept - one) / (others - other)) for one, other in told]
    return Gain(
        contrast=math.sqrt(kept / len(told)),
        at_random=math.sqrt(others / len(told)),
        times=math.sqrt(kept / others),
        error=math.sqrt((len(told) - 1) * statistics.pvariance(without_one)),
        probes=sum(one.probes for one in record.iterations),
    )


def requests_reissued(record: RunRecord) -> int:
    """Requests that were given out again because their worker was lost or too slow."""
    return sum(event.reissued for event in record.events)


def outcome(record: RunRecord) -> tuple[str, str]:
    """(finished, cancelled, failed or unfinished; the reason) as of the last start of the run."""
    marks = record.events_named("run_started", "run_finished")
    if not marks or marks[-1].name == "run_started":
        return "unfinished", ""
    fields = marks[-1].fields
    return str(fields.get("outcome") or "finished"), str(fields.get("reason") or "")


def resumptions(record: RunRecord) -> tuple[Event, ...]:
    """The starts of the run after the first one."""
    return record.events_named("run_started")[1:]


def lanes(record: RunRecord) -> tuple[Lane, ...]:
    """What each worker did, reserved pool first, then by name."""
    by_worker: dict[str, list[WorkerEvent]] = {}
    for event in record.worker_events:
        by_worker.setdefault(event.worker, []).append(event)
    built = [
        Lane(
            worker=worker,
            node=_last(event.node for event in events),
            pool=_last(event.pool for event in events),
            intervals=tuple(_intervals(events, _ends(record, events), record.run_seconds)),
        )
        for worker, events in by_worker.items()
    ]
    return tuple(
        sorted(
            built, key=lambda lane: (lane.pool != "reserved", lane.pool, natural_order(lane.worker))
        )
    )


def _last(values: Iterable[str]) -> str:
    """The last value that says something."""
    return ([""] + [value for value in values if value])[-1]


def _ends(record: RunRecord, events: Sequence[WorkerEvent]) -> list[float]:
    """When the worker was certainly gone, whatever it said last: lost, or left by a dead run."""
    worker, nodes = events[0].worker, {event.node for event in events}
    lost = (
        event.time_s
        for event in record.events_named("worker_lost", "node_lost")
        if event.fields.get("worker") == worker
        or (event.name == "node_lost" and event.fields.get("node") in nodes)
    )
    return sorted([*lost, *(event.time_s for event in resumptions(record))])


def _intervals(
    events: Sequence[WorkerEvent], ends: Sequence[float], run_end: float
) -> Iterable[Interval]:
    """The states of one worker; neighbours with the same state become one interval."""
    merged: list[Interval] = []
    following = [*(event.time_s for event in events[1:]), run_end]
    for event, next_s in zip(events, following, strict=True):
        if event.state == "gone":
            continue
        gone = next((end for end in ends if event.time_s < end < next_s), next_s)
        start, end = _on_tick(event.time_s), _on_tick(gone)
        if end <= start:
            continue
        if merged and merged[-1].state == event.state and merged[-1].end == start:
            start = merged.pop().start
        merged.append(Interval(event.state, start, end))
    return merged


def _on_tick(seconds: float) -> float:
    return round(seconds * _TICKS_PER_SECOND) / _TICKS_PER_SECOND


def state_seconds(workers: Iterable[Lane]) -> dict[str, float]:
    """Seconds in each of `STATES`, summed over workers."""
    seconds = dict.fromkeys(STATES, 0.0)
    for lane in workers:
        for interval in lane.intervals:
            seconds[interval.state] += interval.end - interval.start
    return seconds


def coarsened(intervals: Sequence[Interval], bins: int) -> tuple[Interval, ...]:
    """At most `bins` intervals over the same time, each with the state that fills most of it.

    For drawing only: what is shorter than a pixel would not be seen.
    """
    if len(intervals) <= bins:
        return tuple(intervals)
    start, end = intervals[0].start, intervals[-1].end
    width = (end - start) / bins
    seconds: list[dict[str, float]] = [{} for _ in range(bins)]
    for interval in intervals:
        first = min(bins - 1, int((interval.start - start) / width))
        last = min(bins - 1, int((interval.end - start) / width))
        for index in range(first, last + 1):
            left = max(interval.start, start + index * width)
            right = min(interval.end, start + (index + 1) * width)
            share = seconds[index]
            share[interval.state] = share.get(interval.state, 0.0) + max(0.0, right - left)
    return tuple(
        Interval(
            max(share, key=share.__getitem__), start + index * width, start + (index + 1) * width
        )
        for index, share in enumerate(seconds)
        if share and sum(share.values()) > width / 2
    )


def iteration_spans(record: RunRecord) -> tuple[Span, ...]:
    """The iterations that were run without a break, from the job's phases."""
    spans: dict[int, Span] = {}
    breaks = [event.time_s for event in resumptions(record)]
    start: float | None = None
    iteration = 0
    for phase in record.phases:
        if start is not None and phase.phase not in ("train", "publish", "explore"):
            if not any(start < moment <= phase.time_s for moment in breaks):
                spans[iteration] = Span(iteration, start, phase.time_s)
            start = None
        if phase.phase == "rollout":
            start, iteration = phase.time_s, phase.iteration
    return tuple(spans[key] for key in sorted(spans))


def typical_iteration(record: RunRecord) -> Span | None:
    """The iteration of median length; the later one of two. None before the first one is over.

    The first iteration counts only while it is the only one: nothing was explored for it.
    """
    spans = iteration_spans(record)
    spans = spans[1:] or spans
    if not spans:
        return None
    median = statistics.median_high(span.end - span.start for span in spans)
    return next(span for span in reversed(spans) if span.end - span.start == median)
