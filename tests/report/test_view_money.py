"""What is shown of a run's money."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import msgspec
import pytest

from spotlight.jobs import JobSpec, job_from_data
from spotlight.record.ledger import Ledger, Milliseconds, NodeBill, Price, RollupLine
from spotlight.record.run_metrics import IterationMetrics
from spotlight.report.run_view import ExplorationPart, MoneyPart
from spotlight.report.view_money import ViewMoney

HOUR_MS = 3_600_000
T0 = 1_764_158_400.0
"""The beginning of an hour."""


def job(**sections: Any) -> JobSpec:
    return job_from_data(
        {
            "name": "first",
            "model": {"checkpoint": "builtin:ocr-tiny"},
            "prompts": {
                "train": "builtin:ocr-tiny/train",
                "validation": "builtin:ocr-tiny/validation",
            },
            "sampler": {"height": 32, "width": 64},
            **sections,
        }
    )


def bill(node: str, price: Price | None, *, to_at: float = T0 + 3600, **times: int) -> NodeBill:
    return NodeBill(
        node=node,
        pool=cast(Any, node.partition("-")[0]),
        process=f"process of {node}",
        workers=2,
        from_at=to_at - 3600,
        to_at=to_at,
        price=price,
        times={f"{node}/0": cast(Milliseconds, times)},
    )


RESERVED = bill("reserved-0", Price(6.0, 8.0, "a test"), train=HOUR_MS // 2, rollout=HOUR_MS // 2)
SPOT = bill("spot-0", Price(2.0, 8.0, "a test"), explore=HOUR_MS // 2, rollout=HOUR_MS // 2)
LEDGER = Ledger(number=2, at=T0 + 3600, time_s=3600.0, bills=(RESERVED, SPOT))
LINES = [
    RollupLine(
        number=1, start_s=0.0, end_s=1800.0, at=T0 + 1800, times={}, spent={"reserved": 1.0}
    ),
    RollupLine(
        number=2, start_s=1800.0, end_s=3600.0, at=T0 + 3600, times={},
        spent={"reserved": 6.0, "spot": 2.0},
    ),
]  # fmt: skip


def iteration(number: int, time_s: float = 0.0, **fields: Any) -> IterationMetrics:
    measured: dict[str, Any] = {
        "train_s": 450.0, "rollout_s": 60.0, "samples": 10, "previews": 40,
        "contrast": 1.7, "contrast_at_random": 1.0,
        "choice_worth": 3.0, "choice_worth_doubled": 4.0,
    }  # fmt: skip
    return IterationMetrics(iteration=number, time_s=time_s, **{**measured, **fields})


ITERATIONS = [iteration(number, 900.0 * number) for number in range(4)]


GAINS = ExplorationPart(verdict="paid", times=1.7, low=1.6, high=1.8)


def money(
    ledger: Ledger = LEDGER,
    lines: Sequence[RollupLine] = LINES,
    iterations: Sequence[IterationMetrics] = ITERATIONS,
    spec: JobSpec | None = None,
    reached_s: float | None = None,
    exploration: ExplorationPart = GAINS,
) -> MoneyPart:
    shown = ViewMoney(spec or job())
    shown.ledger(ledger)
    for line in lines:
        shown.rollup(line)
    for metrics in iterations:
        shown.iteration(metrics)
    return shown.part(ledger.time_s, reached_s, exploration)


def test_the_parts_of_what_was_spent_add_up() -> None:
    part = money()
    assert part.spent == 8.0
    assert part.by_pool == {"reserved": 6.0, "spot": 2.0}
    assert part.by_node == {"reserved-0": 6.0, "spot-0": 2.0}
    assert part.by_state["spot"] == {"explore": 1.0, "rollout": 1.0}
    assert sum(money for _, money in part.by_hour) == pytest.approx(8.0)
    assert part.per_iteration == 2.0


def test_money_to_the_target_is_what_had_been_spent_when_it_was_reached() -> None:
    assert money(reached_s=2700.0).to_target == pytest.approx(4.5)
    assert money().to_target is None


def test_what_a_run_would_have_cost_otherwise_is_shown_with_its_assumption() -> None:
    part = money()
    costs = {each.name: each.usd for each in part.otherwise}
    assert costs["on demand"] == 16.0
    assert costs["reserved nodes only"] == pytest.approx(6.0 * (0.5 + 1.0))
    assert costs["data-parallel on demand"] == pytest.approx(8.0 * 1.5)
    assert all(each.assumption for each in part.otherwise)


def test_a_run_without_prices_says_how_much_time_has_none() -> None:
    ledger = Ledger(number=1, at=T0, time_s=1.0, bills=(bill("spot-0", None, explore=1500),))
    part = money(ledger, lines=())
    assert (part.spent, part.unpriced_s, part.by_hour) == (None, 1.5, ())
    assert (part.per_iteration, part.otherwise, part.advice) == (None, (), "")
    assert part.sources == ("spot: unpriced",)


def test_advice_is_given_by_the_runs_own_figures() -> None:
    part = money(spec=job(exploration={"candidates": 8}))
    assert part.advice.startswith("One more spot node (2 GPUs) costs $4.00 an hour, 25.0% more")
    assert part.advice.endswith("worth it.")


def test_no_advice_is_given_before_the_gain_has_an_interval() -> None:
    advice = money(exploration=ExplorationPart(verdict="not shown", times=1.7)).advice
    assert "cannot be said" in advice


def test_no_advice_is_given_before_it_is_known_what_more_previews_would_gain() -> None:
    untold = [iteration(n, 900.0 * n, choice_worth=None) for n in range(4)]
    advice = money(spec=job(exploration={"candidates": 8}), iterations=untold).advice
    assert "what more previews would gain is not known yet" in advice


def test_no_advice_is_given_while_exploration_is_reduced() -> None:
    reduced = [*ITERATIONS, iteration(4, 3600.0, exploration_share=0.5)]
    assert "cannot be said" in money(iterations=reduced).advice


def test_a_node_whose_price_changed_is_one_node() -> None:
    before = bill("spot-0", Price(9.0, source="a test"), to_at=T0, explore=1)
    ledger = msgspec.structs.replace(LEDGER, bills=(before, RESERVED, SPOT))
    advice = money(ledger, spec=job(exploration={"candidates": 8})).advice
    assert advice.startswith("One more spot node (2 GPUs) costs $4.00 an hour, 25.0% more")


def test_sources_are_said_with_pool_and_price() -> None:
    assert money().sources == (
        "reserved: 6 USD per GPU and hour (a test)",
        "spot: 2 USD per GPU and hour (a test)",
    )


def test_a_price_above_on_demand_is_said_among_the_sources() -> None:
    ledger = Ledger(bills=(bill("spot-0", Price(9.0, 8.0, "a test"), idle=1),))
    (source,) = money(ledger).sources
    assert source.endswith("(a test; above on demand, 8)")


def test_budgets_are_shown() -> None:
    part = money(spec=job(budget={"usd": 10, "hours": 3}))
    assert (part.budget_usd, part.budget_hours) == (10.0, 3.0)
