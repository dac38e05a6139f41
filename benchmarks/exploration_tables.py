"""What the bandit keeps on tables of real rewards (`reward_tables/`: a row per prompt, a column per
seed), against the same number of previews for every prompt.

Both planners draw from the same rows in the same shuffled order; what counts is the summed contrast
of the seeds that each keeps, and its ratio is that of the sums over many shuffles.
"""

from __future__ import annotations

import json
import math
import random
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import NormalDist

from spotlight.assets import read_prompt_lines
from spotlight.policies.exploration.bandit import BanditPlanner
from spotlight.policies.exploration.contrast import best_contrast
from spotlight.policies.exploration.reward_spread import ContinuousRewards, Evidence, Knowledge
from spotlight.rewards.categories import categories

Table = list[list[float]]

TABLES = Path(__file__).parent / "reward_tables"
TAGGED = {
    "compositional-start": ("compositional-tiny/train", 1),
    "compositional-mixed": ("compositional-tiny/train", 12),
    "compositional-hopeless-mixed": ("compositional-tiny/mixed-train", 5),
    "ocr-mixed": ("ocr-tiny/mixed-train", 8),
}
"""The prompts of tables that have categories, and of how many each row is the first."""
CELLS = ((4, 2), (8, 2), (4, 4), (8, 4), (4, 8))
"""Kept seeds of a prompt, and candidates for each of them."""

POOL = 2
"""Times as many prompts in a pool as are trained on."""

CHUNK = 16
TOGETHER = 1_000
"""Prompts of an iteration: more than a table has."""


def table_figures(shuffles: int) -> dict[str, float]:
    """By table, the mean and the worst ratio of its cells; `contrast_vs_uniform_worst` is the worst
    of all, with its standard error, when all prompts of a table are one iteration, and
    `contrast_vs_uniform_mixed` the mean of the tables of mixed difficulty;
    `contrast_in_fours_worst` is the worst when each four are one and knowledge is handed on, and
    `contrast_from_pool_...` are the same figures when these four may be chosen from twice as many,
    for which there are no more previews."""
    figures: dict[str, float] = {}
    worst: list[_Cell] = []
    mixed: list[_Cell] = []
    in_fours: list[_Cell] = []
    pooled: list[_Cell] = []
    pooled_mixed: list[_Cell] = []
    for path in sorted(TABLES.glob("*.json")):
        table: Table = json.loads(path.read_text())
        kinds, half = _categories(path.stem, len(table)), shuffles // 2
        cells = [_cell(table, kinds, keep, each, TOGETHER, shuffles) for keep, each in CELLS]
        fours = [_cell(table, kinds, keep, each, 4, half) for keep, each in CELLS]
        pools = [_cell(table, kinds, keep, each, 4, half, POOL) for keep, each in CELLS]
        figures[f"{path.stem}_mean"] = statistics.fmean(cell.ratio for cell in cells)
        figures[f"{path.stem}_worst"] = min(cell.ratio for cell in cells)
        figures[f"{path.stem}_in_fours_mean"] = statistics.fmean(cell.ratio for cell in fours)
        figures[f"{path.stem}_from_pool_mean"] = statistics.fmean(cell.ratio for cell in pools)
        figures[f"{path.stem}_coverage_90"] = statistics.fmean(
            cell.coverage for cell in cells + fours
        )
        worst += cells
        in_fours += fours
        pooled += pools
        if "mixed" in path.stem:
            mixed += cells
            pooled_mixed += pools
    least = min(worst, key=lambda cell: cell.ratio)
    figures["contrast_vs_uniform_worst"] = least.ratio
    figures["contrast_vs_uniform_worst_error"] = least.error
    figures["contrast_vs_uniform_mean"] = statistics.fmean(cell.ratio for cell in worst)
    figures["contrast_vs_uniform_mixed"] = statistics.fmean(cell.ratio for cell in mixed)
    figures["contrast_in_fours_worst"] = min(cell.ratio for cell in in_fours)
    figures["contrast_from_pool_worst"] = min(cell.ratio for cell in pooled)
    figures["contrast_from_pool_mixed"] = statistics.fmean(cell.ratio for cell in pooled_mixed)
    return {name: round(value, 4) for name, value in figures.items()}


