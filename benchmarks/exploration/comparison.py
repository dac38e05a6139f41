"""How many times as fast Spotlight reaches a score as its rivals do.

Pure. The levels are those of the reference of the same task, seed, profile and spot pool. What is
not there is None, and what is there of some seeds is of these seeds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import geometric_mean, median
from typing import Any

import msgspec

from benchmarks.exploration.cases import (
    OTHER_POOLS,
    REORDERED,
    SOL_RL_SPLIT,
    TUNED,
    TUNING_SEED,
    Case,
)
from benchmarks.exploration.kept_runs import Run
from benchmarks.exploration.ratios import Arrival, Estimate, arrival, estimate, speedup, spread
from benchmarks.exploration.rivals import MIXED_TASKS, OURS, REFERENCE, RIVALS, SPOT_GPUS
from benchmarks.exploration.testbed_runs import curve_of
from benchmarks.exploration.trials import TRIALS
from benchmarks.time_to_target import LEVELS, milestones

PLAIN = ("reserved", REFERENCE, "pipelined")
"""Rivals without exploration whose spot GPUs do not train."""

Runs = Mapping[Case, Run]
Arrivals = Mapping[Case, Mapping[int, Arrival]]
"""When runs arrive at the `LEVELS` of their references."""


def arrivals(runs: Runs) -> Arrivals:
    """Runs whose reference is missing, or learned nothing, are left out."""
    found: dict[Case, dict[int, Arrival]] = {}
    for case, run in runs.items():
        reference = runs.get(case.reference)
        levels = milestones(curve_of(reference)) if reference else {}
        if levels:
            curve = curve_of(run)
            found[case] = {level: arrival(curve, score) for level, score in levels.items()}
    return found


def compare(
    times: Arrivals, profiles: Iterable[str], tasks: Sequence[str], seeds: Sequence[int]
) -> dict[str, Any]:
    """All figures that are made of the time to a score; those of another profile than the first
    one bear its name in brackets."""
    figures: dict[str, Any] = {}
    for profile in profiles:
        within = [] if profile == SOL_RL_SPLIT else [profile]
        for name, estimates in headlines(times, profile, tasks, seeds).items():
            for task, one in estimates.items():
                where = [task] * bool(task) + within
                suffix = f"[{', '.join(where)}]" if where else ""
                figures[f"{name}{suffix}"] = one and one.value
                figures[f"{name}_low{suffix}"] = one and one.low
                figures[f"{name}_high{suffix}"] = one and one.high
        for task in tasks:
            suffix = f"[{', '.join([task, *within])}]"
            figures[f"speedup_on_the_way{suffix}"] = _on_the_way(times, profile, task, seeds)
            figures |= {
                f"{name}{suffix}": value
                for name, value in _seconds(times, profile, task, seeds).items()
            }
    return figures


def headlines(
    times: Arrivals, profile: str, tasks: Sequence[str], seeds: Sequence[int]
) -> dict[str, dict[str, Estimate | None]]:
    """Speed-ups to the target by name and task; under no task, of all tasks with alike prompts
    together."""
    alike = [task for task in tasks if task not in MIXED_TASKS]
    found: dict[str, dict[str, Estimate | None]] = {}

    def note(name: str, ratios: Mapping[str, list[float]]) -> None:
        by_task = {task: estimate({task: each}) for task, each in ratios.items()}
        found[name] = {**by_task, "": estimate({task: ratios[task] for task in alike})}

    for rival in RIVALS:
        if rival != OURS:
            name = f"speedup_vs_{rival.replace('-', '_')}"
            note(
                name, {task: _ratios(times, seeds, rival, task, profile=profile) for task in tasks}
            )
    best = {task: _of_best_plain(times, profile, task, seeds) for task in tasks}
    note("speedup_vs_best_plain", best)
    mixed = {task: _ratios(times, seeds, "uniform", task, profile=profile) for task in MIXED_TASKS}
    found["speedup_vs_uniform_mixed"] = {"": estimate(mixed)}
    return found


def order_noise(times: Arrivals, tasks: Iterable[str], seeds: Iterable[int]) -> dict[str, Any]:
    """The factor by which the times to the target differ of two runs of the same job and seed that
    train on their samples in another order."""
    found: dict[str, Any] = {}
    for task in tasks:
        for rival in REORDERED:
            ratios = []
            for seed in seeds:
                case = Case(task=task, rival=rival, seed=seed)
                other = msgspec.structs.replace(case, is_reordered=True)
                if case in times and other in times:
                    one, two = (times[each][LEVELS[-1]].seconds for each in (case, other))
                    ratios.append(two / one)
            found[f"order_noise[{task}, {rival}]"] = spread(ratios)
    return found


def by_spot_pool(times: Arrivals, tasks: Iterable[str], seeds: Sequence[int]) -> dict[str, Any]:
    """Speed-up over the reference with the same spot pool, by its GPUs."""
    return {
        f"speedup_by_spot_gpus[{task}]": {
            gpus: _data(estimate({task: _ratios(times, seeds, REFERENCE, task, spot_gpus=gpus)}))
            for gpus in sorted((SPOT_GPUS, *OTHER_POOLS))
        }
        for task in tasks
    }


def tuning(times: Arrivals, tasks: Iterable[str]) -> dict[str, Any]:
    """Seconds to the target by rival and trial; None for those that were ended, or are missing."""
    figures: dict[str, Any] = {}
    for task in tasks:
        by_rival: dict[str, dict[str, int | None]] = {}
        for rival in (REFERENCE, *TUNED):
            by_rival[rival] = {}
            for trial in ("", *TRIALS):
                case = Case(task=task, rival=rival, seed=TUNING_SEED, trial=trial)
                at = times[case][LEVELS[-1]] if case in times else None
                seconds = round(at.seconds) if at and at.arrived else None
                by_rival[rival][trial or "as it is"] = seconds
        figures[f"tuning[{task}]"] = by_rival
    return figures


def spot_time(runs: Runs, tasks: Sequence[str], seeds: Iterable[int]) -> dict[str, Any]:
    """What became of the spot workers' time, and of their previews; medians over seeds, and the
    worst task."""
    measures: dict[str, Callable[[Run], float]] = {
        "spot_idle_share": lambda totals: float(totals["spot_idle_share"]),
        "spot_idle_share_of_all_time": _idle_of_all_time,
        "previews_dropped_share": _dropped_share,
        "publication_delay_share": lambda totals: totals["delay_s"] / totals["virtual_s"],
    }
    figures: dict[str, Any] = {}
    for name, measure in measures.items():
        by_task = []
        for task in tasks:
            cases = [Case(task=task, rival=OURS, seed=seed) for seed in seeds]
            found = [measure(runs[case]["totals"]) for case in cases if case in runs]
            by_task.append(round(median(found), 4) if found else None)
            figures[f"{name}[{task}]"] = by_task[-1]
        known = [value for value in by_task if value is not None]
        figures[name] = max(known) if len(known) == len(tasks) else None
    return figures


def _on_the_way(
    times: Arrivals, profile: str, task: str, seeds: Sequence[int]
) -> dict[str, dict[str, Any]]:
    """By rival and level."""
    return {
        rival: {
            f"{level} %": _data(
                estimate({task: _ratios(times, seeds, rival, task, level, profile=profile)})
            )
            for level in LEVELS
        }
        for rival in RIVALS
        if rival != OURS
    }


def _seconds(times: Arrivals, profile: str, task: str, seeds: Sequence[int]) -> dict[str, Any]:
    """Of each rival the seconds to the target by seed, or until it ended, and how many runs never
    arrived."""
    seconds: dict[str, list[int | None]] = {}
    never: dict[str, int] = {}
    for rival in RIVALS:
        cases = [Case(task=task, rival=rival, seed=seed, profile=profile) for seed in seeds]
        at_target = [times[case][LEVELS[-1]] if case in times else None for case in cases]
        seconds[rival] = [round(one.seconds) if one else None for one in at_target]
        never[rival] = sum(not one.arrived for one in at_target if one)
    return {"seconds_to_target": seconds, "never_arrived": never}


def _of_best_plain(times: Arrivals, profile: str, task: str, seeds: Sequence[int]) -> list[float]:
    """Over the plain rival that is hardest to beat, in the seeds of which all of them are there."""
    whole = [
        seed
        for seed in seeds
        if all(_ratios(times, [seed], rival, task, profile=profile) for rival in PLAIN)
    ]
    each = [_ratios(times, whole, rival, task, profile=profile) for rival in PLAIN]
    return min(each, key=geometric_mean) if whole else []


def _ratios(
    times: Arrivals,
    seeds: Iterable[int],
    rival: str,
    task: str,
    level: int = LEVELS[-1],
    *,
    profile: str = SOL_RL_SPLIT,
    spot_gpus: int = SPOT_GPUS,
) -> list[float]:
    """One for each seed of which there are both runs."""
    found = []
    for seed in seeds:
        case = Case(task=task, rival=rival, seed=seed, profile=profile, spot_gpus=spot_gpus)
        ours = msgspec.structs.replace(case, rival=OURS)
        if ours in times and case in times:
            found.append(speedup(times[ours][level], times[case][level]))
    return found


def _data(one: Estimate | None) -> dict[str, Any] | None:
    return msgspec.to_builtins(one) if one else None


def _idle_of_all_time(totals: Run) -> float:
    """Of the spot workers, rollouts and publications included."""
    states = totals["pools"]["spot"]
    return float(states.get("idle", 0.0) / sum(states.values()))


def _dropped_share(totals: Run) -> float:
    """Of the previews that spot workers were given, those that no choice saw."""
    made = totals["previews"] + totals["previews_late"]
    return float(totals["previews_late"] / made) if made else 0.0
