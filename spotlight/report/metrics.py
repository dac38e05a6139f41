"""The figures of a run: what its record adds up to. Functions of a `RunRecord`."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from spotlight.report.lanes import Lane, lanes, on_tick, resumptions, state_seconds
from spotlight.report.run_reading import RunRecord, read_run

__all__ = [
    "Gain",
    "Span",
    "exploration_gain",
    "iteration_spans",
    "outcome",
    "read_run",
    "summarise",
    "typical_iteration",
]


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


def summarise(record: RunRecord, workers: Sequence[Lane] | None = None) -> dict[str, Any]:
    """The main figures as JSON-able data; times in seconds, scores in [0, 1], absent ones None.

    Args:
        workers: what each did, if that is known already.
    """
    scores = [validation.score for validation in record.validations]
    rollout_s = sum(iteration.rollout_s or 0.0 for iteration in record.iterations)
    samples = sum(iteration.samples for iteration in record.iterations)
    made = samples - sum(iteration.samples_restored for iteration in record.iterations)
    scoring = [one.scoring_s for one in record.iterations if one.scoring_s is not None]
    workers = lanes(record) if workers is None else workers
    how, why = outcome(record)
    gain = exploration_gain(record)
    return {
        "job": record.job.name,
        "outcome": how,
        "reason": why,
        "iterations": len(record.iterations),
        "run_seconds": on_tick(record.run_seconds),
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
