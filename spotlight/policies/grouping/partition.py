"""Into SP groups of which degrees the members of each node are divided. Pure.

Micro-batches are dealt to the nodes, each to the one that gains most by it, and each node has the
division that does most with what it was dealt. As the gains of a node fall that is the best there
is.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from typing import NamedTuple

AS_GOOD = 0.95
"""A plan that finishes so much of what the best one does is as good."""

_SMALL = 16
_ROUNDING = 1e-9

Mix = tuple[tuple[int, int], ...]
"""A division: so many groups of each degree, the largest degree first."""


class Shape(NamedTuple):
    """What the division of a node depends on."""

    members: int
    together: tuple[int, ...]
    """Sizes of the groups that could stay as they are; sorted."""


def mixes(members: int, degrees: Sequence[int]) -> list[Mix]:
    """The divisions to choose from. Up to 16 members: all there are. For more: some groups of one
    degree, and the others alone or in groups as large as possible.

    Args:
        members: to divide, at least one.
        degrees: possible ones, the largest first; the last is 1.
    """
    if members <= _SMALL:
        return list(_all_mixes(members, degrees))
    chosen: set[Mix] = set()
    for degree in degrees:
        for count in range(1, members // degree + 1):
            left = members - count * degree
            alone = Counter({degree: count})
            alone[1] += left
            packed = Counter({degree: count})
            packed.update(dict(largest_first(left, degrees)))
            chosen |= {_mix(alone), _mix(packed)}
    return sorted(chosen, reverse=True)


def largest_first(members: int, degrees: Sequence[int]) -> Mix:
    """As many groups as possible of the first degree, then of the second, and so on."""
    counts: Counter[int] = Counter()
    for degree in degrees:
        counts[degree], members = divmod(members, degree)
    return _mix(counts)


def divide(
    shapes: Sequence[Shape], worth: Mapping[int, float], batches: int
) -> tuple[list[Mix], list[list[Mix]]]:
    """A division of each node: the best one, and some that keep more groups.

    Args:
        shapes: of the nodes.
        worth: of one busy group, by possible degree; 1 is among them.
        batches: no more groups than that are busy.

    The second part is one that is as good as the best, and one that may be 5 % worse.
    """
    degrees = sorted(worth, reverse=True)
    tables = {
        members: _Table(mixes(members, degrees), worth, min(members, batches))
        for members in sorted({shape.members for shape in shapes})
    }
    dealt = _deal([tables[shape.members] for shape in shapes], batches)
    pairs = list(zip(shapes, dealt, strict=True))
    best = [tables[shape.members].best(busy) for shape, busy in pairs]
    ranked = {
        (shape, busy): _most_kept_first(shape, busy, tables[shape.members])
        for shape, busy in sorted(set(pairs))
    }
    choices = [ranked[pair] for pair in pairs]
    total = sum(tables[shape.members].most[busy] for shape, busy in pairs)
    return best, [_keep(choices, spare * total) for spare in (_ROUNDING, 1 - AS_GOOD)]


class _Table:
    """What the divisions of so many members are worth, by the number of busy groups."""

    def __init__(self, choices: Sequence[Mix], worth: Mapping[int, float], busiest: int) -> None:
        self.choices = choices
        self.values = [_values(mix, worth, busiest) for mix in choices]
        self.most = [max(value[busy] for value in self.values) for busy in range(busiest + 1)]

    def best(self, busy: int) -> Mix:
        """The division that is worth most."""
        return max(
            (value[busy], mix) for value, mix in zip(self.values, self.choices, strict=True)
        )[1]


def _values(mix: Mix, worth: Mapping[int, float], busiest: int) -> list[float]:
    """Of a division, when 0, 1, 2 ... of its groups are busy: those that are worth most."""
    each = sorted((worth[degree] for degree, count in mix for _ in range(count)), reverse=True)
    values = [0.0, *accumulate(each[:busiest])]
    return values + values[-1:] * (busiest + 1 - len(values))


def _deal(tables: Sequence[_Table], batches: int) -> list[int]:
    """How many micro-batches each node has: one by one to whoever gains most by it."""
    dealt = [0] * len(tables)
    gains = [(-table.most[1], index) for index, table in enumerate(tables) if len(table.most) > 1]
    heapq.heapify(gains)
    while batches and gains:
        _, index = gains[0]
        dealt[index] += 1
        batches -= 1
        most = tables[index].most
        if dealt[index] + 1 < len(most):
            gain = most[dealt[index] + 1] - most[dealt[index]]
            heapq.heapreplace(gains, (-gain, index))
        else:
            heapq.heappop(gains)
    return dealt


class _Choice(NamedTuple):
    kept: int
    """The number of groups that stay, below 0: the smallest choice keeps most."""
    loss: float
    groups: int
    mix: Mix


def _keep(choices: Sequence[Sequence[_Choice]], spare: float) -> list[Mix]:
    """Lose no more than this in all; it is spent where it keeps the groups of a node for least.

    Each node's choices: the one that keeps most groups first, and one without loss among them.
    """
    kept: list[Mix] = [()] * len(choices)
    for index in sorted(range(len(choices)), key=lambda index: choices[index][0].loss):
        choice = next(each for each in choices[index] if each.loss <= spare)
        spare -= choice.loss
        kept[index] = choice.mix
    return kept


def _most_kept_first(shape: Shape, busy: int, table: _Table) -> list[_Choice]:
    together = Counter(shape.together)
    return sorted(
        _Choice(
            kept=-sum(min(count, together[degree]) for degree, count in mix),
            loss=table.most[busy] - value[busy],
            groups=sum(count for _, count in mix),
            mix=mix,
        )
        for mix, value in zip(table.choices, table.values, strict=True)
    )


def _all_mixes(members: int, degrees: Sequence[int]) -> Iterator[Mix]:
    degree, *smaller = degrees
    if not smaller:
        yield ((degree, members),) if members else ()
        return
    for count in range(members // degree, -1, -1):
        for rest in _all_mixes(members - count * degree, smaller):
            yield ((degree, count), *rest) if count else rest


def _mix(counts: Mapping[int, int]) -> Mix:
    return tuple(sorted(((degree, n) for degree, n in counts.items() if n), reverse=True))
