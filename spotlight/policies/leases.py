"""The pull scheduler's decisions: who may work on what, until when, and what counts.

A `LeaseBook` holds items until they are completed. Holders ask for work; the book answers with
leases. Pure: time is handed in.

Invariants:
- An item counts exactly once: the first completion wins, every later one is refused and counted as
  late.
- An item is queued, leased, or done; it is never in two leases at a time, and never lost: a lease
  that expires, fails, is returned or loses its holder puts its items back at the front of the
  queue, together with the progress that was saved of them.
- A lease holds at least one item, and items of one batch key, one number of saved steps and one
  number of failures only: what cannot be done never takes others with it for long.
- An item that was held while several holders were lost is leased alone, and after too many it is
  given up: it may be what ends them. A holder that was lost before it said that it has a lease was
  not ended by it, and one that was only out of reach was not ended at all.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Generic, Protocol, TypeVar

_SUSPECT_AFTER = 2
_QUARANTINE_AFTER = 3
_LOOK_AHEAD = 256


class Item(Protocol):
    """What can be leased."""

    @property
    def id(self) -> str:
        """Identity: the same work submitted twice has the same id."""


class Saved(Protocol):
    """The saved progress of an item."""

    @property
    def step(self) -> int:
        """Steps that need not be done again."""


ItemT = TypeVar("ItemT", bound=Item)
SavedT = TypeVar("SavedT", bound=Saved)


@dataclass(frozen=True)
class Lease(Generic[ItemT, SavedT]):
    """The right of `holder` to work on `items` until `deadline` (seconds, on the granter's
    clock), going on from `saved`."""

    number: int
    holder: str
    items: tuple[ItemT, ...]
    saved: tuple[SavedT | None, ...]
    granted_at: float
    deadline: float
    is_known: bool = False
    """Its holder has said that it has it."""


@dataclass
class LeaseCounters:
    """What happened so far; shown to the user."""

    granted: int = 0
    completed: int = 0
    reissued: int = 0
    late: int = 0


@dataclass
class _Bucket(Generic[ItemT]):
    """Queued items that may share a lease, most urgent first."""

    rank: tuple[int, ...]
    items: OrderedDict[str, ItemT] = field(default_factory=OrderedDict)


@dataclass
class LeaseBook(Generic[ItemT, SavedT]):
    """Items in order of urgency, the leases on them, and what is done.

    `order` gives an item's urgency (smaller first), and `work` its expected work: of equally urgent
    items those with saved progress come first, then the longest work, then the oldest. Both, and
    whether a holder may do an item, must be the same for all items of one `batch_key`.
    `first_lease` is the number of the first lease: those of an earlier book of the same job must be
    below it.
    """

    order: Callable[[ItemT], tuple[int, ...]]
    batch_key: Callable[[ItemT], Hashable]
    lease_s: float
    max_attempts: int
    work: Callable[[ItemT], int] = lambda item: 0
    first_lease: int = 1
    counters: LeaseCounters = field(default_factory=LeaseCounters)
    _queue: dict[Hashable, _Bucket[ItemT]] = field(default_factory=dict)
    _bucket_of: dict[str, Hashable] = field(default_factory=dict)
    _leases: dict[int, Lease[ItemT, SavedT]] = field(default_factory=dict)
    _leased: dict[str, int] = field(default_factory=dict)
    _done: set[str] = field(default_factory=set)
    _saved: dict[str, SavedT] = field(default_factory=dict)
    _failures: dict[str, int] = field(default_factory=dict)
    _lost_with: defaultdict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    _buckets_made: int = 0

    def __post_init__(self) -> None:
        self._next_lease = self.first_lease

    # --- items ---

    def submit(self, items: Iterable[ItemT]) -> None:
        """Queue items; those that are known already are ignored."""
        for item in items:
            if not self.knows(item.id):
                self._enqueue(item, ahead=False)

    def knows(self, item_id: str) -> bool:
        """Whether the item is queued, leased, or done."""
        return item_id in self._bucket_of or item_id in self._leased or item_id in self._done

    def restore(self, item_id: str, saved: SavedT) -> None:
        """Progress that was saved of an item before it is submitted."""
        self._saved[item_id] = saved

    def saved(self, item_id: str) -> SavedT | None:
        """What is saved of an item."""
        return self._saved.get(item_id)

    def finish(self, item_id: str) -> None:
        """An item that was done before it is submitted here."""
        self._clear(item_id)
        self._done.add(item_id)

    def cancel(self, unwanted: Callable[[ItemT], bool]) -> list[Lease[ItemT, SavedT]]:
        """Forget unwanted items; returns the leases that this revokes.

        What the holder of a revoked lease delivers is late, and what is still wanted of it is
        queued again.
        """
        revoked = [lease for lease in self._leases.values() if any(map(unwanted, lease.items))]
        self._take_back(revoked)
        queued = [item for bucket in self._queue.values() for item in bucket.items.values()]
        for item in queued:
            if unwanted(item):
                self._dequeue(item)
                self._clear(item.id)
        return revoked

    def forget(self, was: Callable[[str], bool]) -> None:
        """Forget finished items by id: they will not be submitted again."""
        self._done = {item_id for item_id in self._done if not was(item_id)}

    # --- leases ---

    def pull(
        self,
        holder: str,
        size: int,
        now: float,
        may_do: Callable[[ItemT], bool],
        prefers: Callable[[ItemT], bool] = lambda item: False,
    ) -> Lease[ItemT, SavedT] | None:
        """A lease on up to `size` of the most urgent items that the holder may do, or None.

        Among equally urgent ones it gets those that it `prefers`.
        """
        bucket = self._most_urgent(may_do) if size >= 1 else None
        if bucket is None:
            return None
        near = list(islice(bucket.items.values(), _LOOK_AHEAD))
        near.sort(key=lambda item: not prefers(item))
        return self._lease(self._next_number(), holder, near[:size], now)

    def adopt(self, number: int, holder: str, item_ids: Sequence[str], now: float) -> bool:
        """Let a holder keep a lease that an earlier book granted, or that expired; False unless all
        its items are queued here.
        """
        if number in self._leases or number >= self._next_lease:
            return False  # another's, or nobody's yet
        if not item_ids or len(set(item_ids)) < len(item_ids):
            return False
        if any(item_id not in self._bucket_of for item_id in item_ids):
            return False
        items = [self._queue[self._bucket_of[item_id]].items[item_id] for item_id in item_ids]
        self._leases[number] = replace(self._lease(number, holder, items, now), is_known=True)
        return True

    def find(self, number: int, holder: str) -> Lease[ItemT, SavedT] | None:
        """This holder's lease of that number, if it has it."""
        lease = self._leases.get(number)
        return lease if lease is not None and lease.holder == holder else None

    def holds(self, number: int, holder: str) -> bool:
        """Whether this holder has this lease."""
        return self.find(number, holder) is not None

    def renew(self, number: int, holder: str, now: float) -> bool:
        """Prolong a lease; False if the holder no longer has it."""
        if not self.holds(number, holder):
            return False
        lease = self._leases[number]
        self._leases[number] = replace(lease, deadline=now + self.lease_s, is_known=True)
        return True

    def save(self, number: int, holder: str, progress: Sequence[SavedT]) -> bool:
        """Keep the progress of a lease's items, in their order; False (and counted as late) without
        a valid lease. Progress never goes back.
        """
        if not self.holds(number, holder):
            self.counters.late += 1
            return False
        lease = self._leases[number] = replace(self._leases[number], is_known=True)
        for item, saved in zip(lease.items, progress, strict=True):
            known = self._saved.get(item.id)
            if known is None or known.step < saved.step:
                self._saved[item.id] = saved
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
            self._clear(item.id)
            self._done.add(item.id)
        self.counters.completed += len(lease.items)
        return lease.items

    def fail(self, number: int, holder: str, failed: Collection[str] = ()) -> tuple[ItemT, ...]:
        """The holder could not do it: items go back, except those returned, which failed too
        often.

        `failed` are the ids of the items that could not be done, when that is known: nothing is
        wrong with the others.
        """
        if not self.holds(number, holder):
            self.counters.late += 1
            return ()
        lease = self._leases.pop(number)
        blamed = {item.id for item in lease.items if item.id in failed}
        given_up = []
        for item in reversed(lease.items):
            del self._leased[item.id]
            if not blamed or item.id in blamed:
                self._failures[item.id] = self._failures.get(item.id, 0) + 1
            if self._failures.get(item.id, 0) >= self.max_attempts:
                self._clear(item.id)
                self._done.add(item.id)
                given_up.append(item)
            else:
                self._enqueue(item, ahead=True)
        return tuple(reversed(given_up))

    def start_over(self, number: int, holder: str) -> bool:
        """The progress that came with a lease cannot be used: its items are queued without it."""
        if not self.holds(number, holder):
            self.counters.late += 1
            return False
        for item in self._leases[number].items:
            self._saved.pop(item.id, None)
        self._take_back([self._leases[number]])
        return True

    def give_back(self, number: int, holder: str) -> bool:
        """The holder leaves it to others, or the lease never reached it: nothing failed. False if
        it no longer has it.
        """
        if not self.holds(number, holder):
            return False
        self._take_back([self._leases[number]])
        return True

    def lose(
        self, holder: str, blame: str = "", *, ended: bool = False
    ) -> tuple[tuple[ItemT, ...], tuple[ItemT, ...]]:
        """The holder is gone: all it had is queued again. Returns (queued again, given up).

        `blame` names what was lost with the holder, if what it held may have caused that; an item
        that is held when several different ones are lost is given up. Unless it is known to have
        `ended`, only what it is known to have held counts.
        """
        leases = [lease for lease in self._leases.values() if lease.holder == holder]
        given_up = []
        if blame:
            suspects = [lease for lease in leases if ended or lease.is_known]
            for item in [item for lease in suspects for item in lease.items]:
                self._lost_with[item.id].add(blame)
                if len(self._lost_with[item.id]) >= _QUARANTINE_AFTER:
                    given_up.append(item)
        queued = self._reissue(leases)
        for item in given_up:
            self._dequeue(item)
            self._clear(item.id)
            self._done.add(item.id)
        lost = {item.id for item in given_up}
        return tuple(item for item in queued if item.id not in lost), tuple(given_up)

    def absolve(self, blamed: str) -> None:
        """That was not lost, but out of reach: nothing is suspected for its sake."""
        for lost in self._lost_with.values():
            lost.discard(blamed)

    def expire(self, now: float) -> list[Lease[ItemT, SavedT]]:
        """End leases past their deadline: their items are queued again."""
        expired = [lease for lease in self._leases.values() if lease.deadline <= now]
        self._reissue(expired)
        return expired

    # --- what there is ---

    @property
    def queued(self) -> int:
        """Items that wait."""
        return len(self._bucket_of)

    @property
    def queued_first(self) -> int:
        """Those of them that are as urgent as any that wait."""
        heads = [next(iter(bucket.items.values())) for bucket in self._queue.values()]
        first = min(map(self.order, heads), default=())
        return sum(
            len(bucket.items)
            for bucket, head in zip(self._queue.values(), heads, strict=True)
            if self.order(head) == first
        )

    @property
    def leased(self) -> int:
        """Items that are being worked on."""
        return len(self._leased)

    def waiting(self) -> list[tuple[ItemT, int]]:
        """One of each sort of items that wait, and how many such there are."""
        buckets = [bucket.items for bucket in self._queue.values()]
        return [(next(iter(items.values())), len(items)) for items in buckets]

    def held_by(self, holder: str) -> int:
        """Leases that the holder has."""
        return sum(lease.holder == holder for lease in self._leases.values())

    def leases(self) -> list[Lease[ItemT, SavedT]]:
        """All leases, oldest first."""
        return list(self._leases.values())

    def is_waiting_for(self, may_do: Callable[[ItemT], bool]) -> bool:
        """Whether a holder that may do such items could pull now."""
        return self._most_urgent(may_do) is not None

    # --- inside ---

    def _most_urgent(self, may_do: Callable[[ItemT], bool]) -> _Bucket[ItemT] | None:
        able = [
            bucket for bucket in self._queue.values() if may_do(next(iter(bucket.items.values())))
        ]
        return min(able, key=lambda bucket: bucket.rank, default=None)

    def _next_number(self) -> int:
        number = self._next_lease
        self._next_lease += 1
        return number

    def _lease(
        self, number: int, holder: str, items: Sequence[ItemT], now: float
    ) -> Lease[ItemT, SavedT]:
        saved = tuple(self._saved.get(item.id) for item in items)
        lease = Lease(number, holder, tuple(items), saved, now, now + self.lease_s)
        self._leases[number] = lease
        for item in items:
            self._dequeue(item)
            self._leased[item.id] = number
        self.counters.granted += len(items)
        return lease

    def _reissue(self, leases: list[Lease[ItemT, SavedT]]) -> tuple[ItemT, ...]:
        items = self._take_back(leases)
        self.counters.reissued += len(items)
        return items

    def _take_back(self, leases: list[Lease[ItemT, SavedT]]) -> tuple[ItemT, ...]:
        items = tuple(item for lease in leases for item in lease.items)
        for lease in leases:
            del self._leases[lease.number]
        for item in reversed(items):
            del self._leased[item.id]
            self._enqueue(item, ahead=True)
        return items

    def _enqueue(self, item: ItemT, *, ahead: bool) -> None:
        """At the end of its equals, or `ahead` of them: it has waited longest."""
        saved = self._saved.get(item.id)
        steps = saved.step if saved is not None else 0
        alone = item.id if len(self._lost_with.get(item.id, ())) >= _SUSPECT_AFTER else ""
        key = (self.batch_key(item), steps, self._failures.get(item.id, 0), alone)
        bucket = self._queue.get(key)
        if bucket is None:
            self._buckets_made += 1
            turn = -self._buckets_made if ahead else self._buckets_made
            rank = (*self.order(item), int(not steps), -self.work(item), turn)
            bucket = self._queue[key] = _Bucket(rank)
        bucket.items[item.id] = item
        if ahead:
            bucket.items.move_to_end(item.id, last=False)
        self._bucket_of[item.id] = key

    def _dequeue(self, item: ItemT) -> None:
        key = self._bucket_of.pop(item.id)
        del self._queue[key].items[item.id]
        if not self._queue[key].items:
            del self._queue[key]

    def _clear(self, item_id: str) -> None:
        """Nothing more is to be remembered of the item but that it is done."""
        self._saved.pop(item_id, None)
        self._failures.pop(item_id, None)
        self._lost_with.pop(item_id, None)
