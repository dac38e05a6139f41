"""What it costs that an SP group loses members: `python -m benchmarks.regroup --json`.

A real node with four worker processes denoises the tiny model in SP groups (gloo) under a real
dispatcher; more requests wait than can be done. Members are killed (SIGKILL) or stopped (SIGSTOP)
in the middle of a step, whatever their rank. A time runs from the signal to the first step that the
new group completes, on CLOCK_MONOTONIC, which all processes share. It is taken apart: until the
node knows (`detect`), until rank 0 of the new group can denoise (`regroup`, with `meet` for
connecting), the copying of `weights`, and the rest with the step itself (`first_step`); `held_up`
is how long the loop of the node and the dispatcher did not turn at a stretch meanwhile.

- `kill_to_first_step_ms_*`: the worst of the cases 2->1, 4->3 (groups of 2 and 1), 4->2 (two are
  killed) and 3->4 (a killed worker is back: from the node's knowing that it is ready).
- `stop_to_first_step_ms_*`: of a member that hangs; `hang_bound_ms` is how long the node may take
  to suspect it: the rest of a pause, and three questions. One that was alone may have been asked
  just before its group formed, and a pause is longer then (`hang_bound_after_alone_ms`).
- `cold_over_warm`: starting four processes, loading, forming the group and the first step, over
  the median of the worst case.
- `events` at random, see `benchmarks.regroup_events`: `leaks` counts processes, threads, listening
  sockets and shared memory that are left, in this process after all is closed and in workers.
- `weights_vs_memcpy` is that of `benchmarks.weights`; `sp_max_relative_difference` that of
  `benchmarks.regroup_exactness`.
"""

from __future__ import annotations

import logging
import os
import random
import statistics
import tempfile
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path

import msgspec
import torch

from benchmarks import regroup_exactness, weights
from benchmarks.preemption_site import EXAMPLE, opened
from benchmarks.regroup_events import (
    LEAVE_S,
    QUICK_LEAVE_S,
    Belongings,
    Events,
    belongings,
    shared_memory,
    survivors,
)
from benchmarks.regroup_kills import Regrouping, Trials, measure
from benchmarks.regroup_site import WORKERS, GroupSite
from benchmarks.report import Figure, Report, quantile
from spotlight.actors.coordinator.tenant.request_plans import rollout_settings
from spotlight.actors.node import liveness
from spotlight.actors.runtime.logs import log_as_json_lines
from spotlight.actors.runtime.loop import run
from spotlight.diffusion.checkpoints import load_model
from spotlight.jobs import load_job
from spotlight.timings import NodeTimings

STEPS, QUICK_STEPS = 240, 48
MICRO_BATCH = 4
"""The micro-batch of the tiny model: a step takes little, so that what is measured is the rest."""
CASES = ("2->1", "4->3", "4->2", "3->4")
FINISH_LIMIT_S = 300.0


