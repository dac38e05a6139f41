"""Schedules of kills for jobs on real processes."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from benchmarks.live_jobs import NODES, Kill, draw_kills

RESERVED = {node.name for node in NODES if node.pool == "reserved"}


def drawn(seed: int) -> tuple[Kill, ...]:
    return draw_kills(random.Random(seed), 6, 20.0)


@pytest.mark.parametrize("seed", range(10))
def test_a_seed_always_means_the_same_kills_of_every_kind_in_order_and_in_time(seed: int) -> None:
    kills = drawn(seed)
    assert kills == drawn(seed)
    assert [kill.at_s for kill in kills] == sorted(kill.at_s for kill in kills)
    assert all(0.0 < kill.at_s <= 20.0 for kill in kills)
    assert Counter(kill.kind for kill in kills) == {"coordinator": 2, "worker": 2, "node": 2}


@pytest.mark.parametrize("seed", range(10))
def test_a_reserved_node_is_struck_once_at_most(seed: int) -> None:
    """A job whose trainers are lost again and again is given up on purpose."""
    struck = Counter(kill.name for kill in drawn(seed) if kill.name in RESERVED)
    assert max(struck.values(), default=0) <= 1
