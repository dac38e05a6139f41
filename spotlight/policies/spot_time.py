"""How the time of spot workers is shared: how many of them compute gradients at the same time while
the others preview candidates, and how many previews an iteration is worth.

What an iteration teaches grows with the variance of the rewards that it trains on. Choosing among n
previews for each sample multiplies that by c(n), which grows ever more slowly; what previews
of fewer steps or older weights promise comes true by the square of their agreement a with the
samples, so that 1 + (c(n) - 1) a^2 is left. The plan is the one by which an iteration teaches most
per second,

    (1 + (c(n) - 1) a^2) / (training + waiting + denoising that nothing runs beside).

- *Training.* Every rank computes the slices of its share in order, and others take them from the
  last one backwards. With k ranks and g others, whose first gradient comes a way down and a way up
  later, an update is over at the least x for which the slices that ranks have done by x, and those
  that have come by x, are all of them.
- *Previews.* Workers that compute no gradients make them beside training, after the evaluations
  that wait. Where more are worth it, training waits, and all GPUs make them, those of ranks too.
- *Never late.* Slices are given away only if the first gradient of an update comes no later than a
  rank would have all of its own: weights down, computing and gradient up against its slices.

Without links, losses and the grain of slices, k GPUs that train and h others teach as k + h GPUs do
of which all train and choose.

Pure. Invariants: a plan stays until another one would teach `MARGIN` more per second, so that it
does not swing with measurements; what would come late is not granted, whatever was planned before;
and a plan counts on no more workers than there are.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

MARGIN = 0.05
"""How much more another plan has to teach per second before it takes the place of the one before.
Measured seconds differ by some per cent from one iteration to the next."""
EARLY = 0.8
"""Slices that were not granted before are granted when a gradient would come after this share of
the time that a rank takes for all of its slices, not before: a link at the edge would have them
granted and not granted in turns."""
MOST_GRADIENT_BYTES = 10 * 10**9
"""No slice is given away whose gradient is larger. Ranks add gradients in order and others begin
with the last slice, so that all that come from others lie in the memory of the rank's node until
the rank is there."""
KEPT_GRADIENTS = 4
"""How many gradients of a worker stay in the store of its node: ranks have to fetch them by then.
"""
WORTH_WAITING = 1.1
"""Training waits for previews only where an iteration teaches so many times as much per second, or
where previews are the samples and not even one for each would be there. On simulated clusters,
waiting gained nothing where the plan promised less."""
_ALIKE = 0.005
"""Plans that differ by less than this share are as good; that with the fewest gradients on links
is taken."""
_CALM = 0.02
"""The share of what is taught per second that the same number of previews as before may cost."""
_FINER = 1.04
"""The ratio of the numbers of previews that are tried."""
_MOST_PREVIEWS = 256.0
"""The most previews for each sample that are tried; what more are worth nobody knows."""
_HOPELESS = 0.9
"""A number of previews that teaches less than this share of the best one that is waited for ends
the search."""
_ROUNDING = 1e-9
"""Slices: an event at whose very time one looks has been."""


@dataclass(frozen=True, kw_only=True)
class GradientWork:
    """The gradients of an iteration, and what it takes to have others compute some of them."""

    ranks: int
    updates: int
    """Updates of the weights in an iteration."""
    slices: int
    """Parts of a rank's share of an update."""
    rank_slice_s: float
    """Seconds of a slice on a rank."""
    worker_slice_s: float | None
    """Seconds of a slice on another worker; None before any was measured, and then it is taken
    to be as fast as a rank."""
    gradient_bytes: int
    """Bytes of the gradient of a slice."""
    weights_bytes: int
    """Bytes that a worker fetches before its first slice of an update."""
    up_bytes_per_s: float | None
    """The speed that was measured from other workers to the ranks; None before, and then the way up
    is taken to be as fast as the way down."""
    down_bytes_per_s: float | None
    """The speed that was measured at which one of several workers gets weights; None before."""
    receivers: int = 1
    """How many take gradients at the same time, each at the speed that was measured while others
    took some, too."""
    may_be_given_away: bool = True
    """Whether this job's gradients may be computed by others at all."""

    def __post_init__(self) -> None:
        _check_counts(self, "ranks", "updates", "slices", "receivers")
        _check_amounts(self, "rank_slice_s", "worker_slice_s", above_zero=True)
        _check_amounts(self, "gradient_bytes", "weights_bytes")
        _check_amounts(self, "up_bytes_per_s", "down_bytes_per_s", above_zero=True)

    @property
    def in_an_update(self) -> int:
        """Slices of all ranks in an update."""
        return self.ranks * self.slices

    def away_s(self, *, has_weights: bool = False) -> float:
        """Seconds from giving a slice away until its gradient is there; infinite while no link was
        measured.

        Args:
            has_weights: whether the worker has the weights of this update already.
        """
        down = 0.0 if has_weights else self._down_s
        return down + self._worker_s + self._up_s

    def comes_in_time(self, left: int, *, has_weights: bool = False) -> bool:
        """Whether the last slice of a rank may be given away: its gradient would come no later than
        the rank would have computed it, and is not too large.

        Args:
            left: slices that the rank has not done, that one included; one in work counts whole.
            has_weights: whether the worker has the weights of this update already.
        """
        if not self.may_be_given_away or self.gradient_bytes > MOST_GRADIENT_BYTES:
            return False
        return self.away_s(has_weights=has_weights) <= left * self.rank_slice_s

    def update_s(self, workers: int) -> float:
        """Seconds until all gradients of an update are there, with so many other workers.

        The last event that is needed is a slice that ranks have done, or one that has come, limited
        by the workers or by those who take them: the first that is enough of each kind.
        """
        alone, first_s, up_s = self.slices * self.rank_slice_s, self.away_s(), self._up_s
        if workers <= 0 or first_s > alone:
            return alone
        each_s, wanted = max(self._worker_s, up_s), self.ranks * self.slices

        def are_there(at_s: float) -> bool:
            done, came = self.ranks * _times(at_s, self.rank_slice_s), 0
            if at_s >= first_s:
                came = workers * (_times(at_s - first_s, each_s) + 1)
                if up_s > 0:
                    came = min(came, self.receivers * (_times(at_s - first_s, up_s) + 1))
            return done + came >= wanted

        def least_s(start_s: float, step_s: float) -> float:
            most = math.ceil(alone / step_s) + 1
            number = bisect_left(range(most), True, key=lambda i: are_there(start_s + i * step_s))
            return start_s + number * step_s

        kinds = [(0.0, self.rank_slice_s), (first_s, each_s)] + [(first_s, up_s)] * (up_s > 0)
        return min(alone, *(least_s(*kind) for kind in kinds))

    @property
    def _worker_s(self) -> float:
        return self.rank_slice_s if self.worker_slice_s is None else self.worker_slice_s

    @property
    def _down_s(self) -> float:
        speed = self.down_bytes_per_s
        return math.inf if speed is None else self.weights_bytes / speed

    @property
    def _up_s(self) -> float:
        speed = self.up_bytes_per_s or self.down_bytes_per_s
        return math.inf if speed is None else self.gradient_bytes / speed


