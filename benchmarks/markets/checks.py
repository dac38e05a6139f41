"""The batch-level model against runs with real numerics whose nodes came and went as on a market,
which says whether paces that were measured with nodes that stay hold in between."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.exploration.cases import PROFILES, SOL_RL_SPLIT
from benchmarks.exploration.kept_runs import Run
from benchmarks.exploration.ratios import arrival
from benchmarks.exploration.rivals import OURS, RESERVED_GPUS
from benchmarks.exploration.testbed_runs import curve_of
from benchmarks.markets.entrants import SEEDS, TASKS, Kept, previews
from benchmarks.markets.one_market import MARKET, NODES
from benchmarks.markets.real_runs import TIMES, MarketRuns, compressed, market_run
from benchmarks.time_to_target import LEVELS
from spotlight_simulation.market.batch_model import (
    BOOT_S,
    Course,
    Market,
    Pace,
    Recovery,
    System,
    course,
)
from spotlight_simulation.profile import load_profile

ON_MARKETS = [
    *(("ocr", seed, "g4dn-trace") for seed in SEEDS),
    *((task, seed, MARKET) for task in TASKS for seed in SEEDS),
]
"""Task, seed and market of the runs that there may be."""


def checks(folder: Path) -> dict[str, Any]:
    """By run that is kept: previews for each sample, and seconds to the target, real and by the
    model."""
    runs = MarketRuns(folder)
    found = {}
    for task, seed, market in ON_MARKETS:
        run = runs.read(market_run(task, seed, NODES, market))
        if run is not None:
            found[f"{task}, seed {seed}, {market}"] = _check(Kept(folder, task), seed, market, run)
    return found


def _check(kept: Kept, seed: int, market: str, run: Run) -> dict[str, float]:
    paces = kept.paces(NODES)
    on_market = Market(compressed(market, NODES))
    began_s = run["validation"][0][0]
    seconds = arrival(curve_of(run), kept.levels(seed)[LEVELS[-1]]).seconds - began_s
    needed = kept.late(kept.with_nodes(NODES)[seed], seed)
    made = _course([_worth(pace, pace.previews) for pace in paces], on_market).done_at(seconds)
    iterations = _course([_worth(pace, 1.0) for pace in paces], on_market).done_at(seconds)
    return {
        "previews": round(previews(run) / kept.samples, 3),
        "model_previews": round(made / iterations, 3),
        "seconds": round(seconds, 1),
        "model_seconds": round(_course(paces, on_market).seconds_to(needed) or math.inf, 1),
    }


def _worth(pace: Pace, worth: float) -> Pace:
    return msgspec.structs.replace(pace, worth=worth)


def _course(paces: Sequence[Pace], market: Market) -> Course:
    ready_s = BOOT_S / TIMES + load_profile(PROFILES[SOL_RL_SPLIT]).load_s
    system = System(
        name=OURS,
        reserved_gpus=RESERVED_GPUS,
        paces=tuple(paces),
        recovery=Recovery(ready_s=ready_s),
    )
    return course(system, market)
