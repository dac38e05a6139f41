"""The prompt groups of a session, from their orders until the user has taken them.

A group is open, done or gone. It is done when each of its requests is finished or given up; it is
told to the user until he has taken it, or wants it no more.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from spotlight.actors.protocol.artifacts import picture_key
from spotlight.actors.protocol.sessions import DoneGroup, DoneSample, FailedSample, GroupOrder
from spotlight.jobs import SamplerSpec, WorkSpec
from spotlight.types import BundleOffer, Request, RequestId, Result, SamplingSettings

_MOST_SAMPLES = 8192
"""Most samples in one answer: each takes some 500 bytes of a frame."""


@dataclass
class _Group:
    order: GroupOrder
    results: dict[int, Result] = field(default_factory=dict)
    """The results by seed."""
    failed: dict[int, str] = field(default_factory=dict)

    @property
    def open_seeds(self) -> int:
        return len(self.order.seeds) - len(self.results) - len(self.failed)


@dataclass
class Totals:
    """What was done so far."""

    samples: int = 0
    previews: int = 0
    resumed: int = 0
    failed: int = 0


class SessionGroups:
    """See the module's docstring."""

    def __init__(self) -> None:
        self._open: dict[int, _Group] = {}
        self._done: dict[int, _Group] = {}
        """The first to be done first."""
        self.totals = Totals()
        self.open_requests = 0
        """Requests that are not over."""

    def __len__(self) -> int:
        return len(self._open) + len(self._done)

    def submit(self, orders: Iterable[GroupOrder]) -> list[GroupOrder]:
        """Take orders; returns those that are new."""
        new = [
            order
            for order in orders
            if order.number not in self._open and order.number not in self._done
        ]
        self._open |= {order.number: _Group(order) for order in new}
        self.open_requests += sum(len(order.seeds) for order in new)
        return new

    def finished(self, results: Sequence[Result], *, restored: bool) -> list[Request]:
        """Samples are there; returns the requests of those that nobody wants."""
        unwanted = []
        for result in results:
            request = result.request
            if not restored:
                self.totals.previews += request.kind == "preview"
                self.totals.samples += request.kind == "rollout"
                self.totals.resumed += result.resumed_at > 0
            group = self._open.get(request.group)
            if group is None:
                unwanted.append(request)
            else:
                group.results[request.seed] = result
                self._note_end(group)
        return unwanted

    def given_up(self, requests: Sequence[Request], reason: str) -> list[Request]:
        """These failed for good; returns those that nobody wants."""
        unwanted = []
        for request in requests:
            self.totals.failed += 1
            group = self._open.get(request.group)
            if group is None:
                unwanted.append(request)
            else:
                group.failed[request.seed] = reason
                self._note_end(group)
        return unwanted

    def _note_end(self, group: _Group) -> None:
        self.open_requests -= 1
        if not group.open_seeds:
            self._done[group.order.number] = self._open.pop(group.order.number)

    def remove(self, numbers: Iterable[int]) -> list[GroupOrder]:
        """The user has these, or wants them no more; returns those that were there."""
        removed = []
        for number in numbers:
            group = self._done.pop(number, None) or self._open.pop(number, None)
            if group is not None:
                removed.append(group.order)
                self.open_requests -= group.open_seeds
        return removed

    def has_open(self, kind: str) -> bool:
        """Whether any group of a kind is not done."""
        return any(group.order.kind == kind for group in self._open.values())

    def first_done(self, most: int) -> list[int]:
        """Numbers of what to tell next; at least one if any is done."""
        found: list[int] = []
        samples = 0
        for number, group in self._done.items():
            samples += len(group.order.seeds)
            if found and (len(found) == most or samples > _MOST_SAMPLES):
                break
            found.append(number)
        return found

    def pictures_of(self, numbers: Iterable[int]) -> list[str]:
        """Keys of their images."""
        return [
            picture_key(result)
            for number in numbers
            for result in self._done[number].results.values()
            if result.request.image_key
        ]

    def told(
        self, numbers: Iterable[int], pictures: Mapping[str, BundleOffer]
    ) -> tuple[DoneGroup, ...]:
        """What the user is told of groups that are done; `pictures` are offered by their keys."""
        return tuple(self._tell(self._done[n], pictures) for n in numbers if n in self._done)

    def _tell(self, group: _Group, pictures: Mapping[str, BundleOffer]) -> DoneGroup:
        order = group.order
        return DoneGroup(
            order.number,
            order.version,
            tuple(
                self._sample(group.results[seed], pictures)
                for seed in order.seeds
                if seed in group.results
            ),
            tuple(
                FailedSample(seed, group.failed[seed])
                for seed in order.seeds
                if seed in group.failed
            ),
        )

    def _sample(self, result: Result, pictures: Mapping[str, BundleOffer]) -> DoneSample:
        request = result.request
        return DoneSample(
            request.seed,
            result.rewards,
            result.attempts,
            result.resumed_at,
            result.bundle if request.kind == "rollout" else None,
            result.row,
            pictures.get(picture_key(result)),
        )


def requests_of(order: GroupOrder, settings: SamplingSettings) -> list[Request]:
    """The requests of a group, one for each seed."""
    return [
        Request(
            id=request_id(order, seed),
            kind=order.kind,
            iteration=0,
            group=order.number,
            prompt=order.prompt,
            seed=seed,
            weights_version=order.version,
            settings=settings,
            metadata=order.metadata,
            image_key=f"{picture_folder(order.number)}/{seed}.png" if order.pictures else "",
        )
        for seed in order.seeds
    ]


def request_id(order: GroupOrder, seed: int) -> str:
    """Of one sample of a group."""
    return str(RequestId(order.kind, 0, order.version, order.number, seed))


def picture_folder(number: int) -> str:
    """Where the images of a group are, in the session's store."""
    return f"pictures/{number}"


def window_start(order: GroupOrder, sampler: SamplerSpec) -> int | None:
    """First step of a group at which noise is added; None without noise."""
    if sampler.kind == "ode" or order.kind != "rollout":
        return None
    return sampler.window.earliest if order.window_start is None else order.window_start


def problem_with_orders(
    orders: Collection[GroupOrder],
    versions: Collection[int],
    most_open: int,
    work: WorkSpec,
) -> str:
    """Why these groups cannot be submitted; empty if they can.

    Args:
        versions: of the weights that nodes can pull.
        most_open: so many more groups may be submitted.
    """
    if len(orders) > most_open:
        return f"{len(orders)} more groups are too many: first take groups that are done"
    for order in orders:
        if len(set(order.seeds)) < len(order.seeds):
            return f"group {order.number} names a seed twice"
        if order.version not in versions:
            there = ", ".join(map(str, sorted(versions))) or "none"
            return (
                f"group {order.number} wants weights version {order.version}, which is not there;"
                f" there are: {there}"
            )
        compared = [one.name for one in work.rewards_of(order.kind) if one.groupwise]
        if compared and len(order.seeds) < 2:
            return (
                f"group {order.number} has one seed, but the reward `{compared[0]}` compares the"
                " images of a prompt"
            )
        sampler = work.sampler
        start, steps = window_start(order, sampler), order.steps or sampler.steps
        if start is not None and start + sampler.window.length >= steps:
            return (
                f"group {order.number}: from window_start {start} on there is no room for"
                f" {sampler.window.length} noisy steps before the last of {steps}, which has none"
            )
    return ""