async def _measure(report: Report, steps: int, events: int, leave_s: int) -> None:
    job = load_job(EXAMPLE)
    sampler = msgspec.structs.replace(job.sampler, micro_batch=MICRO_BATCH)
    job = msgspec.structs.replace(job, sampler=sampler)
    model = load_model(job.model)
    settings = msgspec.structs.replace(rollout_settings(job, 0), steps=steps)

    def site(folder: str) -> GroupSite:
        return GroupSite(Path(folder), settings)

    with tempfile.TemporaryDirectory() as folder:
        async with opened(site(folder), job, model, 1) as at:
            cold_s = await _cold_s(at)
            trials = Trials(at, random.Random(1), report)
            await measure(trials, report.times(20, quick=1), report.times(16, quick=1))
            await at.finish(FINISH_LIMIT_S)
    report.add(_regroupings(trials))
    before, segments = belongings(os.getpid()), shared_memory()
    with tempfile.TemporaryDirectory() as folder:
        async with opened(site(folder), job, model, 1) as at:
            cold_s = min(cold_s, await _cold_s(at))
            storm = Events(at, random.Random(2))
            report.note(f"{events} random events")
            await storm.run(events // 2, kills=True)
            await storm.run(events // 4, kills=False)
            before_last = await survivors(at, leave_s)
            await storm.run(events - storm.counts.total(), kills=False)
            end = await survivors(at, leave_s)
            await at.finish(FINISH_LIMIT_S)
    worst = max(_median(trials.seen[case]) for case in CASES)
    report.add({"cold_s": cold_s, "cold_over_warm": 1000 * cold_s / worst})
    report.add(_storm(storm, at))
    left = shared_memory() - segments
    report.add(_leaks(before_last, end, before, belongings(os.getpid()), left))


async def _cold_s(at: GroupSite) -> float:
    step = await at.first_step(WORKERS)
    return float(step["t"]) - at.began


def _median(seen: Sequence[Regrouping]) -> float:
    return statistics.median(it.total for it in seen)


def _p99(seen: Sequence[Regrouping]) -> float:
    return quantile([it.total for it in seen], 0.99)


def _regroupings(trials: Trials) -> dict[str, Figure]:
    seen = trials.seen
    timings = NodeTimings()
    grouped = liveness.SUSPECT_ASKS * timings.ask_grouped_s
    figures: dict[str, Figure] = {
        "kill_to_first_step_ms_median": max(_median(seen[case]) for case in CASES),
        "kill_to_first_step_ms_p99": max(_p99(seen[case]) for case in CASES),
        "stop_to_first_step_ms_median": _median(seen["stop"]),
        "stop_to_first_step_ms_p99": _p99(seen["stop"]),
        "hang_bound_ms": 1000 * (grouped + timings.ask_grouped_s),
        "hang_bound_after_alone_ms": 1000 * (grouped + timings.ask_alone_s),
    }
    for members, steps in sorted(trials.step_s.items()):
        figures[f"step_ms_of_{members}"] = 1000 * statistics.median(steps)
    for case, several in seen.items():
        name = case.replace("->", "_to_")
        figures[f"{name}_count"] = len(several)
        figures[f"{name}_p99_ms"] = _p99(several)
        for part in fields(Regrouping):
            values = [getattr(it, part.name) for it in several]
            figures[f"{name}_{part.name}_ms"] = statistics.median(values)
        slowest = max(several, key=lambda it: it.total)
        figures[f"{name}_slowest"] = str({k: round(v, 1) for k, v in vars(slowest).items()})
    met = [it for several in seen.values() for it in several if it.meet]
    figures["meet_share_of_regroup"] = statistics.median(it.meet / it.regroup for it in met)
    figures["meet_share_of_total"] = statistics.median(
        it.meet / (it.total - it.detect) for it in met
    )
    return figures


def _storm(storm: Events, at: GroupSite) -> dict[str, Figure]:
    return {
        "events": storm.counts.total(),
        **{f"events_{kind}": count for kind, count in sorted(storm.counts.items())},
        "longest_standstill_s": storm.longest_standstill_s,
        "groups_planned": at.epoch,
        "requests": len(at.submitted),
        "requests_lost": len(at.submitted) - len(at.finished),
        "counted_twice": sum(count > 1 for count in at.finished.values()),
        "requests_given_up": len(at.given_up),
    }


def _leaks(
    before_last: Sequence[Belongings],
    end: Sequence[Belongings],
    before: Belongings,
    after: Belongings,
    segments: set[str],
) -> dict[str, Figure]:
    """What this process has more than before, and workers than any of them had before the last
    quarter of the events.
    """
    figures: dict[str, Figure] = {"leaked_segments": len(segments)}
    for kind in Belongings._fields:
        most = max(getattr(worker, kind) for worker in before_last)
        grown = (max(0, getattr(worker, kind) - most) for worker in end)
        figures[f"leaked_{kind}"] = max(0, getattr(after, kind) - getattr(before, kind))
        figures[f"leaked_{kind}_of_workers"] = sum(grown)
    return {"leaks": sum(int(count) for count in figures.values()), **figures}


def main() -> None:
    """Print the figures."""
    report = Report("regroup", __doc__, minutes=60)
    report.options.add_argument(
        "--events", type=int, default=1000, help="random ones (default: 1000)"
    )
    options = report.begin()
    torch.set_num_threads(1)
    log_as_json_lines(logging.ERROR)
    report.add(regroup_exactness.measure(quick=options.quick))
    layers, rounds = (4, 3) if options.quick else (32, 21)
    copied = run(weights.measure(layers, rounds))
    report.add({"weights_vs_memcpy": copied["weights_vs_memcpy"]})
    steps, leave_s = (QUICK_STEPS, QUICK_LEAVE_S) if options.quick else (STEPS, LEAVE_S)
    run(_measure(report, steps, report.times(options.events, quick=8), leave_s))
    report.finish()


if __name__ == "__main__":
    main()