Samples = Literal["previews", "finished", "regenerated", "fresh"]
"""What an iteration trains on: the chosen previews themselves; chosen seeds of cheap previews that
are denoised in full beside training, with the weights of the previews; chosen seeds that are
denoised with the newest weights, which training waits for; or chosen previews of the newest
weights, for which training waits as well, so that nothing is previewed beside it."""


@dataclass(frozen=True, kw_only=True)
class SpotWork:
    """What there is to do in an iteration, what it takes, and who is there."""

    gradients: GradientWork
    """What training takes, and who may help with it."""
    spot_workers: int
    """Spot workers that are there."""
    idle_workers: int = 0
    """Reserved workers that are there and no ranks."""
    able_workers: int | None = None
    """How many of all these may compute gradients, since they are of the ranks' kind of device;
    None if all may."""
    samples: int
    """Samples that an iteration trains on."""
    samples_from: Samples = "previews"
    preview_s: float
    """Seconds that a worker takes for a preview and its score."""
    finish_s: float = 0.0
    """Seconds that a worker takes to denoise and score a chosen seed again; 0 where previews are
    the samples."""
    evaluation_s: float = 0.0
    """Seconds of one worker for the evaluations of an iteration, which go before its previews."""
    other_s: float = 0.0
    """Seconds of an iteration in which ranks neither compute gradients nor wait for samples:
    optimizer steps, and publications that training waits for."""
    least_previews: float = 0.0
    """How many previews for each sample are made in any case, and training waits for them. Where
    samples are previews it is one at least."""
    most_previews: float = math.inf
    """How many previews for each sample the job makes at most."""
    gain: Callable[[float], float]
    """c(n): how many times as much a sample teaches that is one of n, of which the best are kept,
    as a random one. It does not fall, and c(1) is 1."""
    agreement: float = 1.0
    """The correlation, from 0 to 1, of previews with the samples that come of them. It does not
    matter where previews are the samples."""

    def __post_init__(self) -> None:
        _check_counts(self, "samples")
        _check_amounts(self, "spot_workers", "idle_workers", "able_workers")
        _check_amounts(self, "preview_s", above_zero=True)
        _check_amounts(self, "finish_s", "evaluation_s", "other_s")
        _check_amounts(self, "least_previews")
        if not self.most_previews >= self.least_previews:
            least, most = self.least_previews, self.most_previews
            raise ValueError(f"most_previews: expected {least} at least, not {most!r}")
        if not 0 <= self.agreement <= 1:
            raise ValueError(f"agreement: expected a number from 0 to 1, not {self.agreement!r}")

    @property
    def workers(self) -> int:
        """All that are no ranks."""
        return self.spot_workers + self.idle_workers

    def taught(self, previews: float) -> float:
        """How many times as much a chosen sample teaches as a random one."""
        agreement = 1.0 if self.samples_from == "previews" else self.agreement
        gain = self.gain(previews) if previews > 1 else 1.0
        return 1 + (max(gain, 1.0) - 1) * agreement**2


