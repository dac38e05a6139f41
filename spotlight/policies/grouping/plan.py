"""Which members denoise together: the SP groups that finish most work before the phase ends.

More members finish one micro-batch sooner, but hardly as many times sooner as there are members.
So while much waits, groups of one finish most; when less waits than there are members, or when a
member alone cannot finish anything before the phase ends, larger groups do. What a set of groups
finishes is the business of `finishing`, which degrees to choose that of `dividing`, and who sits
where that of `seating`.

- Members of different fates never share a group, and everyone is in a group.
- Plans within 5 % of the best are as good: of those the one that tears the fewest groups is taken,
  so that planning again changes nothing, and a plan must win clearly before groups are torn.
- A member that is new is in a group of its own to begin with.

For a small cluster (250 combinations of divisions of its nodes into degrees: one node of 16
members, two of 8) all of them are compared. For a large one `dividing` chooses for each node, and
what it finds is compared with groups of one degree everywhere. Groups that span nodes are tried of
one degree at a time, from the members that are left over on their nodes, and only taken if they
win.

Pure.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import product

from spotlight.policies.grouping.assignment import Names, Place, Seating
from spotlight.policies.grouping.partition import AS_GOOD, Mix, Shape, divide, largest_first, mixes
from spotlight.policies.grouping.throughput import GroupKind, Outlook, Score, WorkClass

SPAN_FACTOR = 2.0
"""How many times longer a step takes between nodes. A guess: it depends on the network."""

MOST_COMBINATIONS = 250

__all__ = ["SPAN_FACTOR", "Place", "WorkClass", "plan_groups"]


def plan_groups(
    places: Sequence[Place],
    work: Sequence[WorkClass],
    *,
    seconds_left: float | None,
    current: Sequence[Names] = (),
    wanted: int | None = None,
    span_factor: float = SPAN_FACTOR,
) -> tuple[Names, ...]:
    """The groups, sorted; each is the names of its members, rank 0 first.

    Args:
        places: all members that can denoise, each once.
        work: what waits or is in work, in the order in which it is served.
        seconds_left: until the phase ends; None while that is not known.
        current: the groups as they are, groups of one included; members that are gone may be among
            them.
        wanted: as many groups of this degree (or of the largest possible one below it) as each node
            has members for, the rest in groups as large as possible. None: what finishes most.
        span_factor: so many times longer a step takes when the group spans nodes; 1 or more.

    Without any work the groups stay as they are, and who lost a member is alone.
    Raises `ValueError` for a member that is there twice, and numbers below what they may be.
    """
    if wanted is not None and wanted < 1:
        raise ValueError(f"wanted must be 1 or more, not {wanted}")
    if span_factor < 1:
        raise ValueError(f"span_factor must be 1 or more, not {span_factor}")
    seating = Seating(places, current)
    waiting = [each for each in work if each.batches]
    if not waiting or not places:
        return seating.untouched()
    common = set.intersection(*(set(each.step_s) for each in waiting))
    degrees = sorted(common, reverse=True)
    if wanted is None:
        return _best(seating, degrees, Outlook(waiting, seconds_left, span_factor))
    allowed = [degree for degree in degrees if degree <= wanted]
    cells = [cell for cells in seating.cells().values() for cell in cells]
    return _Draft((), cells, [largest_first(len(cell), allowed) for cell in cells]).seated(seating)


_Kinds = tuple[tuple[GroupKind, int], ...]


@dataclass(frozen=True)
class _Draft:
    """A plan, before anybody is seated."""

    across: Sequence[Names]
    """Members of the groups that span nodes."""
    cells: Sequence[Names]
    """The other members, by fate and node."""
    mixes: Sequence[Mix]
    """How each cell is divided."""

    @cached_property
    def kinds(self) -> _Kinds:
        """How many groups of each kind it has."""
        kinds = Counter(GroupKind(len(names), True) for names in self.across)
        for mix, times in Counter(self.mixes).items():
            for degree, count in mix:
                kinds[GroupKind(degree, False)] += count * times
        return tuple(sorted(kinds.items()))

    def seated(self, seating: Seating) -> tuple[Names, ...]:
        """The groups."""
        groups = [group for names in self.across for group in seating.seat(names, {len(names): 1})]
        for cell, mix in zip(self.cells, self.mixes, strict=True):
            groups += seating.seat(cell, dict(mix))
        return tuple(sorted(groups))


def _best(seating: Seating, degrees: Sequence[int], outlook: Outlook) -> tuple[Names, ...]:
    @cache
    def score(kinds: _Kinds) -> Score:
        return outlook.score(dict(kinds))

    drafts: list[_Draft] = []
    sparing: list[_Draft] = []
    for across, cells in _layouts(seating, degrees, outlook.batches):
        more, keeping = _drafts(seating, across, cells, degrees, outlook)
        drafts += more
        sparing += keeping
    # Nothing that depends on the groups as they are has a say in what is enough: then the plan that
    # is taken is enough the next time too, and stays.
    enough = AS_GOOD * max(score(draft.kinds).rate for draft in drafts)
    ends = (score(draft.kinds).end for draft in drafts if score(draft.kinds).rate >= enough)
    soon_enough = min(ends) / AS_GOOD

    def is_good(kinds: _Kinds) -> bool:
        return score(kinds).rate >= enough and score(kinds).end <= soon_enough

    as_they_are = Counter(GroupKind(len(part), seating.spans(part)) for part in seating.parts)
    possible = all(kind.degree in degrees for kind in as_they_are)
    if possible and is_good(tuple(sorted(as_they_are.items()))):
        return tuple(sorted(seating.parts))

    parts = set(seating.parts)

    def preference(draft: _Draft) -> tuple[int, int, int, float, tuple[Names, ...]]:
        groups = draft.seated(seating)
        kept = len(parts.intersection(groups))
        torn, formed = len(parts) - kept, len(groups) - kept
        return len(draft.across), torn, formed, -score(draft.kinds).rate, groups

    good = (draft for draft in drafts + sparing if is_good(draft.kinds))
    return min(map(preference, good))[-1]


def _layouts(
    seating: Seating, degrees: Sequence[int], batches: int
) -> Iterator[tuple[list[Names], list[Names]]]:
    """Groups that span nodes, and who is left on each node: first without any such group."""
    cells = seating.cells()
    yield [], [cell for alike in cells.values() for cell in alike]
    for degree in degrees[:-1]:
        across: list[Names] = []
        left: list[Names] = []
        for alike in cells.values():
            groups, rest = _span(seating, alike, degree, batches)
            across += groups
            left += rest
        if across:
            yield across, left


def _span(
    seating: Seating, cells: Sequence[Names], degree: int, most: int
) -> tuple[list[Names], list[Names]]:
    """Groups of whom each node has left over when it is divided by the degree, not more than
    micro-batches wait; and who then is left on each node."""
    pool: list[str] = []
    for cell in sorted(cells, key=lambda cell: -(len(cell) % degree)):
        pieces = sorted(seating.pieces(cell), key=len)
        leaving = [name for piece in pieces for name in reversed(piece)]
        pool += leaving[: len(cell) % degree]
    count = min(len(pool) // degree, most)
    groups = [tuple(pool[start : start + degree]) for start in range(0, count * degree, degree)]
    taken = set(pool[: count * degree])
    rest = (tuple(name for name in cell if name not in taken) for cell in cells)
    return groups, [cell for cell in rest if cell]


def _drafts(
    seating: Seating,
    across: Sequence[Names],
    cells: Sequence[Names],
    degrees: Sequence[int],
    outlook: Outlook,
) -> tuple[list[_Draft], list[_Draft]]:
    """Plans with these groups that span nodes; and those that were made to keep groups."""
    options = [mixes(len(cell), degrees) for cell in cells]
    if math.prod(map(len, options)) <= MOST_COMBINATIONS:
        return [_Draft(across, cells, chosen) for chosen in product(*options)], []
    shapes = [Shape(len(cell), tuple(sorted(map(len, seating.pieces(cell))))) for cell in cells]
    kinds = {degree: GroupKind(degree, False) for degree in degrees}
    busy = max(0, outlook.batches - len(across))
    plans = [divide(shapes, {each: outlook.speed(kinds[each]) for each in degrees}, busy)]
    if outlook.ends:
        in_time = {each: outlook.in_time(kinds[each]) for each in degrees}
        plans.append(divide(shapes, in_time, sum(map(len, cells))))
    uniform = [
        [largest_first(len(cell), degrees[first:]) for cell in cells]
        for first in range(len(degrees))
    ]
    drafts = [_Draft(across, cells, chosen) for chosen in (*(best for best, _ in plans), *uniform)]
    return drafts, [_Draft(across, cells, chosen) for _, sparing in plans for chosen in sparing]
