"""The tables of figures in the docs, made of the figures themselves.

Pure. In a Markdown file a table stands between `<!-- table: NAME ARGUMENTS -->` and
`<!-- end of table -->`, where NAME is one of `TABLES`; what is between them is made anew.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from benchmarks.exploration.cases import OTHER_POOLS, REORDERED, SOL_RL_SPLIT, training_share
from benchmarks.exploration.ladder import LADDER, OURS_TRAINING, SPOT_POOLS
from benchmarks.exploration.rivals import OURS, RIVALS, SPOT_GPUS, TASKS
from benchmarks.time_to_target import LEVELS
from spotlight.errors import UserError

Figures = Mapping[str, Any]
Table = Callable[..., Iterable[Sequence[str]]]
"""The rows of a table, made of figures and of the words after its name."""

NOT_MEASURED = "not measured"
_CLAIMS = {
    "reserved": "the four reserved GPUs alone",
    "rollouts": "reserved GPUs with rollouts on the spot GPUs",
    "pipelined": "the same, one step behind (the best rival whose spot GPUs do not train)",
    "data-parallel": "data-parallel training on the same twelve GPUs",
    "published": "the published recipe of DiffusionNFT on the same twelve GPUs",
    "inline": "exploration on the critical path",
    "regenerate": "itself, with chosen seeds denoised again",
    "uniform": "itself, with the same number of previews for every prompt",
}
"""What Spotlight is faster than, by rival, in the order of the rows."""
_AIMS = {
    "speedup_vs_reserved": "4.5",
    "speedup_vs_rollouts": "",
    "speedup_vs_best_plain": "3; its lower end 2.2",
    "speedup_vs_data_parallel": "1.7",
    "speedup_vs_published": "4",
    "speedup_vs_inline": "",
    "speedup_vs_regenerate": "",
    "speedup_vs_uniform": "1, at the lower end",
    "spot_idle_share_of_all_time": "0.03, at most",
    "previews_dropped_share": "0.05, at most",
    "spot_idle_share": "",
    "publication_delay_share": "",
}
"""Where training is most of an iteration, by figure; none for those that are only told."""
_BY_SHARE = ("verl-omni-split", SOL_RL_SPLIT, "even-split")
"""Profiles by the share of training, the largest first."""
SAME_RUNS = 0.05
"""A ratio that scatters less between seeds is one of two clocks on the same runs: there is nothing
to be estimated."""
_MARKED = re.compile(r"(<!-- table: ([^>]+) -->\n).*?(<!-- end of table -->)", re.DOTALL)


class UnknownTable(UserError):
    """A file asks for a table that there is not, or of figures that there are not."""


def rendered(text: str, figures: Figures) -> str:
    """The same text with all its tables made anew. Raises `UnknownTable`."""
    return rendered_with(TABLES, text, figures)


def rendered_with(tables: Mapping[str, Table], text: str, figures: Figures) -> str:
    """The same with other tables than those of `TABLES`."""

    def table(found: re.Match[str]) -> str:
        name, *arguments = found[2].split()
        if name not in tables:
            raise UnknownTable(f"there is no table {name!r}; there are {', '.join(tables)}")
        try:
            lines = [f"| {' | '.join(row)} |\n" for row in tables[name](figures, *arguments)]
        except KeyError as error:
            raise UnknownTable(
                f"table {found[2]!r}: there is no figure {error}; ask for the part that has it"
            ) from error
        return "".join([found[1], "\n", *lines, "\n", found[3]])

    return _MARKED.sub(table, text)


def _speedups(figures: Figures, task: str, profile: str = SOL_RL_SPLIT) -> Iterable[Sequence[str]]:
    """Over each rival, to the target and on the way."""
    *levels, _ = LEVELS
    yield (
        f"claim, where training is {training_share(profile)} of an iteration: Spotlight is faster"
        " than",
        "figure",
        f"at {LEVELS[-1]} %",
        "interval",
        "seeds",
        *(f"{level} %" for level in levels),
    )
    yield ("---",) * (5 + len(levels))
    suffix = _suffix(task, profile)
    on_the_way = figures[f"speedup_on_the_way{suffix}"]
    never_arrived = figures[f"never_arrived{suffix}"]
    for rival, claim in _CLAIMS.items():
        estimates = on_the_way[rival]
        whole = estimates[f"{LEVELS[-1]} %"]
        values = [NOT_MEASURED, "", "", *[""] * len(levels)]
        if whole:
            on_way = [f"{estimates[f'{level} %']['value']:.1f}" for level in levels]
            seeds = f"{whole['seeds']}{_missed(never_arrived[rival])}"
            values = [f"{whole['value']:.2f}", _interval(whole), seeds, *on_way]
        yield claim, f"`speedup_vs_{rival.replace('-', '_')}`", *values


def _headlines(figures: Figures) -> Iterable[Sequence[str]]:
    """The figures that have aims, of both tasks with alike prompts together, and of each task."""
    yield f"figure, training {training_share(SOL_RL_SPLIT)}", "aim", "both tasks", *TASKS
    yield ("---",) * (3 + len(TASKS))
    for name, aim in _AIMS.items():
        by_task = [_headline(figures, name, f"[{task}]") for task in TASKS]
        # Of shares there is a figure of all tasks: that of the worst.
        of_both = _headline(figures, name, "") if name.startswith("speedup") else ""
        yield f"`{name}`", aim, of_both, *by_task
    of_mixed = _headline(figures, "speedup_vs_uniform_mixed", "")
    yield "`speedup_vs_uniform_mixed`", "1.15", f"both mixed ones: {of_mixed}", *[""] * len(TASKS)


def _headline(figures: Figures, name: str, suffix: str) -> str:
    value = figures[f"{name}{suffix}"]
    if value is None:
        return NOT_MEASURED
    low, high = (figures.get(f"{name}_{end}{suffix}") for end in ("low", "high"))
    if not name.startswith("speedup"):
        return f"{value:.3f}"
    return f"{value:.2f}" if low is None else f"{value:.2f} ({low:.2f} to {high:.2f})"


def _dollars(figures: Figures) -> Iterable[Sequence[str]]:
    """The cost to the target, of each task and rival that were measured."""
    yield (
        "task",
        "rival",
        "reserved GPU-hours",
        "spot GPU-hours",
        "dollars",
        "all on spot, before losses",
        "seeds",
    )
    yield ("---",) * 7
    for task in TASKS:
        rows = figures[f"dollars_to_target[{task}, {SOL_RL_SPLIT}]"]
        for rival in [*_CLAIMS, OURS]:
            if rival in rows:
                row = rows[rival]
                hours = [f"{row[f'{pool}_gpu_hours']:.2f}" for pool in ("reserved", "spot")]
                dollars = [f"{row[name]:.1f}" for name in ("dollars", "dollars_all_spot")]
                yield task, RIVALS[rival], *hours, *dollars, str(row["seeds"])


def _pools(figures: Figures, *tasks: str) -> Iterable[Sequence[str]]:
    """Speed-ups over the run without exploration, by the number of spot GPUs."""
    yield f"spot GPUs, training {training_share(SOL_RL_SPLIT)}", *tasks
    yield ("---",) * (1 + len(tasks))
    for gpus in sorted((SPOT_GPUS, *OTHER_POOLS)):
        estimates = [figures[f"speedup_by_spot_gpus[{task}]"][gpus] for task in tasks]
        yield str(gpus), *(_with_seeds(one) for one in estimates)


def _noise(figures: Figures, *tasks: str) -> Iterable[Sequence[str]]:
    """By how much runs differ that have their samples in another order."""
    yield "run", *tasks
    yield ("---",) * (1 + len(tasks))
    for rival in REORDERED:
        values = [figures[f"order_noise[{task}, {rival}]"] for task in tasks]
        yield RIVALS[rival], *(f"{one:.2f}" if one else NOT_MEASURED for one in values)


def _ladder(figures: Figures, task: str, profile: str, spot: str) -> Iterable[Sequence[str]]:
    """All rivals on one split with so many spot GPUs."""
    found = figures[f"ladder[{task}, {profile}, {spot}]"]
    minutes = ", ".join(f"{at:.0f}" for at in found["minutes"]) if found else ""
    dollars = ", ".join(f"{at:.1f}" for at in found["dollars"]) if found else ""
    yield (
        f"{task}, training {training_share(profile, task)}, {spot} spot GPUs",
        "previews",
        "s an iteration",
        "times as fast as the reserved GPUs alone",
        "Spotlight whose spot GPUs train is faster",
        f"way made in {minutes} min",
        f"for {dollars} dollars",
        "area",
    )
    yield ("---",) * 8
    for name, rung in LADDER.items():
        if not rung.cases(task):
            continue
        row = found["rows"].get(name) if found else None
        if row is None:
            yield rung.title, NOT_MEASURED, *[""] * 6
            continue
        missed = _missed(row["never_arrived"])
        over = "" if name == "reserved" else _with_seeds(row["over_reserved"])
        yield (
            f"{rung.title}{missed}",
            str(row["previews"] or ""),
            f"{row['iteration_s']:.1f}",
            over,
            "" if name == OURS_TRAINING else _with_seeds(row["ours_over_it"]),
            _ways(row["way_in_time"]),
            _ways(row["way_for_dollars"]),
            f"{row['area']['value']:.2f}{_in_brackets(row['area'])}",
        )


def _rungs(figures: Figures, task: str) -> Iterable[Sequence[str]]:
    """How many times as fast Spotlight whose spot GPUs train is as each rival, on all splits."""
    columns = [(profile, spot) for profile in _BY_SHARE for spot in SPOT_POOLS]
    heads = [f"{training_share(profile, task)}, {spot} spot" for profile, spot in columns]
    yield f"{task}: Spotlight whose spot GPUs train, over", *heads
    yield ("---",) * (1 + len(columns))
    tables = [figures[f"ladder[{task}, {profile}, {spot}]"] for profile, spot in columns]
    for name, rung in LADDER.items():
        if name != OURS_TRAINING and not rung.on_spot and rung.cases(task):
            rows = [table["rows"].get(name) if table else None for table in tables]
            yield rung.title, *(_with_seeds(row["ours_over_it"] if row else None) for row in rows)


TABLES: dict[str, Table] = {
    "headlines": _headlines,
    "speedups": _speedups,
    "dollars": _dollars,
    "pools": _pools,
    "noise": _noise,
    "ladder": _ladder,
    "rungs": _rungs,
}


def _suffix(task: str, profile: str) -> str:
    return f"[{task}]" if profile == SOL_RL_SPLIT else f"[{task}, {profile}]"


def _missed(runs: int) -> str:
    return f", {runs} of which did not arrive" if runs else ""


def _interval(one: Mapping[str, Any]) -> str:
    return "" if one["low"] is None else f"{one['low']:.2f} to {one['high']:.2f}"


def _in_brackets(one: Mapping[str, Any]) -> str:
    return f" ({_interval(one)})" if _interval(one) else ""


def _ways(ways: Iterable[Mapping[str, Any] | None]) -> str:
    """Percent."""
    return ", ".join(str(round(100 * one["value"])) for one in ways if one) + " %"


def _with_seeds(one: Mapping[str, Any] | None) -> str:
    if one is None:
        return NOT_MEASURED
    seeds = "one seed" if one["seeds"] == 1 else f"{one['seeds']} seeds"
    if one["low"] is None:
        return f"{one['value']:.2f} ({seeds})"
    if one["high"] - one["low"] < SAME_RUNS * one["value"]:
        return f"{one['value']:.2f} (by the clock)"
    return f"{one['value']:.2f} ({_interval(one)}; {seeds})"
