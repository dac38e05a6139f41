"""The tables of docs/markets.md, made of the figures themselves.

Pure. They stand in the page as those of `benchmarks.exploration.tables` do.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from benchmarks.exploration.tables import Figures, Table
from benchmarks.markets.comparison import HEADLINES, JOB_H, ON_SPOT, SHARES, WHOLE_COST
from benchmarks.markets.entrants import ALL_ON_SPOT, RESERVED, SPOTLIGHT, TASKS
from benchmarks.markets.places import PAPER, PRICES
from benchmarks.markets.splits import SPLITS
from spotlight.report.formatting import count
from spotlight_simulation.market.rivals import COSTS

_ON_DEMAND = "data-parallel-on-demand"
_NEVER = "never"
_NOT_MEASURED = "not measured"


def _headlines(figures: Figures) -> Iterable[Sequence[str]]:
    yield "figure", "asked for", "both tasks", *TASKS, "markets, lowest and highest", "rival"
    yield ("---",) * 7
    for name, (_, _, _, asked) in HEADLINES.items():
        whole = figures[f"{name}_interval"]
        tasks = [_estimate(figures[f"{name}[{task}]"]) for task in TASKS]
        ends = f"{whole['lowest']:.2f}, {whole['highest']:.2f}"
        yield f"`{name}`", f"{asked:g}", _estimate(whole), *tasks, ends, whole["rival"]


def _rivals(figures: Figures, nodes: str) -> Iterable[Sequence[str]]:
    """The cheapest first."""
    yield "who", "hours", *(f"cost, {prices.name}" for prices in PRICES), "not in time"
    yield ("---",) * (3 + len(PRICES))
    rows = figures[f"rivals[{nodes}]"]
    for _, row in sorted(rows.items(), key=lambda item: item[1][PAPER.name]["value"]):
        costs = [_estimate(row[prices.name]) for prices in PRICES]
        late = f"{row['given_up']} of {row['runs']}" if row["given_up"] else ""
        yield row["title"], _estimate(row["hours"]), *costs, late


def _markets(figures: Figures, nodes: str) -> Iterable[Sequence[str]]:
    """The market where Spotlight saves least first."""
    yield (
        "market",
        "nodes there",
        "hours",
        "cost",
        "reserved alone, cost",
        "data-parallel on demand, cost",
        "the best data-parallel on spot, hours",
        "the same, cost",
        "data-parallel on spot alone, cost",
        "Spotlight on spot alone, cost",
    )
    yield ("---",) * 10
    markets: Mapping[str, Any] = figures[f"markets[{nodes}]"]
    for market, row in sorted(markets.items(), key=lambda item: _saved(item[1])):
        hours, cost = row["hours"], row["cost"][PAPER.name]
        ours, cheap = hours[SPOTLIGHT], cost[SPOTLIGHT]
        yield (
            market if row["is_held"] else f"{market} (probes)",
            f"{100 * row['share']:.0f} %",
            f"{ours:.0f}",
            f"{cheap:.0f}",
            _ratio(cost[RESERVED], cheap),
            _ratio(cost[_ON_DEMAND], cheap),
            _ratio(_least(hours), ours),
            _ratio(_least(cost), cheap),
            _ratio(cost["torchft-on-spot-alone"], cheap),
            _ratio(cost[ALL_ON_SPOT], cheap),
        )


def _ways(figures: Figures, task: str, nodes: str) -> Iterable[Sequence[str]]:
    yield _ways_head(task)
    yield ("---",) * 3
    titles = figures[f"rivals[{nodes}]"]
    for name, row in figures[f"ways[{task}, {nodes}]"].items():
        yield titles[name]["title"], _percent(row["in_time"]), _percent(row["for_money"])


def _ways_head(task: str) -> Sequence[str]:
    hours = ", ".join(f"{share * JOB_H:g}" for share in SHARES)
    money = ", ".join(f"{share * WHOLE_COST:.0f}" for share in SHARES)
    return f"{task}, {PAPER.name}", f"way made in {hours} h", f"for {money} {PAPER.currency}"


def _costs(_: Figures) -> Iterable[Sequence[str]]:
    yield "what", "seconds", "from"
    yield ("---",) * 3
    for name, one in COSTS.items():
        yield name, f"{one.seconds:g}", one.source


def _paces(figures: Figures) -> Iterable[Sequence[str]]:
    yield "task", "spot nodes", "s an iteration", "previews", "worth of an iteration", "seeds"
    yield ("---",) * 6
    for task in TASKS:
        for nodes, row in figures[f"paces[{task}]"].items():
            values = [f"{row[name]:.{digits}f}" for name, digits in _PACE.items()]
            yield task, str(nodes), *values, str(row["seeds"])


_PACE = {"iteration_s": 1, "previews": 2, "worth": 2}


def _checks(figures: Figures) -> Iterable[Sequence[str]]:
    yield "run", "previews, real", "by the model", "s to the target, real", "by the model"
    yield ("---",) * 5
    for name, row in figures["checks"].items():
        yield (
            name,
            f"{row['previews']:.2f}",
            f"{row['model_previews']:.2f}",
            f"{row['seconds']:.0f}",
            f"{row['model_seconds']:.0f}",
        )


def _one_market(figures: Figures) -> Iterable[Sequence[str]]:
    """Spotlight's hours and cost, and how many times as much the others need."""
    columns = [f"{what}[{task}]" for task in TASKS for what in ("hours", "cost")]
    yield "who", *(f"{task}, {what}" for task in TASKS for what in ("hours", "cost")), *_BOTH
    yield ("---",) * (1 + len(columns) + len(_BOTH))
    for name, row in figures["one_market"].items():
        if name == SPOTLIGHT:
            seeds = ", ".join(f"{task}: {count(row[f'seeds[{task}]'], 'seed')}" for task in TASKS)
            values = [_NOT_MEASURED if row[key] is None else f"{row[key]:g}" for key in columns]
            yield f"{row['title']} ({seeds})", *values, "", ""
        else:
            values = [_measured(row[key]) for key in (*columns, "hours", "cost")]
            yield f"{row['title']}, over it", *values