@dataclass(frozen=True)
class SpotPlan:
    """How the time of spot workers is shared until the next plan."""

    gradient_workers: int
    """How many workers compute gradients at the same time, reserved ones that are idle first. The
    others preview, and finish chosen seeds."""
    previews: float
    """How many previews for each sample are worth making."""
    waited_for: float
    """How many of them training should wait for, if they are not there when it ends; 0 where those
    that fit beside it are nearly as good."""
    grants_slices: bool
    """Whether a gradient would come in time at all."""
    iteration_s: float
    """Seconds that an iteration is expected to take."""
    why: str
    """One line for people."""


def plan_spot_time(work: SpotWork, before: SpotPlan | None = None) -> SpotPlan:
    """What teaches most per second, or the plan before as long as that is nearly as good.

    It looks at every number of workers up to the slices of an update, and for each at a few dozen
    numbers of previews.

    Args:
        work: what there is to do, as measured lately.
        before: the plan that holds now.
    """
    grants = _grants(work, before)
    able = work.workers if work.able_workers is None else min(work.able_workers, work.workers)
    most = min(able, work.gradients.in_an_update) if grants else 0
    sides = _sides(work, most)
    shares = [side.best() for side in sides]
    best = max(share.speed for share in shares)
    share = next(share for share in shares if share.speed >= (1 - _ALIKE) * best)
    if before is not None and before.gradient_workers <= most:
        share = _calm(_Side(work, before.gradient_workers), share, before.previews)
    side = _Side(work, share.workers)
    lacks_samples = work.samples_from == "previews" and side.fit < 1
    is_patient = lacks_samples or share.speed > WORTH_WAITING * side.share(0.0).speed
    return SpotPlan(
        gradient_workers=share.workers,
        previews=share.previews,
        waited_for=share.previews if is_patient else 0.0,
        grants_slices=grants,
        iteration_s=share.iteration_s,
        why=_why(work, share, grants),
    )


class _Share(NamedTuple):
    """One way to share the time."""

    workers: int
    """Workers that compute gradients."""
    previews: float
    iteration_s: float
    speed: float
    """What is taught per second."""


def _grants(work: SpotWork, before: SpotPlan | None) -> bool:
    gradients = work.gradients
    if not gradients.comes_in_time(gradients.slices):
        return False
    is_new = before is not None and not before.grants_slices
    in_time_s = gradients.slices * gradients.rank_slice_s
    return not is_new or gradients.away_s() <= EARLY * in_time_s


