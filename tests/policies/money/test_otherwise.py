"""What the same run would have cost otherwise."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

import pytest
from money_kit import HOUR_MS, bill

from spotlight.policies.money.otherwise import Otherwise, Work, otherwise
from spotlight.record.ledger import NodeBill

WORK = Work(train_s=1800.0, samples=100, reused=0, previews=400)
"""Of a run of an hour, half of which was training."""
RESERVED = bill(
    "reserved-1", price=6.0, on_demand=8.0, train=HOUR_MS // 2, rollout=HOUR_MS // 4,
    idle=HOUR_MS // 4,
)  # fmt: skip
SPOT = bill(
    "spot-1", price=2.0, on_demand=8.0, explore=HOUR_MS // 2, rollout=HOUR_MS // 4,
    loading=HOUR_MS // 4,
)  # fmt: skip


def costs(bills: Sequence[NodeBill] = (RESERVED, SPOT), work: Work = WORK) -> dict[str, Otherwise]:
    return {each.name: each for each in otherwise(bills, work, 3600.0)}


def test_on_demand_is_the_same_time_at_that_price() -> None:
    assert costs()["on demand"].cost == 16


def test_reserved_nodes_only_train_as_long_and_make_all_samples_one_after_another() -> None:
    training, rollouts = Fraction(1, 2), Fraction(1, 4) + Fraction(1, 4)
    assert costs()["reserved nodes only"].cost == 6 * (training + rollouts)


def test_reserved_gpus_that_do_not_train_are_paid_for_while_others_do() -> None:
    other = bill("reserved-2", price=6.0, idle=HOUR_MS)
    both = costs((RESERVED, other, SPOT))["reserved nodes only"].cost
    assert both == 6 * (2 * Fraction(1, 2) + Fraction(1, 2))


def test_data_parallel_divides_the_gpu_time_of_samples_and_training() -> None:
    assert costs()["data-parallel on demand"].cost == 8 * (Fraction(1, 2) + Fraction(1, 2))
    assert costs()["data-parallel on spot"].cost == 2 * (Fraction(1, 2) + Fraction(1, 2))


def test_of_scoring_the_share_of_samples_is_needed_otherwise() -> None:
    scored = bill("spot-2", price=2.0, on_demand=8.0, score=HOUR_MS)
    more = costs((RESERVED, SPOT, scored))["data-parallel on spot"].cost
    assert more == 2 * (1 + Fraction(100, 500))


def test_previews_that_are_trained_on_are_needed_otherwise() -> None:
    work = Work(train_s=1800.0, samples=100, reused=100, previews=400)
    bills = (
        bill("reserved-1", price=6.0, on_demand=8.0, train=HOUR_MS),
        bill("spot-1", price=2.0, on_demand=8.0, explore=HOUR_MS),
    )
    assert costs(bills, work)["data-parallel on spot"].cost == 2 * (1 + Fraction(1, 4))


@pytest.mark.parametrize(
    "name",
    ["on demand", "reserved nodes only", "data-parallel on demand", "data-parallel on spot"],
)
def test_each_has_one_sentence_of_what_is_assumed(name: str) -> None:
    assumption = costs()[name].assumption
    assert assumption.endswith(".") and ". " not in assumption


def test_what_is_not_known_on_demand_is_not_said_but_why() -> None:
    spot = bill("spot-1", price=2.0, explore=HOUR_MS)
    found = costs((RESERVED, spot))
    for name in ("on demand", "data-parallel on demand"):
        assert found[name].cost is None
        assert "prices.on_demand" in found[name].assumption
    assert found["data-parallel on spot"].cost is not None


def test_nothing_is_said_by_reserved_nodes_without_a_price() -> None:
    reserved = bill("reserved-1", price=None, train=HOUR_MS)
    found = costs((reserved, SPOT))["reserved nodes only"]
    assert found.cost is None and found.assumption.startswith("Cannot be said")


def test_nothing_is_said_before_the_first_iteration() -> None:
    found = costs(work=Work())
    assert found["reserved nodes only"].cost is None
    assert found["data-parallel on demand"].cost is None
    assert found["on demand"].cost == 16


def test_nothing_is_said_of_a_run_without_prices() -> None:
    assert costs((bill("spot-1", price=None, explore=1),)) == {}


def test_a_run_of_one_pool_can_be_compared_on_demand() -> None:
    assert costs((RESERVED,))["data-parallel on demand"].cost == 8 * Fraction(3, 4)
