"""The ladder of rivals: all of them on every split and spot pool, timed by the formulas of `clocks`
from runs that were made once.

Pure. It has the rivals that no simulated cluster runs: all GPUs train and choose, with the newest
weights or with those before, and Spotlight whose spot GPUs compute gradients as well. Those who
choose take the number of previews for each sample that is best by the contrast it brings on tables
of rewards over the time of an iteration, of the numbers that there are runs of, each for itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import fmean, geometric_mean
from typing import Any

import msgspec

from benchmarks.exploration.cases import Case
from benchmarks.exploration.clocks import (
    Clock,
    Fleet,
    Work,
    beside,
    by_pull,
    elastic,
    in_one_group,
    in_turn,
    in_turn_with_previous_weights,
    on_slower_link,
    spot_waits,
    work_of,
)
from benchmarks.exploration.costs import RESERVED_DOLLARS, SPOT_DISCOUNT
from benchmarks.exploration.kept_runs import Run
from benchmarks.exploration.ratios import Arrival, arrival, estimate, speedup, student_margin
from benchmarks.exploration.rivals import (
    LADDER_TASKS,
    LONG,
    LONG_STEPS,
    OURS,
    REFERENCE,
    RESERVED_GPUS,
    example_of,
)
from benchmarks.exploration.settings import OCR
from benchmarks.exploration.simulated_clocks import Split
from benchmarks.exploration.testbed_runs import curve_of
from benchmarks.time_to_target import LEVELS, Curve, milestones, score_at, smoothed
from spotlight_simulation.profile import Profile

SPOT_POOLS = (8, 16)
"""Two and four spot GPUs for each reserved one."""
SHARES = (0.125, 0.25, 0.5)
"""Scores are compared after these shares of the time, and for these shares of the dollars, that the
reserved GPUs alone need to the target."""

WORTH = {2: 1.93, 4: 2.94}
"""The contrast of the best of so many previews for each sample over that of random ones: means of
the tables `ocr-start` and `ocr-iteration-22`, four kept. Only where there are runs of several
numbers is there anything to decide."""

Cases = Mapping[int, Case]
"""Runs by their previews for each sample, roughly; their seeds are to be replaced."""


class Rung(msgspec.Struct, frozen=True):
    """A rival: whose samples it trains on, and how long an iteration takes it."""

    title: str
    cases: Callable[[str], Cases]
    """The runs of a task; none: there are none."""
    clock: Clock
    on_spot: bool = False
    """All of its GPUs are spot ones."""
    on_reserved: bool = False
    """All of its GPUs are reserved ones."""
    is_simulated: bool = False
    """The time of an iteration is that of a simulated cluster, and not of the clock."""
    is_alone: bool = False
    """It has no GPUs besides the four reserved ones."""

    def fleet(self, spot: int) -> Fleet:
        """Its GPUs, where others have so many spot ones."""
        if self.is_alone:
            return Fleet(RESERVED_GPUS, 0)
        if self.on_spot:
            return Fleet(0, RESERVED_GPUS + spot)
        return Fleet(RESERVED_GPUS + spot, 0) if self.on_reserved else Fleet(RESERVED_GPUS, spot)


def _of(rival: str, **fields: Any) -> Callable[[str], Cases]:
    """A rival's own runs."""
    return lambda task: {0: Case(task=task, rival=rival, seed=0, **fields)}


def _all_train(task: str) -> Cases:
    """On the tasks of the ladder alone, all that train on what they denoise share one run."""
    return _of(REFERENCE if task in LADDER_TASKS else "data-parallel")(task)


def _not_chosen(task: str) -> Cases:
    """What the reserved GPUs train on, which is better than what sets the targets."""
    if task in LADDER_TASKS or task == "ocr-mixed":
        return _all_train(task)
    return _of("reserved")(task)


