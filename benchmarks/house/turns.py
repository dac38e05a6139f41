"""How many files of the package the coordinator's process enters for one thing that it handles, in
jobs and a session that faults disturb, as `spotlight chaos` runs them."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.house.watching import Turn, watched
from spotlight_simulation.addresses import address_of
from spotlight_simulation.chaos import run_seed
from spotlight_simulation.memory_cluster import COORDINATOR

SEEDS = (0, 1, 2, 3, 4, 5, 6, 8)
QUICK_SEEDS = (1, 3)
"""One job, and one session."""


class Entered:
    """The files of the turn of each name that entered most."""

    def __init__(self) -> None:
        self.by_message: dict[str, frozenset[str]] = {}
        """The most of each handler, by the class of the actor and the type of the message."""
        self.by_call: dict[str, frozenset[str]] = {}
        """The most of each call that another part of its process had an actor make in a turn of its
        own, by the actor's class and the call."""

    def add(self, turn: Turn) -> None:
        """Keep what a turn entered, if that is the most so far."""
        most = self.by_call if turn.is_call else self.by_message
        if len(turn.files) > len(most.get(turn.name, ())):
            most[turn.name] = frozenset(turn.files)


def entered(seeds: Sequence[int]) -> Entered:
    """What the seeds come to, together."""
    most = Entered()
    for seed in seeds:
        with watched(address_of(COORDINATOR), turns=True) as watch:
            run_seed(seed)
        for turn in watch.turns:
            most.add(turn)
    return most
