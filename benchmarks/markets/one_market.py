"""Spotlight and its strongest rivals on one market, measured with real numerics.

Spotlight's runs are made on the market itself, compressed to the time of the test-bed, since what
it trains on depends on the nodes that there are. Rivals train on the same samples however long
things take, whoever is lost: so their kept runs are timed again on the very same market. Hours and
dollars are those of the market as it was.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from statistics import fmean, geometric_mean
from typing import Any

import msgspec

from benchmarks.exploration.kept_runs import Run
from benchmarks.exploration.ratios import arrival, estimate
from benchmarks.exploration.testbed_runs import curve_of
from benchmarks.markets.comparison import SHARES, WHOLE_COST, WHOLE_S, Field
from benchmarks.markets.entrants import NEVER, RESERVED, SEEDS, SPOTLIGHT, Entrant, Kept, way
from benchmarks.markets.places import PAPER
from benchmarks.markets.real_runs import TIMES, MarketRuns, market_run, stretched
from benchmarks.time_to_target import LEVELS, Curve, score_at
from spotlight.errors import UserError
from spotlight_simulation.market.batch_model import Course, Market, System, course

MARKET = "p3-trace"
"""The market that runs are made on: nodes were held, and three quarters of them were there, as in
the middle one of all markets of this kind. It was chosen before any run was made on it."""
NODES = 4
"""The spot nodes that are asked for."""
RIVALS = (
    "torchft-on-spot",
    "torchft-on-spot-alone",
    "data-parallel-on-demand",
    "pipelined-on-spot",
    RESERVED,
    "rollouts-on-spot",
    "published-on-demand",
)
"""The four that need least in hours or dollars by the model, and those that are asked about."""


class Came(msgspec.Struct, frozen=True):
    """What came of a run."""

    hours: float
    """The time to the target. [h of the market]"""
    cost: float
    """What all GPUs cost until then, at the paper's discount."""
    in_time: tuple[float, ...]
    """The share of the way to the target that is made, after each of the fixed times."""
    for_money: tuple[float, ...]
    """The same, for each of the fixed amounts."""


def one_market(folder: Path, fields: Mapping[str, Field]) -> dict[str, Any]:
    """By entrant: of Spotlight hours and cost by task, of the others how many times as much they
    need, by task and of both; and the share of the way at fixed times and for fixed money."""
    came = {task: _of_task(Kept(folder, task), folder, field) for task, field in fields.items()}
    names = (SPOTLIGHT, *RIVALS)
    any_field = next(iter(fields.values()))
    return {
        name: {
            "title": any_field.everybody[name].title,
            "ways": {task: _ways(by_name[name].values()) for task, by_name in came.items()},
            **(_absolute(came) if name == SPOTLIGHT else _over_ours(came, name)),
        }
        for name in names
    }


def _of_task(kept: Kept, folder: Path, field: Field) -> dict[str, dict[int, Came]]:
    """By entrant and seed, of the seeds that Spotlight was run with."""
    market, runs = Market(stretched(MARKET, NODES)), MarketRuns(folder)
    made = {
        seed: run
        for seed in SEEDS
        if (run := runs.read(market_run(kept.task, seed, NODES, MARKET))) is not None
    }
    system = field.everybody[SPOTLIGHT].system(market.schedule)
    came = {SPOTLIGHT: {seed: _ours(kept, seed, run, system, market) for seed, run in made.items()}}
    for name in RIVALS:
        one = field.everybody[name]
        own = course(one.system(market.schedule), market)
        came[name] = {seed: timed_again(one, seed, own) for seed in made}
    return came


def _ours(kept: Kept, seed: int, run: Run, system: System, market: Market) -> Came:
    """A run counts from its first score on, as those of rivals begin with it."""
    curve, levels = curve_of(run), kept.levels(seed)
    began_s = curve[0][0]
    at = arrival(curve, levels[LEVELS[-1]])
    seconds = (at.seconds - began_s) * (1.0 if at.arrived else NEVER) * TIMES
    points = [((at_s - began_s) * TIMES, version * TIMES) for at_s, version, _ in run["validation"]]
    by_iteration = [(float(version), score) for _, version, score in run["validation"]]
    return _came(Course(system, market, tuple(points)), seconds, way(by_iteration, levels))


def timed_again(one: Entrant, seed: int, own: Course) -> Came:
    """A rival's kept run on its course over the market. Raises `UserError` where it is not at the
    target until the market ends."""
    seconds = own.seconds_to(one.iterations(seed) * TIMES)
    if seconds is None:
        raise UserError(
            f"{own.market.schedule.market}: {one.title} (seed {seed}) is not at the target when the"
            " market ends; leave it out of `RIVALS` in `benchmarks.markets.one_market`, or let"
            " `stretched` in `benchmarks.markets.real_runs` repeat the market for longer"
        )
    return _came(own, seconds, one.learned.ways[seed])


def _came(run: Course, seconds: float, made: Curve) -> Came:
    def at(moment_s: float) -> float:
        return min(1.0, score_at(run.done_at(moment_s) / TIMES, made))

    return Came(
        seconds / 3600,
        run.cost(seconds, PAPER),
        tuple(at(share * WHOLE_S) for share in SHARES),
        tuple(at(run.seconds_for(share * WHOLE_COST, PAPER)) for share in SHARES),
    )


def _absolute(came: Mapping[str, Mapping[str, Mapping[int, Came]]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for task, by_name in came.items():
        ours = list(by_name[SPOTLIGHT].values())
        found[f"hours[{task}]"] = round(geometric_mean(c.hours for c in ours), 1) if ours else None
        found[f"cost[{task}]"] = round(geometric_mean(c.cost for c in ours)) if ours else None
        found[f"seeds[{task}]"] = len(ours)
    return found


def _over_ours(came: Mapping[str, Mapping[str, Mapping[int, Came]]], name: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for what in ("hours", "cost"):
        ratios = {
            task: [
                getattr(other, what) / getattr(by_name[SPOTLIGHT][seed], what)
                for seed, other in by_name[name].items()
            ]
            for task, by_name in came.items()
        }
        for task, each in ratios.items():
            found[f"{what}[{task}]"] = msgspec.to_builtins(estimate({task: each}))
        found[what] = msgspec.to_builtins(estimate(ratios))
    return found


def _ways(came: Iterable[Came]) -> dict[str, Any] | None:
    runs = list(came)
    if not runs:
        return None
    return {
        field: [
            round(fmean(each), 3) for each in zip(*(getattr(c, field) for c in runs), strict=True)
        ]
        for field in ("in_time", "for_money")
    }
