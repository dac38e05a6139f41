"""The leases that there are, and when they end."""

from __future__ import annotations

import heapq
from collections.abc import Iterable

from spotlight.policies.dispatch.rows import Lease, RequestState, Row
from spotlight.policies.dispatch.takers import Taker


class Leases:
    """Leases by number, and at their holders. An operation costs the logarithm of their number.

    Args:
        first: the number of the first one; those of an earlier table of the same job must be below.
        lease_s: how long a lease lasts that is not renewed.
    """

    def __init__(self, first: int, lease_s: float) -> None:
        self._lease_s = lease_s
        self._next = first
        self.adopts_from = 0
        """Leases below are of weights that were trained again."""
        self._by_number: dict[int, Lease] = {}
        self._deadlines: list[tuple[float, int]] = []
        """Every lease stands here, with a deadline that it had."""

    def find(self, number: int, worker: str) -> Lease | None:
        """This worker's lease of that number, if it has it."""
        lease = self._by_number.get(number)
        return lease if lease is not None and lease.worker == worker else None

    def get(self, number: int) -> Lease | None:
        """The lease of that number, whoever has it."""
        return self._by_number.get(number)

    def all(self) -> list[Lease]:
        """Oldest first."""
        return list(self._by_number.values())

    def may_adopt(self, number: int) -> bool:
        """Whether an earlier table may have granted it for what is wanted, and nobody has it."""
        return self.adopts_from <= number < self._next and number not in self._by_number

    def open(
        self, taker: Taker, rows: Iterable[Row], now: float, number: int | None = None
    ) -> Lease:
        """A new lease, or one that an earlier table granted."""
        if number is None:
            number = self._next
            self._next += 1
        lease = Lease(number, taker.name, tuple(rows), now, now + self._lease_s)
        lease.is_denoised = all(row.is_denoised for row in lease.rows)
        self._by_number[number] = taker.leases[number] = lease
        heapq.heappush(self._deadlines, (lease.deadline, number))
        for row in lease.rows:
            row.state, row.lease = RequestState.LEASED, number
        return lease

    def renew(self, lease: Lease, now: float) -> None:
        """Its holder has it, and its loop turns."""
        lease.deadline, lease.is_known = now + self._lease_s, True

    def close(self, lease: Lease, taker: Taker) -> None:
        """It is over, whoever ended it; its rows are in no lease."""
        del self._by_number[lease.number], taker.leases[lease.number]
        for row in lease.rows:
            row.lease = 0

    def expired(self, now: float) -> list[Lease]:
        """Those past their deadline."""
        expired: dict[int, Lease] = {}  # one that was adopted under its old number stands twice
        while self._deadlines and self._deadlines[0][0] <= now:
            _, number = heapq.heappop(self._deadlines)
            lease = self._by_number.get(number)
            if lease is None:
                continue
            if lease.deadline > now:
                heapq.heappush(self._deadlines, (lease.deadline, number))
            else:
                expired[number] = lease
        return list(expired.values())
