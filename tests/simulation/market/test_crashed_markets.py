"""Small jobs on real markets, with crashes of coordinators and nodes on top."""

from __future__ import annotations

from spotlight_simulation.market.crashed_markets import run_market, run_markets

SEEDS = range(8)


def test_whatever_the_market_takes_and_whoever_crashes_nothing_happens_that_must_not() -> None:
    outcomes = list(run_markets(SEEDS))
    assert [outcome.violations for outcome in outcomes] == [()] * len(SEEDS)
    assert sum(outcome.taken for outcome in outcomes) > 0
    assert sum(outcome.coordinator_kills for outcome in outcomes) > 0
    assert sum(outcome.node_kills for outcome in outcomes) > 0


def test_a_seed_says_the_same_every_time() -> None:
    assert run_market(1) == run_market(1)
