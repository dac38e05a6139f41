"""The main rivals where training has another share of an iteration, all by formula.

What an iteration of Spotlight is worth with some number of previews is as measured on one split;
how many there are, and how long it takes, is what is best on the split.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.exploration.cases import PROFILES, training_share
from benchmarks.markets.comparison import Field, Replay
from benchmarks.markets.entrants import RESERVED, SPOTLIGHT, Kept, entrants
from benchmarks.markets.places import PAPER, Place

NODES = 4
"""The spot nodes that are asked for."""
SPLITS = {training_share(name): name for name in PROFILES}
"""Profiles by the share of training."""
MAIN = (
    "torchft-on-spot-alone",
    "all-choose-on-spot",
    "torchft-on-spot",
    "pipelined-on-spot",
    RESERVED,
    "data-parallel-on-demand",
    "rollouts-on-spot",
    "published-on-demand",
)


class OtherSplits:
    """Everybody of `MAIN` and Spotlight, on every market and split."""

    def __init__(self, folder: Path, tasks: Sequence[str]) -> None:
        self._titles: dict[str, str] = {}
        self._replays = {
            share: Replay({(task, NODES): self._field(folder, task, split) for task in tasks})
            for share, split in SPLITS.items()
        }

    def _field(self, folder: Path, task: str, split: str) -> Field:
        everybody = entrants(Kept(folder, task, split), NODES, by_formula=True)
        self._titles = {name: one.title for name, one in everybody.items()}
        return Field({name: everybody[name] for name in (SPOTLIGHT, *MAIN)})

    def visit(self, place: Place) -> None:
        """Run them on one more market, if its nodes were held: only such count."""
        if place.trace.is_held:
            for replay in self._replays.values():
                replay.visit(place)

    def figures(self) -> dict[str, Mapping[str, Any]]:
        """By rival and share of training how many times as many hours and dollars it needs."""
        rows = {share: replay.over_ours(NODES) for share, replay in self._replays.items()}
        return {
            name: {
                "title": self._titles[name],
                **{
                    share: {"hours": row[name]["hours"], "cost": row[name][PAPER.name]}
                    for share, row in rows.items()
                },
            }
            for name in MAIN
        }
