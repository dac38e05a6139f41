"""Who joins whom when SP groups are made: those who are together stay together. Pure."""

from __future__ import annotations

from bisect import insort
from collections import Counter, defaultdict
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

Names = tuple[str, ...]
"""The members of a group, rank 0 first."""


@dataclass(frozen=True)
class Place:
    """A member that can denoise."""

    name: str
    node: str
    fate: str
    """Only members of the same fate may share a group: of one pool, say. A member that trains has
    a fate of its own."""


class Seating:
    """Where the members are, and with whom.

    Args:
        places: all members, each once.
        current: groups as they are; members that are gone may be among them.

    Raises `ValueError` for a member that is there twice.
    """

    def __init__(self, places: Sequence[Place], current: Iterable[Names]) -> None:
        self._places = {place.name: place for place in sorted(places, key=lambda each: each.name)}
        if len(self._places) < len(places):
            twice = Counter(place.name for place in places) - Counter(list(self._places))
            raise ValueError(f"member {min(twice)!r} is there twice")
        current = sorted(current)
        self._leaders = {group[0] for group in current if group}
        alone = dict.fromkeys(self._places)
        self._intact: list[Names] = []
        broken: list[Names] = []
        for group in current:
            by_fate: dict[str, list[str]] = {}
            for name in group:
                if name in alone:
                    del alone[name]
                    by_fate.setdefault(self._places[name].fate, []).append(name)
            for part in map(tuple, by_fate.values()):
                (self._intact if part == group else broken).append(part)
        self.parts: list[Names] = [*self._intact, *broken, *((name,) for name in alone)]
        """All members: those who are together now and may stay so, the intact groups first."""
        self._part_of = {name: number for number, part in enumerate(self.parts) for name in part}
        self._rank = {name: rank for part in self.parts for rank, name in enumerate(part)}

    def untouched(self) -> tuple[Names, ...]:
        """The groups that lost nobody; everybody else alone."""
        grouped = {name for part in self._intact for name in part}
        rest = ((name,) for name in self._places if name not in grouped)
        return tuple(sorted([*self._intact, *rest]))

    def cells(self) -> dict[str, list[Names]]:
        """The members of every node that share their fate, by fate."""
        members: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
        for name, place in self._places.items():
            members[place.fate, place.node].append(name)
        cells: dict[str, list[Names]] = {}
        for fate, node in sorted(members):
            cells.setdefault(fate, []).append(tuple(members[fate, node]))
        return cells

    def spans(self, group: Names) -> bool:
        """Are its members on several nodes?"""
        return len({self._places[name].node for name in group}) > 1

    def pieces(self, names: Iterable[str]) -> list[Names]:
        """Which of these members are together."""
        ordered = sorted(names, key=lambda name: (self._part_of[name], self._rank[name]))
        return [tuple(piece) for _, piece in groupby(ordered, key=self._part_of.__getitem__)]

    def seat(self, names: Iterable[str], sizes: Mapping[int, int]) -> list[Names]:
        """Make so many groups of each size of these members; there is exactly one seat for each.

        Those who are together and as many as a group that is wanted stay as they are. The other
        groups are filled with the largest pieces that fit; one is taken apart only if none fits.
        Rank 0 is somebody who is rank 0 already, if there is one.
        """
        left = dict(sizes)
        groups: list[Names] = []
        loose: list[Names] = []
        for piece in self.pieces(names):
            if left.get(len(piece), 0):
                left[len(piece)] -= 1
                groups.append(piece)
            else:
                loose.append(piece)
        loose.sort(key=_largest_first)
        for size in sorted(left, reverse=True):
            groups += [_fill(loose, size, self._leaders) for _ in range(left[size])]
        return groups


def _fill(loose: list[Names], size: int, leaders: Container[str]) -> Names:
    pieces: list[Names] = []
    while room := size - sum(map(len, pieces)):
        fitting = next((index for index, piece in enumerate(loose) if len(piece) <= room), None)
        if fitting is not None:
            pieces.append(loose.pop(fitting))
        else:
            # Who joins others comes from the end, so that rank 0 stays with the rest.
            piece = loose.pop()
            cut = len(piece) - room if pieces else room
            joining, rest = (piece[cut:], piece[:cut]) if pieces else (piece[:cut], piece[cut:])
            pieces.append(joining)
            insort(loose, rest, key=_largest_first)
    pieces.sort(key=lambda piece: piece[0] not in leaders)
    return tuple(name for piece in pieces for name in piece)


def _largest_first(piece: Names) -> int:
    return -len(piece)
