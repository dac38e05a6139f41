"""The pull scheduler's decisions: who may work on what, until when, and what counts.

A `LeaseBook` holds items until they are completed. Holders ask for work; the book answers with
leases. Pure: time is handed in.

Invariants:
- An item counts exactly once: the first completion wins, every later one is refused and counted as
  late.
- An item is queued, leased, or done; it is never in two leases at a time, and never lost: a lease
  that expires, fails or loses its holder puts its items back at the front of the queue.
- A lease holds at least one item, and items of one batch key only (one kind, one weights version,
  the same settings).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar


class Item(Protocol):
    """What can be leased."""

    @property
    def id(self) -> str:
        """Identity: the same work submitted twice has the same id."""


ItemT = TypeVar("ItemT", bound=Item)


@dataclass(frozen=True)
class Lease(Generic[ItemT]):
    """The right of `holder` to work on `items` until `deadline` (seconds, on the granter's
    clock)."""

    number: int
    holder: str
    items: tuple[ItemT, ...]
    deadline: float


@dataclass
class LeaseCounters:
    """What happened so far; shown to the user."""

    granted: int = 0
    completed: int = 0
    reissued: int = 0
    late: int = 0


@dataclass
class LeaseBook(Generic[ItemT]):
    """Items in order of urgency, the leases on them, and what is done.

    `order` gives an item's urgency (smaller first; ties by submission) and `batch_key` what items
    of one lease must share.
    """

    order: Callable[[ItemT], tuple[int, ...]]
    batch_key: Callable[[ItemT], Hashable]
    lease_s: float
    max_attempts: int
    counters: LeaseCounters = field(default_factory=LeaseCounters)
    _queue: dict[str, tuple[tuple[int, ...], ItemT]] = field(default_factory=dict)
    _leases: dict[int, Lease[ItemT]] = field(default_factory=dict)
    _leased: dict[str, int] = field(default_factory=dict)
    _done: set[str] = field(default_factory=set)
    _failures: dict[str, int] = field(default_factory=dict)
    _submitted: int = 0
    _next_lease: int = 1

    def submit(self, items: Iterable[ItemT]) -> None:
        """Queue items; those that are known already are ignored."""
        for item in items:
            if item.id in self._queue or item.id in self._leased or item.id in self._done:
                continue
            self._submitted += 1
            self._queue[item.id] = ((*self.order(item), self._submitted), item)

    def pull(
        self, holder: str, size: int, now: float, may_do: Callable[[ItemT], bool]
    ) -> Lease[ItemT] | None:
        """A lease on up to `size` of the most urgent items that the holder may do, or None."""
        able = sorted(
            (entry for entry in self._queue.values() if may_do(entry[1])),
            key=lambda entry: entry[0],
        )
        if not able or size < 1:
            return None
        key = self.batch_key(able[0][1])
        chosen = [item for _, item in able if self.batch_key(item) == key][:size]
        lease = Lease(self._next_lease, holder, tuple(chosen), now + self.lease_s)
        self._next_lease += 1
        self._leases[lease.number] = lease
        for item in chosen:
            del self._queue[item.id]
            self._leased[item.id] = lease.number
        self.counters.granted += len(chosen)
        return lease

    def holds(self, number: int, holder: str) -> bool:
        """Whether this holder has this lease."""
        lease = self._leases.get(number)
        return lease is not None and lease.holder == holder

    def renew(self, number: int, holder: str, now: float) -> bool:
        """Prolong a lease; False if the holder no longer has it."""
        if not self.holds(number, holder):
            return False
        lease = self._leases[number]
        self._leases[number] = Lease(number, holder, lease.items, now + self.lease_s)
        return True

    def complete(self, number: int, holder: str) -> tuple[ItemT, ...]:
        """The items that this completion makes done; empty (and counted as late) without a valid
        lease."""
        if not self.holds(number, holder):
            self.counters.late += 1
            return ()
        lease = self._leases.pop(number)
        for item in lease.items:
            del self._leased[item.id]
            self._done.add(item.id)
            self._failures.pop(item.id, None)
        self.counters.completed += len(lease.items)
        return lease.items

    def fail(self, number: int, holder: str) -> tuple[ItemT, ...]:
        """The holder could not do it: items go back, except those returned, which failed too
        often."""
        if not self.holds(number, holder):
            self.counters.late += 1
            return ()
        lease = self._leases.pop(number)
        given_up = []
        for item in lease.items:
            del self._leased[item.id]
            failures = self._failures.pop(item.id, 0) + 1
            if failures >= self.max_attempts:
                self._done.add(item.id)
                given_up.append(item)
            else:
                self._failures[item.id] = failures
                self._put_back(item)
        return tuple(given_up)

    def withdraw(self, number: int, holder: str) -> None:
        """The lease did not reach its holder: its items are queued again, and nothing failed."""
        if self.holds(number, holder):
            self._take_back([self._leases[number]])

    def lose(self, holder: str) -> tuple[ItemT, ...]:
        """The holder is gone: all it had is queued again, and returned."""
        return self._revoke([lease for lease in self._leases.values() if lease.holder == holder])

    def expire(self, now: float) -> tuple[ItemT, ...]:
        """Queue again, and return, what leases past their deadline held."""
        return self._revoke([lease for lease in self._leases.values() if lease.deadline <= now])

    def cancel(self, unwanted: Callable[[ItemT], bool]) -> list[Lease[ItemT]]:
        """Forget unwanted items; returns the leases that this revokes.

        What the holder of a revoked lease delivers is late, and what is still wanted of it is
        queued again.
        """
        revoked = [lease for lease in self._leases.values() if any(map(unwanted, lease.items))]
        self._take_back(revoked)
        forgotten = [item_id for item_id, (_, item) in self._queue.items() if unwanted(item)]
        for item_id in forgotten:
            del self._queue[item_id]
            self._failures.pop(item_id, None)
        return revoked

    @property
    def queued(self) -> int:
        """Items that wait."""
        return len(self._queue)

    @property
    def leased(self) -> int:
        """Items that are being worked on."""
        return len(self._leased)

    def held_by(self, holder: str) -> int:
        """Leases that the holder has."""
        return sum(lease.holder == holder for lease in self._leases.values())

    def _revoke(self, leases: list[Lease[ItemT]]) -> tuple[ItemT, ...]:
        items = self._take_back(leases)
        self.counters.reissued += len(items)
        return items

    def _take_back(self, leases: list[Lease[ItemT]]) -> tuple[ItemT, ...]:
        items = tuple(item for lease in leases for item in lease.items)
        for lease in leases:
            del self._leases[lease.number]
        for item in items:
            del self._leased[item.id]
            self._put_back(item)
        return items

    def _put_back(self, item: ItemT) -> None:
        """Ahead of everything of the same urgency: it has waited longest."""
        self._queue[item.id] = ((*self.order(item), 0), item)
