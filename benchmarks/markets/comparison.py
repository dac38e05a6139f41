"""Hours and dollars to the same score, on every market, by everybody.

Pure. A real model takes more iterations than a tiny one, which are as long here as its profile
says: all runs take so many times more of them that the reserved GPUs alone need `JOB_H` hours.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import fmean, geometric_mean, median
from typing import Any

import msgspec

from benchmarks.exploration.ratios import estimate
from benchmarks.exploration.rivals import RESERVED_GPUS
from benchmarks.markets.entrants import NO_MARKET, RESERVED, SPOTLIGHT, Entrant, job_s, seeds_of
from benchmarks.markets.places import PAPER, PRICES, Place
from benchmarks.time_to_target import score_at
from spotlight.errors import UserError
from spotlight_simulation.market.batch_model import Course, Market, course
from spotlight_simulation.market.schedule import Prices, Schedule

JOB_H = 100.0
"""An assumption: what a job takes on the four reserved GPUs alone."""
WHOLE_S = JOB_H * 3600
WHOLE_COST = JOB_H * RESERVED_GPUS * PAPER.reserved_per_gpu_hour
"""What that costs."""
SHARES = (0.125, 0.25, 0.5)
"""Scores are compared after these shares of the time, and for these shares of the money, that the
reserved GPUs alone need."""
ON_SPOT = ("torchrun-on-spot", "torchft-on-spot", "from-memory-on-spot")
"""Data-parallel training on the market."""


class Bill(msgspec.Struct, frozen=True):
    """What one run used until it was at the target; infinitely much if it never was."""

    seconds: float
    reserved_gpu_s: float
    spot_gpu_s: float

    @property
    def is_given_up(self) -> bool:
        """Whether it was not at the target in time."""
        return math.isinf(self.seconds)

    def cost(self, prices: Prices) -> float:
        """What all its GPUs cost, in the currency of the prices."""
        if self.is_given_up:
            return math.inf
        reserved = self.reserved_gpu_s * prices.reserved_per_gpu_hour
        return (reserved + self.spot_gpu_s * prices.spot_per_gpu_hour) / 3600


class Ways(msgspec.Struct, frozen=True):
    """The share of the way to the target that is made, for each of `SHARES`; means."""

    in_time: tuple[float, ...]
    for_money: tuple[float, ...]


class Result(msgspec.Struct, frozen=True):
    """What an entrant made of a market."""

    bills: Mapping[int, Sequence[Bill]]
    """Bills by seed, one for each start."""
    ways: Ways

    def hours(self, seed: int) -> float:
        """A geometric mean over starts. [h]"""
        return geometric_mean([bill.seconds for bill in self.bills[seed]]) / 3600

    def cost(self, seed: int, prices: Prices) -> float:
        """A geometric mean over starts."""
        return geometric_mean([bill.cost(prices) for bill in self.bills[seed]])

    @property
    def given_up(self) -> int:
        """How many runs were not at the target in time."""
        return sum(bill.is_given_up for bills in self.bills.values() for bill in bills)


class Field:
    """All entrants of a task and pool, on one market after the other."""

    def __init__(self, everybody: Mapping[str, Entrant]) -> None:
        self.everybody = everybody
        self.seeds = seeds_of(everybody.values())
        reserved = everybody[RESERVED]
        system = reserved.system(NO_MARKET)
        self._times = WHOLE_S / job_s(reserved.learned, system)

    def on(self, schedules: Sequence[Schedule]) -> dict[str, Result]:
        """By name."""
        markets = [Market(schedule) for schedule in schedules]
        return {name: self._result(one, markets) for name, one in self.everybody.items()}

    def _result(self, one: Entrant, markets: Sequence[Market]) -> Result:
        wanted = {seed: one.iterations(seed) * self._times for seed in self.seeds}
        bills: dict[int, list[Bill]] = {seed: [] for seed in self.seeds}
        ways = []
        for market in markets:
            system = one.system(market.schedule)
            run = course(system, market, until=max(wanted.values()))
            arrivals = run.seconds_to_each(list(wanted.values()))
            for seed, at_s in zip(wanted, arrivals, strict=True):
                bills[seed].append(_bill(run, at_s))
            ways.append(self._ways(one, run))
            if not system.uses_spot:  # the same on every market
                bills = {seed: each * len(markets) for seed, each in bills.items()}
                break
        return Result(
            bills,
            Ways(
                tuple(map(fmean, zip(*(each.in_time for each in ways), strict=True))),
                tuple(map(fmean, zip(*(each.for_money for each in ways), strict=True))),
            ),
        )

    def _ways(self, one: Entrant, run: Course) -> Ways:
        moments = [share * WHOLE_S for share in SHARES]
        paid = [run.seconds_for(share * WHOLE_COST, PAPER) for share in SHARES]
        return Ways(
            tuple(self._way(one, run, at_s) for at_s in moments),
            tuple(self._way(one, run, at_s) for at_s in paid),
        )

    def _way(self, one: Entrant, run: Course, at_s: float) -> float:
        """Runs end at the target, so no more of the way counts."""
        iterations = run.done_at(at_s) / self._times
        made = [score_at(iterations, one.learned.ways[seed]) for seed in self.seeds]
        return fmean(min(1.0, way) for way in made)


def _bill(run: Course, until_s: float | None) -> Bill:
    if until_s is None:
        return Bill(math.inf, math.inf, math.inf)
    return Bill(until_s, run.system.reserved_gpus * until_s, run.spot_gpu_s(until_s))


Results = Mapping[str, Mapping[str, Result]]
"""The results by market and entrant."""
Measure = Callable[[Result, int], float]


def hours(result: Result, seed: int) -> float:
    """See `Result.hours`."""
    return result.hours(seed)


def cost(prices: Prices) -> Measure:
    """See `Result.cost`."""
    return lambda result, seed: result.cost(seed, prices)


def over(
    by_task: Mapping[str, Results],
    seeds: Mapping[str, Sequence[int]],
    names: Sequence[str],
    measure: Measure,
    markets: Sequence[str],
) -> dict[str, Any] | None:
    """How many times as much an entrant needs as Spotlight: of each seed the median over markets,
    of these the geometric mean with its 90 % interval, both tasks alike. Of several names, whoever
    needs least on most seeds' markets stands for them. Infinitely many times for whom is never at
    the target on most markets."""
    candidates = [_over(by_task, seeds, name, measure, markets) for name in names]
    known = [found for found in candidates if found is not None]
    return min(known, key=lambda found: found["value"]) if known else None


def _over(
    by_task: Mapping[str, Results],
    seeds: Mapping[str, Sequence[int]],
    name: str,
    measure: Measure,
    markets: Sequence[str],
) -> dict[str, Any] | None:
    ratios: dict[str, list[float]] = {}
    by_market: dict[str, list[float]] = {market: [] for market in markets}
    for task, results in by_task.items():
        ratios[task] = []
        for seed in seeds[task]:
            each = {
                market: measure(results[market][name], seed)
                / measure(results[market][SPOTLIGHT], seed)
                for market in markets
            }
            ratios[task].append(median(each.values()))
            for market, ratio in each.items():
                by_market[market].append(ratio)
    found = estimate(ratios)
    if found is None:
        return None
    means = [mean for each in by_market.values() if math.isfinite(mean := geometric_mean(each))]
    return {
        **msgspec.to_builtins(found),
        "lowest": round(min(means, default=math.inf), 2),
        "highest": round(max(means, default=math.inf), 2),
        "rival": name,
    }


HEADLINES: dict[str, tuple[Sequence[str], str, int, float]] = {
    "cost_vs_published": (("published-on-demand",), "cost", 4, 4.5),
    "cost_vs_data_parallel_on_demand": (("data-parallel-on-demand",), "cost", 4, 2.3),
    "cost_vs_reserved": ((RESERVED,), "cost", 4, 2.0),
    "cost_vs_rollouts": (("rollouts-on-spot",), "cost", 4, 2.8),
    "time_vs_data_parallel_on_spot": (ON_SPOT, "hours", 4, 2.0),
    "time_vs_pipelined_on_spot": (("pipelined-on-spot",), "hours", 4, 2.5),
    "time_vs_synchronous_on_spot": (("rollouts-on-spot",), "hours", 4, 4.0),
    "time_vs_reserved_8": ((RESERVED,), "hours", 4, 4.0),
    "time_vs_reserved_16": ((RESERVED,), "hours", 8, 4.0),
}
"""The figures by name: over whom, of what, with how many spot nodes, and what was asked for."""


def _check_ours(result: Result, where: str) -> None:
    if result.given_up:
        raise UserError(
            f"{where}: Spotlight is not at the target in time, so nobody can be compared with it;"
            " let runs take longer (`LONGEST_S` in `benchmarks.markets.places`), or leave the"
            " market out"
        )


class Replay:
    """Everybody on every market."""

    def __init__(self, fields: Mapping[tuple[str, int], Field]) -> None:
        """By task and spot nodes."""
        self._fields = fields
        self._results: dict[tuple[str, int], dict[str, dict[str, Result]]] = {
            key: {} for key in fields
        }
        self._places: dict[str, Place] = {}

    def visit(self, place: Place) -> None:
        """Run everybody on one more market. Raises `UserError` where Spotlight is not at the target
        in time: nobody can be compared with it then."""
        self._places[place.name] = place
        for nodes in sorted({nodes for _, nodes in self._fields}):
            if place.is_large(nodes):
                schedules = place.schedules(nodes)
                for (task, wanted), field in self._fields.items():
                    if wanted == nodes:
                        results = field.on(schedules)
                        _check_ours(results[SPOTLIGHT], f"{place.name}, {task}, {nodes} nodes")
                        self._results[task, nodes][place.name] = results

    def figures(self) -> dict[str, Any]:
        """All that is made of it."""
        found: dict[str, Any] = {}
        for name, (rivals, what, nodes, _) in HEADLINES.items():
            measure = cost(PAPER) if what == "cost" else hours
            whole = self._estimate(rivals, measure, nodes, self._tasks)
            found[name] = whole and whole["value"]
            found[f"{name}_interval"] = whole
            for task in self._tasks:
                found[f"{name}[{task}]"] = self._estimate(rivals, measure, nodes, [task])
        for nodes in sorted({nodes for _, nodes in self._fields}):
            found[f"rivals[{nodes}]"] = self.over_ours(nodes)
            found[f"markets[{nodes}]"] = self._markets(nodes)
            for task in self._tasks:
                found[f"ways[{task}, {nodes}]"] = self._ways(task, nodes)
        return found

    @property
    def _tasks(self) -> list[str]:
        return list(dict.fromkeys(task for task, _ in self._fields))

    def _held(self, nodes: int) -> list[str]:
        any_task = self._tasks[0]
        names = self._results[any_task, nodes]
        return [name for name in names if self._places[name].trace.is_held]

    def _estimate(
        self, rivals: Sequence[str], measure: Measure, nodes: int, tasks: Iterable[str]
    ) -> dict[str, Any] | None:
        keys = [(task, nodes) for task in tasks if (task, nodes) in self._fields]
        if not keys:
            return None
        return over(
            {key[0]: self._results[key] for key in keys},
            {key[0]: self._fields[key].seeds for key in keys},
            rivals,
            measure,
            self._held(nodes),
        )

    def over_ours(self, nodes: int) -> dict[str, Any]:
        """By entrant, over Spotlight: hours, and cost by price table, on the held markets."""
        found = {}
        for name, one in self._fields[self._tasks[0], nodes].everybody.items():
            results = [
                result[name]
                for task in self._tasks
                for market, result in self._results[task, nodes].items()
                if market in self._held(nodes)
            ]
            found[name] = {
                "title": one.title,
                "hours": self._estimate([name], hours, nodes, self._tasks),
                "given_up": sum(result.given_up for result in results),
                "runs": sum(len(bills) for result in results for bills in result.bills.values()),
                **{
                    prices.name: self._estimate([name], cost(prices), nodes, self._tasks)
                    for prices in PRICES
                },
            }
        return found

    def _markets(self, nodes: int) -> dict[str, Any]:
        """By market what Spotlight needs, and what others do; geometric means over seeds and tasks,
        cost at the paper's discount."""
        found = {}
        for market in self._results[self._tasks[0], nodes]:
            place = self._places[market]
            found[market] = {
                "is_held": place.trace.is_held,
                "share": round(place.share, 3),
                "hours": self._means(market, nodes, hours),
                "cost": {
                    prices.name: self._means(market, nodes, cost(prices)) for prices in PRICES
                },
            }
        return found

    def _means(self, market: str, nodes: int, measure: Measure) -> dict[str, float | None]:
        """By entrant; None for whom a run was given up."""
        means: dict[str, float | None] = {}
        for name in self._fields[self._tasks[0], nodes].everybody:
            values = [
                measure(self._results[task, nodes][market][name], seed)
                for task in self._tasks
                for seed in self._fields[task, nodes].seeds
            ]
            mean = geometric_mean(values)
            means[name] = round(mean, 2) if math.isfinite(mean) else None
        return means

    def _ways(self, task: str, nodes: int) -> dict[str, Any]:
        """By entrant the share of the way at fixed times and for fixed money: medians over the held
        markets."""
        found = {}
        for name in self._fields[task, nodes].everybody:
            ways = [self._results[task, nodes][market][name].ways for market in self._held(nodes)]
            found[name] = {
                "in_time": [
                    round(median(each), 3)
                    for each in zip(*(way.in_time for way in ways), strict=True)
                ],
                "for_money": [
                    round(median(each), 3)
                    for each in zip(*(way.for_money for way in ways), strict=True)
                ],
            }
        return found
