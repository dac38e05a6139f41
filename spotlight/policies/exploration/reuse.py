"""Training on previews that were made with the weights before: whether they may be, and how long it
pays to wait for those that are still in work.

DiffusionNFT needs no likelihood: the policy that sampled only says where clean latents came from.
Losses that replay the sampler's noisy steps weigh each by how probable the newest weights find it,
with a weight that is nearly 1 always. The further the weights have moved, the less the samples say
of them, whatever the loss; so what protects training is the bound on drift.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

MOST_DRIFT = 0.05
"""The most drift of the squared velocity. An update of the example moves it by 0.0005 to 0.005;
where it moves by more than this, samples of one iteration ago are no better than random ones."""

_SLACK = 0.05
"""The share of the iteration's time by which previews come later than they are expected."""
_LEAST_S = 1e-3


def may_reuse(drift: float | None) -> bool:
    """Whether the weights have moved little enough since the previews.

    Args:
        drift: mean squared difference of the velocities of the old and the new weights, divided by
            the mean square of the old ones; None if it is not known.
    """
    return drift is not None and drift <= MOST_DRIFT  # false of NaN as well


def rewards_to_train_on(drawn: Sequence[float], noisy: Sequence[bool]) -> tuple[float, ...]:
    """Of a preview that was chosen. Noise that helped it to be chosen is no part of them: a noisy
    reward is the second one that was drawn.

    Args:
        drawn: the rewards that it was chosen by, and behind them the second ones of those that are
            noisy.
        noisy: whether each reward is.
    """
    first, again = drawn[: len(noisy)], iter(drawn[len(noisy) :])
    pairs = zip(first, noisy, strict=True)
    return tuple(next(again) if is_noisy else reward for reward, is_noisy in pairs)


class Patience(NamedTuple):
    """How long to wait for previews that are in work."""

    scored: int = 0
    """No longer than until so many are there."""
    limit_s: float = 0.0
    """Seconds from now on."""


NONE = Patience()


def patience(
    kept: int,
    whole: int,
    scored: int,
    arrivals: Iterable[tuple[float, int]],
    iteration_s: float,
    worth: Callable[[float], float],
) -> Patience:
    """How long training should wait for previews: until what an iteration teaches per second is
    greatest, or a little longer where they come later than expected.

    Args:
        kept: samples of an iteration.
        whole: previews with which all prompt groups are whole, as they grow alike; groups that are
            not whole have to be denoised again.
        scored: previews so far.
        arrivals: in how many seconds how many more will be there. None is waited for longer than
            the iteration has taken.
        iteration_s: how long the iteration has taken so far.
        worth: how many times as much as a random sample one teaches that is chosen of so many
            previews; `ChoiceWorth.curve` is what the run has told of it.
    """
    iteration_s = max(iteration_s, _LEAST_S)
    taught = worth(scored / kept) if scored >= whole else scored / whole
    best, found = taught / iteration_s, NONE
    for in_s, previews in sorted(arrivals):
        scored += previews
        if scored < whole or in_s > iteration_s:
            continue
        rate = worth(scored / kept) / (iteration_s + in_s)
        if rate > best:
            best, found = rate, Patience(scored, in_s + _SLACK * iteration_s)
    return found
