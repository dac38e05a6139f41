"""Whether one more spot node is worth its price, by what the run itself has measured.

The model. Learning by a kept sample grows with the variance of the rewards within its prompt group,
and choosing from n previews for each kept sample multiplies that by c(n): the square of the
contrast that was measured at the run's own n, and from there in the shape that the scores of its
previews have (`ChoiceWorth`). A further node makes the more previews, in proportion
to its GPUs, up to `exploration.candidates`, and shortens rollouts of which it gets its share.
Training takes as long as before. So

    speed = c(n) / (time of an iteration),   worth it if   speed' / speed > price' / price.

It says nothing where exploration does not fill the time of training, nor where rollouts take longer
than training: there it was found to be a third too kind. What is lost to starting and to losses is
a share of all spot time, which a further node loses, too. Contrast is not speed: what is said is an
estimate. Pure.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from spotlight.policies.money.words import money

Worth = Literal["worth it", "not shown", "not worth it", "cannot be said"]
_LEAST_PREVIEWS = 1.5
"""Fewer for a sample leave too little choice to tell what more would add."""
_WITHIN = 0.98
"""A sample with this share of the previews that it may have has all of them."""


@dataclass(frozen=True, kw_only=True)
class Measured:
    """What a run has measured lately, means over iterations."""

    reserved_gpus: float
    spot_gpus: float
    node_gpus: float
    """GPUs of a spot node."""
    reserved_price: float | None
    """The price of a GPU for an hour; None if it is not known."""
    spot_price: float | None
    iteration_s: float
    rollout_s: float
    """How much of that nothing was trained in, and rolled out."""
    train_s: float
    previews_per_sample: float
    most_previews: float
    """The job allows so many for each sample."""
    contrast: tuple[float, float] | None
    """The ends of the 95 % interval of the contrast of the kept seeds over that of random ones;
    None before it is known."""
    doubling: float | None
    """Twice as many previews would add so many times what choosing gains now, by the run's own
    scores; None before that is known."""
    useful_share: float
    """The share of paid spot time that was not lost to starting, loading, leaving and losses."""
    explores: Literal["in training time", "never", "otherwise"]
    spot_share_of_previews: float = 1.0
    currency: str = "USD"


@dataclass(frozen=True)
class Advice:
    """Whether it is worth it, and why."""

    worth: Worth
    sentence: str


def advise(run: Measured) -> Advice:
    """Whether one more spot node is worth its price."""
    if reason := _why_silent(run):
        return Advice(
            "cannot be said", f"Whether one more spot node is worth it cannot be said: {reason}."
        )
    assert run.reserved_price is not None and run.spot_price is not None
    now = run.reserved_gpus * run.reserved_price + run.spot_gpus * run.spot_price
    more = run.node_gpus * run.spot_price
    faster = [_faster(run, worth) - 1 for worth in _worths(run)]
    low, high = min(faster), max(faster)
    dearer = more / now if now else 0.0
    worth: Worth = "worth it" if low > dearer else "not worth it" if high < dearer else "not shown"
    return Advice(worth, _sentence(run, more, dearer, low, high, worth))


def _why_silent(run: Measured) -> str:
    if run.reserved_price is None or run.spot_price is None:
        return "not all GPUs have a price"
    if run.spot_gpus <= 0 or run.node_gpus <= 0:
        return "there is no spot node now from which to tell"
    if run.iteration_s <= 0 or run.train_s <= 0:
        return "no iteration is over yet"
    if run.explores == "otherwise":
        return "exploration does not fill the time of training, so another node makes no more of it"
    gpus = run.reserved_gpus + run.spot_gpus
    if run.rollout_s * gpus > run.train_s * run.reserved_gpus:
        return "rollouts take more GPU time than training, where the model does not hold"
    if run.explores == "never":
        return ""
    if run.contrast is None:
        return "what choosing gains is not known with an interval yet"
    if run.doubling is None:
        return "what more previews would gain is not known yet"
    if run.previews_per_sample < _LEAST_PREVIEWS:
        return f"there are fewer than {_LEAST_PREVIEWS:g} previews for each sample"
    return ""


def _worths(run: Measured) -> tuple[float, ...]:
    """c of the model now, at both ends of the interval of what the run has measured."""
    if run.explores == "never" or run.contrast is None:
        return (1.0,)
    return tuple(end**2 for end in run.contrast)


def _faster(run: Measured, worth: float) -> float:
    """How many times as fast the run learns with one more node."""
    gpus = run.reserved_gpus + run.spot_gpus
    shorter = run.rollout_s * (1 - gpus / (gpus + run.node_gpus))
    times = run.iteration_s / (run.iteration_s - shorter)
    if run.explores == "never":
        return times
    assert run.doubling is not None
    doublings = math.log2(_previews_after(run) / run.previews_per_sample)
    return max(times * (worth + (worth - 1) * run.doubling * doublings) / worth, 0.0)


def _previews_after(run: Measured) -> float:
    now = run.previews_per_sample
    if now >= _WITHIN * run.most_previews:
        return now
    growth = 1 + run.spot_share_of_previews * run.node_gpus / run.spot_gpus
    return min(now * growth, run.most_previews)


def _sentence(
    run: Measured, more: float, dearer: float, low: float, high: float, worth: Worth
) -> str:
    gpus = f" ({run.node_gpus:g} GPUs)" if run.node_gpus != 1 else ""
    gain = f"{low:.1%}" if high - low < 0.0005 else f"{low:.1%} to {high:.1%}"
    why = ""
    if run.explores != "never":
        after, now = _previews_after(run), run.previews_per_sample
        why = (
            f", with {after:.2g} instead of {now:.2g} previews a sample"
            if after > now
            else ", with no more previews, as these are all that the job allows"
        )
    return (
        f"One more spot node{gpus} costs {money(more, run.currency)} an hour, {dearer:.1%} more"
        f" than now, and by what was measured here the run would learn {gain} faster{why}"
        f" ({run.useful_share:.0%} of paid spot time is of use): {worth}."
    )