_BOTH = ("both, hours", "both, cost")


def _one_market_ways(figures: Figures, task: str) -> Iterable[Sequence[str]]:
    yield _ways_head(task)
    yield ("---",) * 3
    for row in figures["one_market"].values():
        ways = row["ways"][task]
        made = [_percent(ways[key]) if ways else _NOT_MEASURED for key in ("in_time", "for_money")]
        yield row["title"], *made


def _splits(figures: Figures) -> Iterable[Sequence[str]]:
    """How many times as much the others need as Spotlight, by the share of training."""
    columns = [(share, what) for share in SPLITS for what in ("hours", "cost")]
    yield "who", *(f"{share}, {what}" for share, what in columns)
    yield ("---",) * (1 + len(columns))
    for row in figures["splits"].values():
        yield row["title"], *(_estimate(row[share][what]) for share, what in columns)


def _saved(row: Mapping[str, Any]) -> float:
    cost = row["cost"][PAPER.name]
    return float(cost[RESERVED] / cost[SPOTLIGHT])


def _least(by_name: Mapping[str, float | None]) -> float | None:
    known = [value for name in ON_SPOT if (value := by_name[name]) is not None]
    return min(known, default=None)


def _ratio(other: float | None, ours: float) -> str:
    return _NEVER if other is None else f"{other / ours:.2f}"


def _estimate(one: Mapping[str, Any] | None) -> str:
    if one is None or math.isinf(one["value"]):
        return _NEVER
    if one["low"] is None or one["high"] - one["low"] < 0.01:
        return f"{one['value']:.2f}"
    return f"{one['value']:.2f} ({one['low']:.2f} to {one['high']:.2f})"


def _measured(one: Mapping[str, Any] | None) -> str:
    return _NOT_MEASURED if one is None else _estimate(one)


def _percent(ways: Sequence[float]) -> str:
    return ", ".join(str(round(100 * way)) for way in ways) + " %"


TABLES: dict[str, Table] = {
    "headlines": _headlines,
    "rivals": _rivals,
    "markets": _markets,
    "ways": _ways,
    "costs": _costs,
    "paces": _paces,
    "checks": _checks,
    "splits": _splits,
    "one-market": _one_market,
    "one-market-ways": _one_market_ways,
}
