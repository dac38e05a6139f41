"""Cheap previews, whose kept seeds are denoised in full with the same weights while the iteration
before is still trained: how many previews are made before that, whether they foretell anything, and
which prompt groups are whole when training ends.

Training never begins with new weights sooner than with these: what is left of the kept seeds is
less than all of them, and need not wait for a publication. So what is not finished when training
ends is waited for, by all workers; only a prompt group of which a seed cannot be finished is made
anew.

Pure.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import msgspec

from spotlight.policies.exploration.explored import Explored
from spotlight.policies.exploration.fidelity import ENOUGH, Agreement
from spotlight.types import Request

LEAST_AGREEMENT = 0.75
"""The correlation of cheap previews with finished samples below which previews with all steps,
which are samples themselves, are worth more. By a model of an iteration's time that is so for
previews that cost from a quarter to an eighth of a sample."""


def mislead(known: Agreement) -> bool:
    """Whether cheap previews agree too little with finished samples, by probes: seeds that were
    drawn at random. Those that are kept are no evidence, since they are extremes, whose order is
    easily foretold.

    The estimate itself decides: to take all steps in vain costs about as much as not to.
    """
    if known.pairs < ENOUGH:
        return False
    return (known.correlation or 0.0) < LEAST_AGREEMENT


@dataclass(frozen=True, kw_only=True)
class Finish:
    """What it takes to finish the kept seeds of an iteration, and to preview others before."""

    requests: int
    """How many are finished, probes included."""
    micro_batch: int
    batch_s: float
    """How many seconds denoising and scoring a batch in full takes a group; 0 if nothing is
    known."""
    preview_batch_s: float
    """The same of a batch of previews."""
    best: int
    """The number of previews with which an iteration teaches most per second if nothing else takes
    time."""
    pays: bool
    """Whether it teaches more then than without any, so that training waits for them."""

    @property
    def least(self) -> int:
        """How many previews are made though training has ended."""
        return self.best if self.pays else 0

    def more_previews(self, asked: int, in_work: int, left_s: float, groups: int) -> float:
        """How many more there may be, so that the kept seeds are finished when training ends.

        Args:
            asked: previews so far, those in work included.
            in_work: those that are not there yet.
            left_s: seconds until training ends; infinite if that is not predicted.
            groups: how many SP groups work; without any, nobody knows how long finishing takes.
        """
        if left_s == math.inf or not groups:
            return max(0, self.best - asked)
        at_once, in_time = self.micro_batch * groups, 0.0
        left_s -= math.ceil(self.requests / at_once) * self.batch_s
        if left_s > 0:
            rounds = left_s // self.preview_batch_s if self.preview_batch_s > 0 else math.inf
            in_time = rounds * at_once - in_work
        return max(0.0, self.least - asked, in_time)


def best_previews(
    kept: int, most: int, cost: float, worth: Callable[[float], float]
) -> tuple[int, bool]:
    """With how many previews an iteration teaches most per second if nothing else takes its time,
    and whether that is more than without any. Fewer than two for a sample are no choice.

    Args:
        kept: samples of an iteration.
        most: previews for each of them.
        cost: of finishing a sample, in previews.
        worth: how many times as much as a random sample one of so many teaches.
    """
    rates = {n: worth(n) / (n + cost) for n in range(min(2, most), most + 1)}
    best = max(rates, key=rates.__getitem__)
    return best * kept, rates[best] > 1 / cost


class Finishing:
    """The kept seeds of an iteration, and its probes, until they are finished.

    Args:
        explored: the choice.
        requests: of its samples, and of its probes.
    """

    def __init__(self, explored: Explored, requests: Iterable[Request]) -> None:
        self.explored = explored
        """The choice, as it was made."""
        self._requests = {request.id: request for request in requests}
        self._open = set(self._requests)
        self._lost: set[int] = set()
        """The prompt groups that cannot be whole any more."""

    @property
    def requests(self) -> tuple[str, ...]:
        """The ids of all."""
        return tuple(self._requests)

    @property
    def is_over(self) -> bool:
        """Whether nothing more is to come."""
        return not self._open

    def finished(self, request_ids: Iterable[str]) -> None:
        """These are scored."""
        self._open.difference_update(request_ids)

    def given_up(self, request_ids: Iterable[str]) -> None:
        """These cannot be denoised or scored."""
        for request_id in self._open.intersection(request_ids):
            self._open.remove(request_id)
            if not self._requests[request_id].is_probe:
                self._lost.add(self._requests[request_id].group)

    def outcome(self) -> Explored:
        """The choice, with the prompt groups that are whole."""
        groups = {each.group for each in self._requests.values() if not each.is_probe}
        whole = tuple(sorted(groups - self._lost))
        return msgspec.structs.replace(self.explored, reused=whole, finished=True)

    def unused(self) -> tuple[str, ...]:
        """The requests whose samples nobody needs: those of groups that are not whole."""
        return tuple(
            request_id
            for request_id, request in self._requests.items()
            if request.group in self._lost and not request.is_probe
        )
