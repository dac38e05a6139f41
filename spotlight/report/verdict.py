"""Whether exploration paid: by the interval of how much wider the rewards of the kept seeds spread
than those of random seeds, never by its middle alone; and one sentence that says so.

The ratio is one of root mean squares, over all groups of random seeds of a run and the kept groups
beside them. Its interval is Student's t on the logarithm, with the error of a jackknife that leaves
out a block of successive iterations at a time: prompts come again, and the policy drifts. Few
groups often have most of the squares, where rewards are pass or fail and most groups have none; so
there are only as many degrees of freedom as blocks would have that were all equal and said as much.
In simulations with a known ratio it covers this at least 93 times in 100
(`tests/report/test_verdict.py`).

Pure.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from statistics import variance
from typing import NamedTuple

from spotlight.jobs import JobSpec
from spotlight.policies.money.words import money
from spotlight.record.run_metrics import IterationMetrics
from spotlight.report.formatting import count, number, percent
from spotlight.report.intervals import student_t95
from spotlight.report.run_view import ExplorationPart, Verdict

_FEWEST_BLOCKS = 4
"""Fewer say too little of how they scatter."""


class Measured(NamedTuple):
    """What an iteration tells: sums over its groups of random seeds."""

    kept: float
    """The squared contrasts of the kept seeds of the same prompts."""
    at_random: float
    """The squared contrasts of random seeds."""
    groups: int = 1


class Ratio(NamedTuple):
    """The contrast of kept seeds over that of random ones."""

    times: float
    low: float | None = None
    """The ends of the 95 % interval; None where too little is known."""
    high: float | None = None


def measured(iterations: Iterable[IterationMetrics]) -> list[Measured]:
    """What the iterations of a run tell, without those that have no random seeds."""
    return [told for one in iterations if (told := _measured(one)) is not None]


def _measured(one: IterationMetrics) -> Measured | None:
    kept = one.contrast if one.contrast_beside_random is None else one.contrast_beside_random
    if kept is None or one.contrast_at_random is None:
        return None
    groups = max(1, one.random_groups)  # older versions did not count them
    told = Measured(groups * kept**2, groups * one.contrast_at_random**2, groups)
    return told if math.isfinite(told.kept) and math.isfinite(told.at_random) else None


def contrast_ratio(told: Sequence[Measured]) -> Ratio | None:
    """Of all that was measured, in the order of the iterations; None where random seeds never
    differed in their rewards."""
    kept, at_random = _sums(told)
    if at_random <= 0:
        return None
    times = math.sqrt(kept / at_random)
    blocks = _blocks(told)
    degrees = min(_equal_ones([one.kept for one in blocks]), len(blocks)) - 1
    degrees = min(degrees, _equal_ones([one.at_random for one in blocks]) - 1)
    is_any_dispensable = all(kept > one.kept and at_random > one.at_random for one in blocks)
    if len(blocks) < _FEWEST_BLOCKS or not is_any_dispensable:
        return Ratio(times)
    without_one = [math.log((kept - one.kept) / (at_random - one.at_random)) / 2 for one in blocks]
    scatter = (len(blocks) - 1) ** 2 / len(blocks) * variance(without_one)
    margin = student_t95(max(1.0, degrees)) * math.sqrt(scatter)
    return Ratio(times, times * math.exp(-margin), times * math.exp(margin))


def verdict_of(ratio: Ratio | None) -> Verdict:
    """By the whole interval."""
    if ratio is None or ratio.low is None or ratio.high is None:
        return "not shown"
    if ratio.low > 1:
        return "paid"
    return "did not pay" if ratio.high < 1 else "not shown"


def exploration_of(
    job: JobSpec,
    iterations: Sequence[IterationMetrics],
    seconds_by_state: Mapping[str, float],
    usd: float | None,
) -> ExplorationPart:
    """Whether exploration paid in a run, and what it took.

    Args:
        seconds_by_state: of all spot workers.
        usd: what their exploration cost; None if that is not known.
    """
    if job.exploration.mode == "none":
        return ExplorationPart(verdict="off", sentence="Exploration is off.")
    bill = None if usd is None else money(usd, job.prices.currency)
    told = measured(iterations)
    ratio, groups = contrast_ratio(told), sum(one.groups for one in told)
    verdict = verdict_of(ratio)
    said = (
        _finding(verdict, ratio, groups),
        *_worth(iterations),
        _cost(iterations, seconds_by_state, bill),
        "Contrast is not speed: how much sooner a score is reached was not measured.",
    )
    return ExplorationPart(
        verdict=verdict,
        sentence=" ".join(said),
        times=ratio.times if ratio else None,
        low=ratio.low if ratio else None,
        high=ratio.high if ratio else None,
        groups=groups,
    )


_VERDICTS: dict[Verdict, str] = {
    "paid": "Exploration paid",
    "did not pay": "Exploration did not pay",
    "not shown": "It is not shown that exploration paid",
}


def _finding(verdict: Verdict, ratio: Ratio | None, groups: int) -> str:
    measured_on = count(groups, "group") + " of random seeds"
    if ratio is None:
        why = "whose rewards never differed" if groups else "so far"
        return f"{_VERDICTS[verdict]}: there were {measured_on} {why}."
    spread = f"rewards of kept seeds spread {ratio.times:.2f} times as wide as those of random ones"
    if ratio.low is None or ratio.high is None:
        is_or_are = "is" if groups == 1 else "are"
        return f"{_VERDICTS[verdict]}: {spread}; {measured_on} {is_or_are} too little to tell."
    interval = f"95 % interval {ratio.low:.2f} to {ratio.high:.2f}, from {measured_on}"
    return f"{_VERDICTS[verdict]}: {spread} ({interval})."


def _worth(iterations: Sequence[IterationMetrics]) -> Iterator[str]:
    """What choosing is worth at last, where previews have told."""
    for one in reversed(iterations):
        if one.choice_worth is not None and one.choice_worth_doubled is not None and one.samples:
            previews = one.previews / one.samples
            yield (
                f"By the scores of previews, a sample that is chosen from {previews:.2g} teaches"
                f" {one.choice_worth:.2g} times as much as a random one, and from twice as many it"
                f" would {one.choice_worth_doubled:.2g} times."
            )
            return


def _cost(
    iterations: Iterable[IterationMetrics],
    seconds_by_state: Mapping[str, float],
    bill: str | None,
) -> str:
    """What exploration took of spot time, and how much of it was in vain."""
    total, took = sum(seconds_by_state.values()), []
    if total > 0:
        took.append(f"{percent(seconds_by_state.get('explore', 0.0) / total)} of spot time")
    if bill is not None:
        took.append(bill)
    counts = [(one.previews, one.previews_late) for one in iterations]
    in_time, late = (sum(each) for each in zip(*counts, strict=True)) if counts else (0, 0)
    came_late = f"{number(late)} of {count(in_time + late, 'preview')} came too late"
    return f"It took {' and '.join(took)}; {came_late}." if took else f"{came_late}."


def _sums(told: Iterable[Measured]) -> tuple[float, float]:
    told = list(told)
    return math.fsum(one.kept for one in told), math.fsum(one.at_random for one in told)


def _blocks(told: Sequence[Measured]) -> list[Measured]:
    """Successive iterations together: as many as the cube root of all, as is usual for what is
    correlated from one to the next."""
    blocks = max(1, len(told) // max(1, int(len(told) ** (1 / 3) + 1e-9)))
    edges = [round(block * len(told) / blocks) for block in range(blocks + 1)]
    return [Measured(*_sums(told[start:end])) for start, end in pairwise(edges)]


def _equal_ones(values: Sequence[float]) -> float:
    """How many equal numbers scatter as little as these (Kish's effective sample size)."""
    squares = math.fsum(value * value for value in values)
    return math.fsum(values) ** 2 / squares if squares > 0 else 0.0
