"""The metrics of a run: what its history adds up to. Functions of a `RunHistory`."""

from __future__ import annotations

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
from spotlight.report.run_reading import RunHistory, read_run
from spotlight.report.run_view import ExplorationPart
from spotlight.report.verdict import exploration_of
from spotlight.report.worker_seconds import (
    WorkerSeconds,
    on_tick,
    resumptions,
    state_seconds,
    worker_seconds,
)

__all__ = [
    "outcome",
    "read_run",
    "summarise",
]


def summarise(run: RunHistory, workers: Sequence[WorkerSeconds] | None = None) -> dict[str, Any]:
    """The main metrics as JSON-able data; times in seconds, absent ones None.

    Args:
        workers: what each did, if that is known already.
    """
    scores = [validation.score for validation in run.validations]
    rollout_s = sum(iteration.rollout_s or 0.0 for iteration in run.iterations)
    samples = sum(iteration.samples for iteration in run.iterations)
    made = sum(iteration.rolled_out for iteration in run.iterations)
    workers = worker_seconds(run) if workers is None else workers
    how, why = outcome(run)
    pools = {
        pool: _times([worker for worker in workers if worker.pool == pool])
        for pool in dict.fromkeys(worker.pool for worker in workers)
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
            worker.worker: {"pool": worker.pool, "node": worker.node, **_times([worker])}
            for worker in workers
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


def _scoring_s(run: RunHistory, workers: Iterable[WorkerSeconds]) -> float:
    """Of all workers. States tell of it as far as they are on disk, and iterations up to the last
    one."""
    told = sum(worker.scoring_s for worker in workers)
    return max(told, sum(iteration.scoring_s or 0.0 for iteration in run.iterations))


def _times(workers: Sequence[WorkerSeconds]) -> dict[str, Any]:
    seconds = state_seconds(workers)
    total = sum(seconds.values())
    share = {state: value / total if total else 0.0 for state, value in seconds.items()}
    scoring_s = sum(worker.scoring_s for worker in workers)
    seen_s = sum(worker.seen_s for worker in workers)
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
