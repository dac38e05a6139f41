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

from spotlight.policies.exploration.bandit import BanditPlanner
from spotlight.policies.exploration.contrast import best_contrast
from spotlight.policies.exploration.reward_spread import ContinuousRewards, Evidence, Knowledge

Table = list[list[float]]

TABLES = Path(__file__).parent / "reward_tables"
CELLS = ((4, 2), (8, 2), (4, 4), (8, 4))
"""Kept seeds of a prompt, and candidates for each of them."""

CHUNK = 16
TOGETHER = 1_000
"""Prompts of an iteration: more than a table has."""


def table_figures(shuffles: int) -> dict[str, float]:
    """By table, the mean and the worst ratio of its cells; `contrast_vs_uniform_worst` is the worst
    of all, with its standard error, when all prompts of a table are one iteration;
    `contrast_in_fours_worst` the same when each four are one and knowledge is handed on."""
    figures: dict[str, float] = {}
    worst: list[_Cell] = []
    in_fours: list[_Cell] = []
    for path in sorted(TABLES.glob("*.json")):
        table: Table = json.loads(path.read_text())
        cells = [_cell(table, keep, each, TOGETHER, shuffles) for keep, each in CELLS]
        fours = [_cell(table, keep, each, 4, shuffles // 2) for keep, each in CELLS]
        figures[f"{path.stem}_mean"] = statistics.fmean(cell.ratio for cell in cells)
        figures[f"{path.stem}_worst"] = min(cell.ratio for cell in cells)
        figures[f"{path.stem}_in_fours_mean"] = statistics.fmean(cell.ratio for cell in fours)
        figures[f"{path.stem}_coverage_90"] = statistics.fmean(
            cell.coverage for cell in cells + fours
        )
        worst += cells
        in_fours += fours
    least = min(worst, key=lambda cell: cell.ratio)
    figures["contrast_vs_uniform_worst"] = least.ratio
    figures["contrast_vs_uniform_worst_error"] = least.error
    figures["contrast_vs_uniform_mean"] = statistics.fmean(cell.ratio for cell in worst)
    figures["contrast_in_fours_worst"] = min(cell.ratio for cell in in_fours)
    return {name: round(value, 4) for name, value in figures.items()}


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
    """Of the prompts' standard deviations over all seeds of the table."""


def _cell(table: Table, keep: int, each: int, together: int, shuffles: int) -> _Cell:
    bandit, uniform, covered = [], [], []
    for seed in range(shuffles):
        rng = random.Random(seed)
        rows = [(rng.sample(row, len(row)), statistics.pstdev(row)) for row in table]
        rng.shuffle(rows)
        knowledge = Knowledge()
        bandit.append(0.0)
        for first in range(0, len(rows), together):
            some = rows[first : first + together]
            planner = _planner(seed, first, len(some), keep, keep * each, knowledge)
            drawn = _explore(planner, [row for row, _ in some])
            bandit[-1] += sum(best_contrast(sorted(group), keep) for group in drawn)
            covered += [covers(planner.belief(group), std) for group, (_, std) in enumerate(some)]
            knowledge = knowledge.after(planner.learnt())
        uniform.append(sum(best_contrast(sorted(row[: keep * each]), keep) for row, _ in rows))
    ratio = sum(bandit) / sum(uniform)
    rest = [got - ratio * base for got, base in zip(bandit, uniform, strict=True)]
    error = statistics.stdev(rest) * math.sqrt(shuffles) / sum(uniform)
    return _Cell(ratio, error, sum(covered) / len(covered))


def _planner(
    seed: int, first: int, groups: int, keep: int, candidates: int, knowledge: Knowledge
) -> BanditPlanner:
    """As jobs have it."""
    return BanditPlanner(
        job_seed=seed,
        iteration=first,
        prompts=[f"prompt {first + number}" for number in range(groups)],
        keep=keep,
        candidates=candidates,
        most=2 * candidates,
        rewards=ContinuousRewards((0.0, 1.0)),
        knowledge=knowledge,
    )


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