def _tried_for_pipelined(trial: str) -> Callable[[str], Cases]:
    """Where four steps of second order, which most rivals have, are not best."""
    return lambda task: _of("pipelined", trial=trial)(task) if task == OCR else {}


def _fresh(task: str) -> Cases:
    return {4: Case(task=task, rival="inline", seed=0)}


def _chosen(task: str) -> Cases:
    if task in LADDER_TASKS:
        return {
            previews: Case(task=task, rival=OURS, seed=0, previews=previews)
            for previews in ((2, 4) if task == LONG else (4,))
        }
    ours = Case(task=task, rival=OURS, seed=0)
    if example_of(task) != OCR:
        return {3: ours}
    return {2: msgspec.structs.replace(ours, profile="even-split"), 4: ours}


def _cheap(task: str) -> Cases:
    """Where samples have so many steps that a preview may have a quarter of them."""
    if task != LONG:
        return {}
    return {4: Case(task=task, rival=OURS, seed=0, previews=4, cheap_steps=LONG_STEPS // 4)}


OURS_NOW, OURS_TRAINING = "spotlight", "spotlight-that-trains"
LADDER: dict[str, Rung] = {
    "reserved": Rung("the reserved GPUs alone", _not_chosen, in_turn, is_alone=True),
    "rollouts": Rung("reserved GPUs with spot rollouts", _not_chosen, spot_waits),
    "pipelined": Rung("spot rollouts, one step behind", _of("pipelined"), by_pull(beside)),
    "pipelined-eight-euler-steps": Rung(
        "the same, eight Euler steps", _tried_for_pipelined("other-sampler"), by_pull(beside)
    ),
    "pipelined-eight-euler-steps-lower-rate": Rung(
        "eight Euler steps, the rate divided by 1.5",
        _tried_for_pipelined("other-sampler-and-lower-rate"),
        by_pull(beside),
    ),
    "data-parallel": Rung("all train", _all_train, in_turn, on_reserved=True),
    "data-parallel-on-spot": Rung(
        "all train, on spot", _all_train, in_one_group(in_turn), on_spot=True
    ),
    "data-parallel-higher-rate": Rung(
        "all train, 1.5 times the rate",
        _of("data-parallel", trial="higher-rate"),
        in_turn,
        on_reserved=True,
    ),
    "fresh": Rung("all train and choose, newest weights", _fresh, in_turn, on_reserved=True),
    "fresh-on-spot": Rung("the same, on spot", _fresh, in_one_group(in_turn), on_spot=True),
    "previous": Rung(
        "all train and choose, previous weights",
        _chosen,
        in_turn_with_previous_weights,
        on_reserved=True,
    ),
    "previous-on-spot": Rung(
        "the same, on spot", _chosen, in_one_group(in_turn_with_previous_weights), on_spot=True
    ),
    OURS_NOW: Rung("Spotlight, spot GPUs only explore", _chosen, by_pull(beside)),
    OURS_TRAINING: Rung("Spotlight, spot GPUs train, too", _chosen, by_pull(elastic)),
    "spotlight-simulated": Rung(
        "the same, on the simulated cluster", _chosen, by_pull(elastic), is_simulated=True
    ),
    "spotlight-with-cheap-previews": Rung(
        "spot GPUs train, too, previews of a quarter of the steps",
        _cheap,
        by_pull(elastic),
    ),
    "spotlight-on-a-slow-link": Rung(
        "spot GPUs train, too, five times the link's time",
        _chosen,
        by_pull(on_slower_link(elastic, 5.0)),
    ),
}
"""The rivals by name, from the plainest on."""


OURS_OF_LADDER = tuple(name for name in LADDER if name.startswith(OURS))


class Timed(msgspec.Struct, frozen=True):
    """A rung's run with one seed."""

    curve: Curve
    at: Mapping[int, Arrival]
    """The `LEVELS` of its reference."""
    first: float
    """The score that all begin with."""
    target: float


Runs = Mapping[Case, Run]


def wanted(tasks: Iterable[str], seeds: Iterable[int]) -> Iterable[Case]:
    """All runs that the ladder reads, those that it cannot do without first."""
    found = []
    for task in tasks:
        for seed in seeds:
            for rung in LADDER.values():
                for case in rung.cases(task).values():
                    own = msgspec.structs.replace(case, seed=seed)
                    found += [own.reference, own]
    return dict.fromkeys(found)


def splits(profiles: Iterable[str], tasks: Iterable[str]) -> list[Split]:
    """Those whose clocks are simulated for the ladder."""
    return [
        Split(task, profile, spot, previews)
        for task in tasks
        for profile in profiles
        for spot in SPOT_POOLS
        for previews in _chosen(task)
    ]


def ladder(
    runs: Runs,
    simulated: Mapping[Split, float],
    profiles: Mapping[str, Profile],
    tasks: Sequence[str],
    seeds: Sequence[int],
) -> dict[str, Any]:
    """By task, profile and spot pool a row for each rival; None where the reserved GPUs alone, that
    all are measured by, have no runs. `simulated` has the seconds of an iteration."""
    found = {}
    for task in tasks:
        for name, profile in profiles.items():
            for spot in SPOT_POOLS:
                clocks = {
                    split.previews: seconds
                    for split, seconds in simulated.items()
                    if (split.task, split.profile, split.spot) == (task, name, spot)
                }
                key = f"ladder[{task}, {name}, {spot}]"
                found[key] = _rungs(runs, clocks, profile, task, spot, seeds)
    return found


def _rungs(
    runs: Runs,
    simulated: Mapping[int, float],
    profile: Profile,
    task: str,
    spot: int,
    seeds: Sequence[int],
) -> dict[str, Any] | None:
    chosen = {
        name: found
        for name, rung in LADDER.items()
        if (found := _best(runs, simulated, rung, profile, task, spot, seeds)) is not None
    }
    timed = {name: by_seed for name, (_, _, by_seed) in chosen.items()}
    if not timed.get("reserved"):
        return None
    whole_s = geometric_mean([one.at[LEVELS[-1]].seconds for one in timed["reserved"].values()])
    whole_dollars = whole_s / 3600 * _dollars_an_hour(LADDER["reserved"].fleet(spot))
    rows = {}
    for name, (previews, iteration_s, by_seed) in chosen.items():
        hourly = _dollars_an_hour(LADDER[name].fleet(spot))
        last = {seed: one.at[LEVELS[-1]] for seed, one in by_seed.items()}
        seconds = [share * whole_s for share in SHARES]
        paid_s = [share * whole_dollars / hourly * 3600 for share in SHARES]
        rows[name] = {
            "previews": previews,
            "iteration_s": round(iteration_s, 1),
            "seconds_to_target": {seed: round(one.seconds) for seed, one in last.items()},
            "never_arrived": sum(not one.arrived for one in last.values()),
            "dollars_an_hour": round(hourly, 2),
            "over_reserved": _over(timed["reserved"], by_seed, is_ours=name in OURS_OF_LADDER),
            "ours_over_it": _over(by_seed, timed.get(OURS_TRAINING, {}), is_ours=True),
            "way_in_time": [_way(by_seed.values(), at) for at in seconds],
            "way_for_dollars": [_way(by_seed.values(), at) for at in paid_s],
            "area": _mean([_area(one, whole_s) for one in by_seed.values()]),
        }
    return {
        "minutes": [round(share * whole_s / 60, 1) for share in SHARES],
        "dollars": [round(share * whole_dollars, 2) for share in SHARES],
        "rows": rows,
    }


def _best(
    runs: Runs,
    simulated: Mapping[int, float],
    rung: Rung,
    profile: Profile,
    task: str,
    spot: int,
    seeds: Sequence[int],
) -> tuple[int, float, dict[int, Timed]] | None:
    """The previews for each sample that are best for it, the seconds of an iteration then, and its
    runs by seed; None where there are no runs. `simulated` has clocks by previews."""
    found = []
    for previews, case in rung.cases(task).items():
        by_seed = {
            seed: run
            for seed in seeds
            if (run := runs.get(msgspec.structs.replace(case, seed=seed))) is not None
        }
        if by_seed and (previews in simulated or not rung.is_simulated):
            work = _work(case, by_seed.values(), profile)
            clock_s = rung.clock(work, rung.fleet(spot))
            iteration_s = simulated[previews] if rung.is_simulated else clock_s
            found.append((WORTH.get(previews, 1.0) / iteration_s, previews, iteration_s, case))
    if not found:
        return None
    _, previews, iteration_s, case = max(found, key=lambda one: one[0])
    timed = {}
    for seed in seeds:
        own = msgspec.structs.replace(case, seed=seed)
        reference = runs.get(own.reference)
        if own in runs and reference is not None and milestones(curve_of(reference)):
            timed[seed] = _timed(runs[own], reference, iteration_s)
    return previews, iteration_s, timed


def _work(case: Case, runs: Iterable[Run], profile: Profile) -> Work:
    """The first iteration has no previews."""
    previews = fmean(run["totals"]["previews"] / max(1, run["iterations"] - 1) for run in runs)
    return work_of(case.job(), profile, previews)


def _timed(run: Run, reference: Run, iteration_s: float) -> Timed:
    """Each iteration takes the same, from the first score of the run that was made."""
    began_s = run["validation"][0][0]
    curve = [(began_s + version * iteration_s, score) for _, version, score in run["validation"]]
    levels = milestones(curve_of(reference))
    return Timed(
        curve,
        {level: arrival(curve, score) for level, score in levels.items()},
        smoothed(curve_of(reference))[0][1],
        max(levels.values()),
    )


def _over(
    slower: Mapping[int, Timed], faster: Mapping[int, Timed], *, is_ours: bool
) -> dict[str, Any] | None:
    """How many times as fast one is as the other, in the seeds of which there are both. A run that
    never arrives counts as arriving when it ended, but one of ours as arriving later where the
    other arrives."""
    ratios = []
    for seed in sorted(slower.keys() & faster.keys()):
        one, other = faster[seed].at[LEVELS[-1]], slower[seed].at[LEVELS[-1]]
        counts = is_ours and other.arrived
        ratios.append(speedup(one, other) if counts else other.seconds / one.seconds)
    found = estimate({"": ratios})
    return msgspec.to_builtins(found) if found else None


def _way(timed: Iterable[Timed], seconds: float) -> dict[str, Any] | None:
    """The share of the way to the target that is made by then."""
    return _mean([_share(one, score_at(seconds, smoothed(one.curve))) for one in timed])


def _share(one: Timed, score: float) -> float:
    """Runs end at the target, so no more of the way counts."""
    return min(1.0, (score - one.first) / (one.target - one.first))


def _area(one: Timed, until_s: float) -> float:
    """The mean share of the way over all that time: the area under the curve, where 1 would be at
    the target from the beginning."""
    grid = [until_s * (step + 0.5) / 200 for step in range(200)]
    line = smoothed(one.curve)
    return fmean(_share(one, score_at(at, line)) for at in grid)


def _mean(values: Sequence[float]) -> dict[str, Any] | None:
    """An arithmetic mean with its 90 % interval, which one or two values do not have."""
    if not values:
        return None
    margin = student_margin([values])
    middle = fmean(values)
    return {
        "value": round(middle, 3),
        "low": None if margin is None else round(middle - margin, 3),
        "high": None if margin is None else round(middle + margin, 3),
        "seeds": len(values),
    }


def _dollars_an_hour(fleet: Fleet) -> float:
    return RESERVED_DOLLARS * (fleet.reserved + fleet.spot * (1 - SPOT_DISCOUNT))