class _Side:
    """What is beside training when so many workers compute gradients."""

    def __init__(self, work: SpotWork, workers: int) -> None:
        gradients = work.gradients
        self._work, self._workers = work, workers
        self._gpus = work.workers + gradients.ranks
        self.training_s = gradients.updates * gradients.update_s(workers) + work.other_s
        self._each_s = work.samples * work.preview_s
        beside_s = (work.workers - workers) * self.training_s - work.evaluation_s
        if work.samples_from == "fresh":
            beside_s = 0.0
        if work.samples_from in ("finished", "fresh"):
            beside_s -= work.samples * work.finish_s
        if work.samples_from == "regenerated":
            beside_s = max(beside_s, 0.0)
        self._beside_s = beside_s
        """Seconds of workers that are left for previews beside training; what is missing below 0,
        for which training waits."""
        self.fit = min(max(beside_s, 0.0) / self._each_s, work.most_previews)
        """Previews for each sample that are made beside training."""

    def share(self, previews: float) -> _Share:
        """With so many previews for each sample, or those that are made anyway if they are more."""
        work, least, after_s = self._work, 1.0, 0.0
        if work.samples_from == "regenerated":
            least, after_s = 0.0, work.samples * work.finish_s
        wanted = min(previews, work.most_previews)
        previews = max(wanted, self.fit, work.least_previews, least)
        missing_s = max(previews * self._each_s - self._beside_s, 0.0)
        iteration_s = self.training_s + (missing_s + after_s) / self._gpus
        return _Share(self._workers, previews, iteration_s, work.taught(previews) / iteration_s)

    def best(self) -> _Share:
        """With the best number of previews."""
        best = self.share(0.0)
        top = 0.0  # of those that are waited for: the first one for each sample gains nothing yet
        for previews in _between(best.previews, min(self._work.most_previews, _MOST_PREVIEWS)):
            share = self.share(previews)
            if share.speed < _HOPELESS * top:
                break
            top = max(top, share.speed)
            best = max(best, share, key=lambda each: each.speed)
        return best


def _sides(work: SpotWork, most: int) -> list[_Side]:
    """For every number of workers that shortens training."""
    sides = [_Side(work, 0)]
    for workers in range(1, most + 1):
        side = _Side(work, workers)
        if side.training_s < sides[-1].training_s:
            sides.append(side)
    return sides


def _calm(as_before: _Side, wanted: _Share, previews: float) -> _Share:
    """The wanted share, unless it is hardly better than one with the workers, or the previews, of
    the plan before."""
    best = as_before.best()
    if wanted.speed > (1 + MARGIN) * best.speed:
        return wanted
    same = as_before.share(previews)
    return same if same.speed >= (1 - _CALM) * best.speed else best


def _between(least: float, most: float) -> Iterator[float]:
    previews = max(least, 1.0)
    while previews < most:
        previews = min(previews * _FINER, most)
        yield previews


def _why(work: SpotWork, share: _Share, grants: bool) -> str:
    fit = _Side(work, share.workers).fit
    waits = ", for which training waits" if share.previews > fit else ""
    return (
        f"{_why_gradients(work, share.workers, grants)}; {share.previews:.2g} previews for each"
        f" sample{waits}; an iteration takes {share.iteration_s:.3g} s"
    )


def _why_gradients(work: SpotWork, workers: int, grants: bool) -> str:
    gradients = work.gradients
    alone_s = gradients.update_s(0)
    if workers:
        return (
            f"{workers} of {work.workers} workers compute gradients, so that an update takes"
            f" {gradients.update_s(workers):.3g} s instead of {alone_s:.3g} s"
        )
    if not work.workers:
        return "no worker is there but the ranks"
    return f"ranks compute all gradients: {_why_none(gradients, alone_s, grants)}"


def _why_none(gradients: GradientWork, alone_s: float, grants: bool) -> str:
    if grants:
        return "workers are worth more for previews"
    if not gradients.may_be_given_away:
        return "this job does not give them away"
    if gradients.gradient_bytes > MOST_GRADIENT_BYTES:
        return f"one of {gradients.gradient_bytes / 1e9:.3g} GB is too large to give away"
    away_s = gradients.away_s()
    if away_s == math.inf:
        return "no link to a worker is measured yet"
    again = f", and it is not below {EARLY:.0%} of that yet" if away_s <= alone_s else ""
    return (
        f"another worker's would be there after {away_s:.3g} s, where a rank has all of its own"
        f" after {alone_s:.3g} s{again}"
    )


def _times(seconds: float, each_s: float) -> int:
    """How often it was over by then."""
    return math.floor(seconds / each_s + _ROUNDING)


def _check_counts(owner: object, *names: str) -> None:
    for name in names:
        value = getattr(owner, name)
        if not isinstance(value, int) or value < 1:
            raise ValueError(f"{name}: expected a whole number from 1 on, not {value!r}")


def _check_amounts(owner: object, *names: str, above_zero: bool = False) -> None:
    for name in names:
        value = getattr(owner, name)
        if value is None:
            continue
        if not math.isfinite(value) or value < 0 or (above_zero and value == 0):
            least = "above 0" if above_zero else "from 0 on"
            raise ValueError(f"{name}: expected a finite number {least}, not {value!r}")
