"""Which prompts of a pool are explored: as many as an iteration trains on at first, and then others
in place of those that turn out to be solved, or hopeless.

A prompt is opened when its first K candidates are expected to contrast so much more than those of
the group that it would replace that this is worth more, for each candidate, than one more candidate
of any open group. So no preview goes to other prompts while all of them contrast, as at the
beginning of most runs, and many do when few still contrast.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import islice

LOOKED_AT = 16
"""Prompts, the next ones, among which the most promising is sought: the pool may be large."""


class PromptPool:
    """The groups of a pool, by their number.

    Args:
        groups: in the pool; the first `trained` of them are open from the beginning.
        trained: of which so many are trained on.
    """

    def __init__(self, groups: int, trained: int) -> None:
        self._trained = trained
        self._open = set(range(min(trained, groups)))
        self._waiting = dict.fromkeys(range(trained, groups))
        """Prompts that wait, in the order in which they were drawn."""

    @property
    def opened(self) -> frozenset[int]:
        """Groups that may be given candidates."""
        return frozenset(self._open)

    @property
    def has_more(self) -> bool:
        """Whether any group was never opened."""
        return bool(self._waiting)

    def is_open(self, group: int) -> bool:
        """Whether this one may be given candidates."""
        return group in self._open

    def open(self, group: int) -> None:
        """From now on it may be given candidates."""
        del self._waiting[group]
        self._open.add(group)

    def close_weakest(self, contrasts: Mapping[int, float]) -> list[int]:
        """Close the groups that will not be trained on, and return them; of equals the later ones.

        Args:
            contrasts: of the open groups of which K candidates are scored.
        """
        closed = sorted(contrasts, key=lambda group: (-contrasts[group], group))[self._trained :]
        self._open.difference_update(closed)
        return closed

    def challenger(
        self, contrasts: Mapping[int, float], expected: Callable[[int], float]
    ) -> tuple[int, float] | None:
        """The next group to open, and by how much it is expected to contrast more than the one that
        it would replace; None where there is no such group. Those that were opened and are not
        scored yet are taken to replace the weakest.

        Args:
            contrasts: of the open groups of which K candidates are scored.
            expected: contrast of the first K candidates of a group.
        """
        replaced = len(self._open) - self._trained
        if not self._waiting or replaced >= len(contrasts):
            return None
        weakest = sorted(contrasts.values())[replaced]
        values = {group: expected(group) for group in islice(self._waiting, LOOKED_AT)}
        best = max(values, key=lambda group: (values[group], -group))
        return best, values[best] - weakest
