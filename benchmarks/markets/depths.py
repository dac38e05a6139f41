"""The batch-level model against the real coordinator and nodes on the same schedules, and how fast
both go through a market."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from itertools import cycle, islice
from statistics import median
from typing import Any

import msgspec

from benchmarks.exploration.cases import PROFILES, SOL_RL_SPLIT
from benchmarks.markets.places import BAMBOO, PAPER
from spotlight.jobs import JobSpec, parse_job
from spotlight_simulation.market.batch_model import unrolled
from spotlight_simulation.market.command import JOB
from spotlight_simulation.market.outcome import Outcome
from spotlight_simulation.market.readers import read_trace
from spotlight_simulation.market.replay_by_model import replay_by_model
from spotlight_simulation.market.replay_with_actors import replay_with_actors
from spotlight_simulation.market.schedule import Schedule
from spotlight_simulation.profile import load_profile

SCHEDULES = 20
NODES = 6
"""Spot nodes of two GPUs, six of which beside four reserved ones are 16 members."""
MANY_NODES = 48
"""They make a hundred members with the four reserved ones."""
STRETCH_S = 1200.0
_MONTH_S = 30 * 86400.0


def depths(schedules: int, seconds: float) -> dict[str, Any]:
    """How far the model is from the coordinator, in iterations, money and previews for each sample:
    of each schedule the largest relative difference of the first two, and of these the median and
    the largest; and what must not happen, and did."""
    errors, previews, violations = [], [], 0
    for schedule in _schedules(schedules, seconds, NODES):
        deep, model = (
            _outcome(replay, schedule) for replay in (replay_with_actors, replay_by_model)
        )
        violations += len(deep.violations)
        errors.append(
            max(
                _difference(model.iterations, deep.iterations),
                _difference(model.money, deep.money),
            )
        )
        previews.append(_difference(model.previews_per_sample, deep.previews_per_sample))
    return {
        "schedules": schedules,
        "model_error": round(median(errors), 3),
        "model_error_worst": round(max(errors), 3),
        "model_error_previews": round(median(previews), 3),
        "violations": violations,
    }


def speeds(seconds: float) -> dict[str, Any]:
    """Months of a market in an hour of this machine, with a hundred members: by the model over a
    month, and with the real coordinator and nodes over so many seconds."""
    (schedule,) = _schedules(1, seconds, MANY_NODES)
    month = unrolled(schedule, start_s=0.0, seconds=_MONTH_S)
    return {
        "months_per_hour": round(_months_per_hour(replay_by_model, month), 1),
        "months_per_hour_with_actors": round(_months_per_hour(replay_with_actors, schedule), 3),
    }


def _months_per_hour(replay: Callable[..., Outcome], schedule: Schedule) -> float:
    began = time.perf_counter()
    hours = _outcome(replay, schedule).hours
    return hours * 3600 / _MONTH_S / ((time.perf_counter() - began) / 3600)


def _outcome(replay: Callable[..., Outcome], schedule: Schedule) -> Outcome:
    return replay(schedule, PAPER, load_profile(PROFILES[SOL_RL_SPLIT]), _job(schedule.pool))


def _job(nodes: int) -> JobSpec:
    job = parse_job(JOB.read_text())
    spot = msgspec.structs.replace(job.pools.spot, nodes=nodes)
    return msgspec.structs.replace(job, pools=msgspec.structs.replace(job.pools, spot=spot))


def _schedules(count: int, seconds: float, nodes: int) -> Iterator[Schedule]:
    """Stretches of the markets that were large enough, in turn, each from another moment on."""
    traces = [read_trace(f"bamboo/{name}.csv").without_holes() for name in BAMBOO]
    large = [trace for trace in traces if trace.places >= nodes]
    for number, trace in enumerate(islice(cycle(large), count)):
        yield trace.schedule(
            pool=nodes,
            generator=random.Random(number),
            start_s=(trace.seconds - seconds) * number / count,
            seconds=seconds,
        )


def _difference(ours: float, true: float) -> float:
    return abs(ours - true) / true if true else float(ours > 0)
