"""The metrics of a run: what its history adds up to. Functions of a `RunHistory`."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any

import msgspec

from spotlight.policies.money.bill import account, by_state
from spotlight.record.run_events import (
    GroupDropped,
    ModelExported,
    NodeLost,
    RunFinished,
    RunStarted,
    SegmentBegan,
    WorkerLost,
    WorkTakenBack,
)
from spotlight.report.lanes import Lane, lanes, on_tick, resumptions, state_seconds
from spotlight.report.run_reading import RunHistory, read_run
from spotlight.report.run_view import ExplorationPart
from spotlight.report.verdict import exploration_of

__all__ = [
    "Span",
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


def summarise(run: RunHistory, workers: Sequence[Lane] | None = None) -> dict[str, Any]:
    """The main metrics as JSON-able data; times in seconds, absent ones None.

    Args:
        workers: what each did, if that is known already.
    """
    scores = [validation.score for validation in run.validations]
    rollout_s = sum(iteration.rollout_s or 0.0 for iteration in run.iterations)
    samples = sum(iteration.samples for iteration in run.iterations)
    made = sum(iteration.rolled_out for iteration in run.iterations)
    workers = lanes(run) if workers is None else workers
    how, why = outcome(run)
    pools = {
        pool: _times([lane for lane in workers if lane.pool == pool])
        for pool in dict.fromkeys(lane.pool for lane in workers)
    }
    exploration = _exploration(run, pools["spot"]["states"] if "spot" in pools else {})
    return {
        "job": run.job.name,
        "outcome": how,
        "reason": why,
        "iterations": len(run.iterations),
        "run_seconds": on_tick(run.run_seconds),
        "validation_start": scores[0] if scores else None,
        "validation_end": scores[-1] if scores else None,
        "validation_best": max(scores, default=None),
        "exported": _exported(run),
        "reward_start": _reward(run, 0),
        "reward_end": _reward(run, -1),
        "rewards": _each_reward(run),
        "samples": samples,
        "samples_reused": sum(iteration.samples_reused for iteration in run.iterations),
        "images_per_s": made / rollout_s if rollout_s > 0 else None,
        "scoring_s": _scoring_s(run, workers) or None,
        "previews": sum(iteration.previews for iteration in run.iterations),
        "previews_late": sum(iteration.previews_late for iteration in run.iterations),
        "exploration": msgspec.to_builtins(exploration),
        "requests_handed_on": requests_handed_on(run),
        "nodes_lost": len(run.events_of(NodeLost)),
        "groups_dropped": len(run.events_of(GroupDropped)),
        "resumptions": len(resumptions(run)),
        "segments": [
            {
                "number": each.number,
                "iteration": each.iteration,
                "changes": list(each.changes),
                "version": each.version,
                "source": each.source,
            }
            for each in run.events_of(SegmentBegan)
        ],
        "pools": pools,
        "workers": {
            lane.worker: {"pool": lane.pool, "node": lane.node, **_times([lane])}
            for lane in workers
        },
    }


def _exploration(run: RunHistory, spot_s: Mapping[str, float]) -> ExplorationPart:
    """Whether it paid. What it took is told by the ledger, where there is one."""
    bills = [bill for bill in run.ledger.bills if bill.pool == "spot"]
    if bills:
        times = by_state(chain.from_iterable(bill.times.values() for bill in bills))
        spot_s = {state: ms / 1000 for state, ms in times.items()}
    usd = account(bills).paid_for("spot", "explore")
    return exploration_of(run.job, run.iterations, spot_s, None if usd is None else float(usd))


def _exported(run: RunHistory) -> dict[str, Any] | None:
    """The weights in the folder `export`."""
    events = run.events_of(ModelExported)
    return {"iteration": events[-1].iteration, "score": events[-1].score} if events else None


def _reward(run: RunHistory, index: int) -> float | None:
    return run.iterations[index].reward_mean if run.iterations else None


def _each_reward(run: RunHistory) -> dict[str, dict[str, Any]]:
    """First and last validation of each reward, where there are several."""
    rewards = run.job.measured_rewards
    return {
        reward.name: {
            "is_trained": reward in run.job.rewards,
            "validation_start": means[0] if means else None,
            "validation_end": means[-1] if means else None,
        }
        for reward in rewards
        for means in [[v.rewards[reward.name] for v in run.validations if reward.name in v.rewards]]
        if len(rewards) > 1
    }


def _scoring_s(run: RunHistory, workers: Iterable[Lane]) -> float:
    """Of all workers. States tell of it as far as they are on disk, and iterations up to the last
    one."""
    told = sum(lane.scoring_s for lane in workers)
    return max(told, sum(iteration.scoring_s or 0.0 for iteration in run.iterations))


def _times(workers: Sequence[Lane]) -> dict[str, Any]:
    seconds = state_seconds(workers)
    total = sum(seconds.values())
    share = {state: value / total if total else 0.0 for state, value in seconds.items()}
    scoring_s = sum(lane.scoring_s for lane in workers)
    seen_s = sum(lane.seen_s for lane in workers)
    return {
        "seconds": total,
        "states": seconds,
        "share": share,
        "scoring_s": scoring_s,
        "scoring_share": scoring_s / seen_s if seen_s else 0.0,
    }


def requests_handed_on(run: RunHistory) -> int:
    """Requests that went to another worker, since the first was lost or did not say in time that it
    still worked on them."""
    lost = sum(sum(event.requests_handed_on.values()) for event in run.events_of(WorkerLost))
    return lost + sum(event.items for event in run.events_of(WorkTakenBack))


def outcome(run: RunHistory) -> tuple[str, str]:
    """(finished, cancelled, failed or unfinished; the reason) as of the last start of the run."""
    for event in reversed(run.events):
        if isinstance(event, RunFinished):
            return event.outcome, event.reason
        if isinstance(event, RunStarted):
            break
    return "unfinished", ""


def iteration_spans(run: RunHistory) -> tuple[Span, ...]:
    """The iterations that were run without a break, from the job's phases."""
    spans: dict[int, Span] = {}
    breaks = [event.time_s for event in resumptions(run)]
    start: float | None = None
    iteration = 0
    for phase in run.phases:
        if start is not None and phase.phase not in ("train", "publish", "explore"):
            if not any(start < moment <= phase.time_s for moment in breaks):
                spans[iteration] = Span(iteration, start, phase.time_s)
            start = None
        if phase.phase == "rollout":
            start, iteration = phase.time_s, phase.iteration
    return tuple(spans[key] for key in sorted(spans))


def typical_iteration(run: RunHistory) -> Span | None:
    """The iteration of median length; the later one of two. None before the first one is over.

    The first iteration counts only while it is the only one: nothing was explored for it.
    """
    spans = iteration_spans(run)
    spans = spans[1:] or spans
    if not spans:
        return None
    median = statistics.median_high(span.end - span.start for span in spans)
    return next(span for span in reversed(spans) if span.end - span.start == median)
