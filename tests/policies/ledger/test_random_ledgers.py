"""Whatever nodes do, networks lose and coordinators suffer: every millisecond is on the bill that
it belongs to, once."""

from __future__ import annotations

import pytest

from tests.policies.ledger.random_ledgers import RandomLife

SEEDS = 150


@pytest.mark.parametrize("first", range(0, SEEDS, 50))
def test_every_millisecond_is_on_the_bill_that_it_belongs_to(first: int) -> None:
    problems = {}
    writes = crashes = 0
    for seed in range(first, first + 50):
        life = RandomLife(seed)
        life.run()
        problems[seed] = life.problems
        writes, crashes = writes + life.writes, crashes + life.crashes
    assert not {seed: its for seed, its in problems.items() if its}
    assert writes > 500
    assert crashes > 150