def _categories(stem: str, rows: int) -> list[str]:
    """Of the prompts of a table, as jobs have them."""
    for name, (prompts, every) in TAGGED.items():
        if stem.startswith(name):
            taken = read_prompt_lines(f"builtin:{prompts}").items[::every][:rows]
            return [*map(categories(taken).__getitem__, (prompt.text for prompt in taken))]
    return [""] * rows


def coverages_of(figures: Mapping[str, float]) -> list[float]:
    """One for each table."""
    return [value for name, value in figures.items() if name.endswith("_coverage_90")]


def covers(belief: Evidence, std: float) -> bool:
    """Whether the central 90 % interval of a belief about a standard deviation holds this one
    (the chi-square quantiles are those of Wilson and Hilferty, close from a count of 3 on)."""
    if belief.count <= 0:
        return False
    share = 2 / (9 * belief.count)
    error = NormalDist().inv_cdf(0.95) * math.sqrt(share)
    low, high = (belief.count * max(0.0, 1 - share + sign * error) ** 3 for sign in (-1, 1))
    return belief.total <= std * std * high and std * std * low <= belief.total


@dataclass(frozen=True)
class _Cell:
    ratio: float
    """Contrast of the bandit over that of uniform previews."""
    error: float
    """Standard error of the ratio, paired over shuffles."""
    coverage: float
    """The coverage of the prompts' standard deviations over all seeds of the table."""


def _cell(
    table: Table,
    kinds: Sequence[str],
    keep: int,
    each: int,
    together: int,
    shuffles: int,
    pool: int = 1,
) -> _Cell:
    """Of a pool the prompts count that contrast most; uniform previews are those of the first."""
    bandit, uniform, covered = [], [], []
    for seed in range(shuffles):
        rng = random.Random(seed)
        rows = [
            (rng.sample(row, len(row)), statistics.pstdev(row), tag)
            for row, tag in zip(table, kinds, strict=True)
        ]
        rng.shuffle(rows)
        knowledge = Knowledge()
        bandit.append(0.0)
        uniform.append(0.0)
        size = min(together * pool, len(rows))
        for first in range(0, len(rows), size):
            some = rows[first : first + size]
            trained = len(some) // pool
            planner = BanditPlanner(  # as jobs have it
                job_seed=seed,
                iteration=first,
                prompts=[f"prompt {first + number}" for number in range(len(some))],
                keep=keep,
                candidates=keep * each * trained // len(some),
                most=2 * keep * each,
                trained=trained,
                rewards=ContinuousRewards((0.0, 1.0)),
                categories=[tag for _, _, tag in some],
                knowledge=knowledge,
            )
            drawn = _explore(planner, [row for row, _, _ in some])
            whole = [best_contrast(sorted(row), keep) for row in drawn if len(row) >= keep]
            bandit[-1] += sum(sorted(whole)[-trained:])
            taken = [sorted(row[: keep * each]) for row, _, _ in some[:trained]]
            uniform[-1] += sum(best_contrast(row, keep) for row in taken)
            covered += [
                covers(planner.belief(group), std) for group, (_, std, _) in enumerate(some)
            ]
            knowledge = knowledge.after(planner.learnt())
    ratio = sum(bandit) / sum(uniform)
    rest = [got - ratio * base for got, base in zip(bandit, uniform, strict=True)]
    error = statistics.stdev(rest) * math.sqrt(shuffles) / sum(uniform)
    return _Cell(ratio, error, sum(covered) / len(covered))


def _explore(planner: BanditPlanner, rows: Sequence[Sequence[float]]) -> list[list[float]]:
    """What was drawn of every row; a chunk is scored while the next is already planned."""
    drawn: list[list[float]] = [[] for _ in rows]
    size = min(CHUNK, 2 * len(rows))
    awaited = planner.next_chunk(size)
    while awaited:
        following = planner.next_chunk(size)
        for candidate in awaited:
            group = drawn[candidate.group]
            group.append(rows[candidate.group][len(group)])
            planner.record(candidate, group[-1])
        awaited = following or planner.next_chunk(size)
    return drawn
