"""How much to spend on a preview and on a prompt: a slow bandit over iterations.

Few steps and many candidates, or more steps that rank better? Many candidates of few prompts, or
the other way round? Each iteration one of a few efforts is tried, and what it earned is the
contrast of the samples that were then trained on: exploration takes the time that training leaves,
whatever the effort. Discounted UCB (Garivier and Moulines, arXiv 0805.3415) follows a reward that
drifts with the policy. Deterministic: nothing is drawn, and the state is plain numbers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

DISCOUNT = 0.98
"""What an iteration still counts when the next has ended: the memory is about 50 iterations."""

EXPLORATION = 0.5
"""xi of the paper."""


@dataclass(frozen=True)
class Effort:
    """How previews are made in an iteration: denoising steps of each, and over how many times the
    prompts of an iteration they are spread; the more prompts, the fewer candidates of each."""

    preview_steps: int
    prompt_pool: int


@dataclass(frozen=True)
class EffortTrials:
    """What is remembered of one effort: discounted sums over the iterations that used it."""

    count: float = 0.0
    total: float = 0.0
    squares: float = 0.0

    def faded(self) -> EffortTrials:
        """One iteration later."""
        return EffortTrials(self.count * DISCOUNT, self.total * DISCOUNT, self.squares * DISCOUNT)

    def with_earnings(self, earned: float) -> EffortTrials:
        """With one more iteration."""
        return EffortTrials(self.count + 1, self.total + earned, self.squares + earned * earned)


@dataclass(frozen=True)
class EffortRecord:
    """What is remembered of all efforts, in their order; for the caller to keep."""

    trials: tuple[EffortTrials, ...]

    def after(self, effort: int, contrast: float) -> EffortRecord:
        """The record after an iteration that used the effort with this index.

        Raises `ValueError` unless the contrast is finite and at least 0, and there is such an
        effort.
        """
        if not 0 <= effort < len(self.trials):
            raise ValueError(f"effort must be one of {len(self.trials)}, not {effort}")
        if not 0 <= contrast < math.inf:
            raise ValueError(f"contrast must be finite and at least 0, not {contrast}")
        faded = [trial.faded() for trial in self.trials]
        faded[effort] = faded[effort].with_earnings(contrast)
        return EffortRecord(tuple(faded))


def new_record(efforts: Sequence[Effort]) -> EffortRecord:
    """Nothing is known yet."""
    return EffortRecord((EffortTrials(),) * len(efforts))


def choose_effort(efforts: Sequence[Effort], record: EffortRecord) -> int:
    """The index of the effort for the next iteration: each once, in order, then the one with the
    greatest upper confidence bound; the first of equals.

    An effort's bound is its mean earnings + B sqrt(xi log(n) / n_effort); the n are discounted
    counts. B, the range of what can be earned, is not known: the standard deviation of all that is
    remembered takes its place, so neither the unit nor the level of the earnings matters.

    Raises `ValueError` when there is no effort, or the record is of other efforts.
    """
    if not efforts or len(efforts) != len(record.trials):
        raise ValueError(f"{len(efforts)} efforts, but a record of {len(record.trials)}")
    trials = record.trials
    for index, trial in enumerate(trials):
        if trial.count == 0:
            return index
    count = math.fsum(trial.count for trial in trials)
    mean = math.fsum(trial.total for trial in trials) / count
    variance = math.fsum(trial.squares for trial in trials) / count - mean * mean
    surprise = EXPLORATION * max(0.0, variance) * math.log(max(1.0, count))
    bounds = [trial.total / trial.count + math.sqrt(surprise / trial.count) for trial in trials]
    return bounds.index(max(bounds))
