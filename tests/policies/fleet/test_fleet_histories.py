"""Whatever happens to two nodes and two tenants, the table of the fleet stays sound."""

from __future__ import annotations

import random

import pytest
from fleet_world import World

STEPS = 300
WEIGHTS = {
    "report": 5.0,
    "turn": 20.0,
    "start": 6.0,
    "worker starts": 3.0,
    "over": 0.15,
    "gone": 0.1,
    "begin": 0.3,
    "user notice": 0.3,
    "report late": 0.3,
    "report as another": 0.3,
    "sick": 0.5,
    "bar": 0.3,
    "notice": 2.0,
    "says": 0.5,
    "assign": 2.0,
    "assign again": 0.3,
}
"""How often what happens is drawn; whatever is not named, once."""


@pytest.mark.parametrize("part", range(8))
def test_nothing_that_must_be_so_is_ever_broken(part: int) -> None:
    """Many long histories, drawn with numbers that are the same every time."""
    for seed in range(30 * part, 30 * (part + 1)):
        rng, world = random.Random(seed), World()
        for _ in range(STEPS):
            world.do(rng.choice(list(world.actions())))
        world.settle()


def test_every_order_of_few_steps_is_sound() -> None:
    """From a node of a tenant that is told what to do, all that can happen in three steps."""
    first = World()
    for action in ("start", "a"), ("begin", "one"), ("report", "a"), ("turn", "one"):
        first.do(action)
    first.do(("assign", "one", "a"))
    worlds, seen = [first], {first.outline()}
    for _ in range(3):
        later = []
        for world in worlds:
            for action in world.actions():
                other = world.copy()
                other.do(action)
                if other.outline() not in seen:
                    seen.add(other.outline())
                    later.append(other)
        worlds = later
    assert len(seen) > 500
    for world in worlds:
        world.settle()
