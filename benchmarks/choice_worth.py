"""What a choice among previews is worth, as a run estimates it and by brute force:
`python -m benchmarks.choice_worth --json`.

The worth is the mean variance of the K of nK rewards of a prompt that vary most, over that of K
random ones. Brute force draws many sets of previews and takes the best split of each; estimates are
those of `choice_worth`. Rewards are the tables of real ones (`reward_tables/`), and made up:
`pass_half` passes half of the time, `pass_beta` at rates from hopeless to solved (Beta(.6, .4)),
`normal` is normally distributed, and `rare` has two values and, once in 33 times, one far off.

`NAME_kK` has, for n = 2, 4 and 8, a row each: brute force; the estimate from 64 scores of every
prompt; the mean of runs of 40 iterations with four prompts and four previews for each sample, which
say n = 8 without having seen it; and the standard deviation of the latter.

`error_most` is the largest relative error of estimates from 64 scores, `error_of_runs_most` of the
mean of runs at what they have seen, and `error_beyond_least` and `error_beyond_most` are the errors
at n = 8; `cost_ms` is what an iteration of 48 prompts costs, of which 24 of 96 are kept.
"""

from __future__ import annotations

import json
import random
import statistics
import time
from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt

from benchmarks.exploration_tables import TABLES
from benchmarks.report import Report
from spotlight.policies.exploration.choice_worth import ChoiceWorth, choice_worth

Rewards = npt.NDArray[np.float64]
Draw = Callable[[np.random.Generator, int, int], Rewards]
"""Rewards [prompts, previews], all of them drawn anew."""

KEPT = (4, 8)
PREVIEWS = (2, 4, 8)
SEEN = 4
"""Previews for each sample in a run."""
PROMPTS = 4
ITERATIONS = 40
SCORES = 64


def main() -> None:
    """Measure and print."""
    report = Report("choice_worth", __doc__, minutes=1)
    report.begin()
    sets, runs = report.times(40_000, quick=400), report.times(20, quick=1)
    errors: list[list[float]] = []
    for name, prompts, draw in _rewards():
        for keep in KEPT:
            rows = _worths(draw, prompts, keep, sets, runs)
            report.add({f"{name}_k{keep}": [[round(x, 2) for x in row] for row in rows]})
            true, at_once, of_runs, _ = rows
            here = [found / right - 1 for found, right in zip(at_once, true, strict=True)]
            errors.append([*here, *(f / r - 1 for f, r in zip(of_runs, true, strict=True))])
    report.add(
        {
            "error_most": round(max(abs(x) for row in errors for x in row[:3]), 3),
            "error_of_runs_most": round(max(abs(x) for row in errors for x in row[3:5]), 3),
            "error_beyond_least": round(min(row[5] for row in errors), 3),
            "error_beyond_most": round(max(row[5] for row in errors), 3),
            "cost_ms": round(_cost_ms(), 1),
        }
    )
    report.finish()


def _rewards() -> Iterator[tuple[str, int, Draw]]:
    """Each with the number of prompts that tell of it at once."""
    for path in sorted(TABLES.glob("*.json")):
        table = np.array(json.loads(path.read_text()))
        yield path.stem.replace("-", "_"), len(table), _of_table(table)
    yield "pass_half", 32, lambda rng, *shape: (rng.random(shape) < 0.5).astype(float)
    yield "pass_beta", 256, _pass_beta
    yield "normal", 32, lambda rng, *shape: rng.normal(size=shape)
    yield "rare", 256, _rare


def _of_table(table: Rewards) -> Draw:
    """Prompts in turn, from a random one on, and any seeds of each."""

    def draw(rng: np.random.Generator, prompts: int, previews: int) -> Rewards:
        first = rng.integers(len(table))
        rows = table[(first + np.arange(prompts)) % len(table)]
        return rng.permuted(rows, axis=1)[:, :previews]

    return draw


def _pass_beta(rng: np.random.Generator, prompts: int, previews: int) -> Rewards:
    return (rng.random((prompts, previews)) < rng.beta(0.6, 0.4, (prompts, 1))).astype(float)


def _rare(rng: np.random.Generator, prompts: int, previews: int) -> Rewards:
    usual = 0.3 * (rng.random((prompts, previews)) < 0.5)
    return np.where(rng.random((prompts, previews)) < 0.03, 1.0, usual)


def _worths(draw: Draw, prompts: int, keep: int, sets: int, runs: int) -> list[list[float]]:
    """The rows of the module's docstring."""
    rng = np.random.default_rng(keep)
    times = -(-sets // prompts) * prompts
    at_random = _best(draw(rng, 4 * times, keep), keep)
    true = [_best(draw(rng, times, n * keep), keep) / at_random for n in PREVIEWS]
    at_once = choice_worth(draw(rng, prompts, SCORES).tolist(), keep, random.Random(0))
    of_runs = [_at_previews(_run(draw, keep, seed)) for seed in range(runs)]
    columns = [*zip(*of_runs, strict=True)]
    return [
        true,
        _at_previews(at_once),
        [statistics.fmean(column) for column in columns],
        [statistics.pstdev(column) for column in columns],
    ]


def _best(rewards: Rewards, keep: int) -> float:
    """The mean over the rows of the largest variance of so many of the lowest and highest."""
    ordered = np.sort(rewards, axis=1)
    last = ordered.shape[1] - keep
    splits = [[*range(low), *range(last + low, last + keep)] for low in range(keep + 1)]
    return float(np.max([ordered[:, split].var(axis=1) for split in splits], axis=0).mean())


def _run(draw: Draw, keep: int, seed: int) -> ChoiceWorth:
    rng, order, found = np.random.default_rng(seed), random.Random(seed), ChoiceWorth()
    for _ in range(ITERATIONS):
        groups = draw(rng, PROMPTS, SEEN * keep).tolist()
        found = found.faded() + choice_worth(groups, keep, order)
    return found


def _at_previews(worth: ChoiceWorth) -> list[float]:
    return [*map(worth.curve(), PREVIEWS)]


def _cost_ms() -> float:
    groups = np.random.default_rng(0).random((48, 96)).tolist()
    began = time.perf_counter()
    choice_worth(groups, 24, random.Random(0))
    return 1000 * (time.perf_counter() - began)


if __name__ == "__main__":
    main()
