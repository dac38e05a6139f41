"""Which leases must be given back early, because another group should continue them.

A lease of a node that leaves, or one that takes far too long, moves to a group that has nothing to
do; an evaluation makes room for rollouts that wait.
"""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from itertools import islice

from spotlight.policies.dispatch.rows import Lease
from spotlight.policies.dispatch.waiting import WeightsKey, weights_of

_LOOK_AHEAD = 64

LEAVING, SLOW, URGENT = "its node leaves", "it is far too slow", "rollouts wait"


class Recalls:
    """See the module's docstring."""

    def __init__(self, ask_again_s: float) -> None:
        self._ask_again_s = ask_again_s
        self._movable: defaultdict[WeightsKey, dict[int, tuple[Lease, str]]] = defaultdict(dict)
        """With the reason, by the weights that a group needs to go on."""
        self._evaluations: dict[int, Lease] = {}
        self._under_way: Counter[WeightsKey] = Counter()
        """Leases that were asked back for groups with nothing to do."""
        self._urgent = 0
        self._checks: list[tuple[float, int, Lease]] = []
        """When to look whether a lease is slow; the number tells equals apart."""
        self._looks = 0

    def opened(self, lease: Lease, now: float) -> None:
        """A lease begins."""
        if lease.request.kind == "evaluation":
            self._evaluations[lease.number] = lease
        self._check(lease, now)

    def closed(self, lease: Lease) -> None:
        """A lease is over."""
        self._evaluations.pop(lease.number, None)
        key = weights_of(lease.request)
        self._movable[key].pop(lease.number, None)
        if lease.recalled == URGENT:
            self._urgent -= 1
        elif lease.recalled:
            self._under_way[key] -= 1

    def leaves(self, lease: Lease) -> None:
        """Its node has notice."""
        if not lease.recalled:
            self._movable[weights_of(lease.request)][lease.number] = (lease, LEAVING)

    def stays(self, lease: Lease) -> None:
        """Its node is not taken after all."""
        if self._movable[weights_of(lease.request)].pop(lease.number, None) is not None:
            self._check(lease, 0.0)  # it may be slow as well

    def look(
        self,
        now: float,
        is_there: Callable[[Lease], bool],
        slow_from: Callable[[Lease], float | None],
    ) -> None:
        """Find those that have become too slow."""
        while self._checks and self._checks[0][0] <= now:
            lease = heapq.heappop(self._checks)[2]
            if not is_there(lease) or lease.is_denoised or lease.recalled:
                continue
            due = slow_from(lease)
            if due is not None and due < now:
                self._movable[weights_of(lease.request)][lease.number] = (lease, SLOW)
            else:
                self._check(lease, max(due or 0.0, now + self._ask_again_s))

    def _check(self, lease: Lease, at: float) -> None:
        self._looks += 1
        heapq.heappush(self._checks, (at, self._looks, lease))

    def weights(self) -> list[WeightsKey]:
        """That a group needs which could go on with something."""
        return [key for key, leases in self._movable.items() if leases]

    def movable(self, key: WeightsKey, idle: int) -> Iterator[Lease]:
        """Leases for so many groups with nothing to do; each is marked as asked back."""
        for number in list(self._movable[key])[: max(0, idle - self._under_way[key])]:
            lease, reason = self._movable[key].pop(number)
            lease.recalled = reason
            self._under_way[key] += 1
            yield lease

    def evaluations(self, wanted: int, suits: Callable[[Lease], bool]) -> Iterator[Lease]:
        """Up to so many evaluations that make room, those asked already included; each is marked as
        asked back."""
        for lease in list(islice(self._evaluations.values(), _LOOK_AHEAD)):
            if self._urgent >= wanted:
                return
            if not lease.recalled and not lease.is_denoised and suits(lease):
                lease.recalled = URGENT
                self._urgent += 1
                yield lease
