"""What is shown of a run's money: fills `MoneyPart`, and says what a time, an iteration or a node
has cost. Everything is derived from the ledger and the roll-ups; nothing here is kept.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from statistics import fmean
from typing import Literal

from spotlight.jobs import JobSpec
from spotlight.policies.money.advice import Advice, Measured, advise
from spotlight.policies.money.bill import Account, account, by_state, rate_of
from spotlight.policies.money.otherwise import Work, otherwise
from spotlight.policies.money.spending import Spending
from spotlight.record.ledger import Ledger, NodeBill, RollupLine
from spotlight.record.run_metrics import IterationMetrics, ValidationMetrics
from spotlight.report.run_view import MoneyPart, WhatIf

_RECENT = 20
"""Iterations by which advice is given."""
_MOST_SOURCES = 50
_NOT_USEFUL = frozenset({"starting", "loading", "draining", "lost"})


class RunMoney:
    """The money of a run, which is fed with its records as they come; its memory is bounded.

    Args:
        job: what is run.
    """

    def __init__(self, job: JobSpec) -> None:
        self._job = job
        self._ledger = Ledger()
        self._account = Account()
        self._spent: float | None = None
        self._spending: Spending | None = None
        self._recent: deque[IterationMetrics] = deque(maxlen=_RECENT)
        self._work = Work()
        self._done = 0
        self._reached_s: float | None = None
        """When a validation reached the target first, in run time."""

    # --- what it is fed ---

    def ledger(self, ledger: Ledger) -> None:
        """The account as it stands."""
        self._ledger, self._account = ledger, account(ledger.bills)
        spent = self._account.spent
        self._spent = None if spent is None else float(spent)
        if self._spent is not None:
            if self._spending is None:
                self._spending = Spending(_from_at(ledger))
            self._spending.settle(ledger.time_s, ledger.at, self._spent)

    def rollup(self, line: RollupLine) -> None:
        """The next line of the roll-ups, of whatever level: in order, and no time twice."""
        if self._spending is None and line.spent:
            self._spending = Spending(line.at - (line.end_s - line.start_s))
        if self._spending is not None:
            self._spending.add(line)

    def iteration(self, metrics: IterationMetrics) -> None:
        """An iteration is over."""
        self._recent.append(metrics)
        self._done = metrics.iteration + 1
        self._work = self._work.plus(
            train_s=metrics.train_s or 0.0,
            samples=metrics.samples,
            reused=metrics.samples_reused,
            previews=metrics.previews + metrics.previews_late,
        )

    def validation(self, metrics: ValidationMetrics) -> None:
        """A weights version is validated."""
        target = self._job.validation.target
        if target is not None and self._reached_s is None and metrics.score >= target:
            self._reached_s = metrics.time_s

    # --- what it says ---

    def at(self, time_s: float) -> float | None:
        """What had been spent by a run time: the money of a mark, or of an iteration; None if
        nothing is priced."""
        return None if self._spending is None else self._spending.at_run_time(time_s)

    def per_hour(self) -> float | None:
        """What the nodes that are there cost in an hour; None if one of them has no price."""
        rates = [rate_of(bill) for bill in latest_bills(self._ledger) if bill.is_there]
        known = [rate for rate in rates if rate is not None]
        return sum(known) if known and len(known) == len(rates) else None

    def usd_left(self, seconds_left: float | None) -> float | None:
        """What so much more time costs with the nodes that are there; None if that is not known."""
        rate = self.per_hour()
        return None if rate is None or seconds_left is None else rate * seconds_left / 3600

    def part(self, none: Ledger | None = None) -> MoneyPart:
        """What is shown of it. `none` is the ledger of time without a job in the same folder of
        runs."""
        ledger, sums, spent = self._ledger, self._account, self._spent
        return MoneyPart(
            currency=ledger.currency,
            spent=spent,
            unpriced_s=sums.unpriced_s,
            per_iteration=None if spent is None or not self._done else spent / self._done,
            to_target=None if self._reached_s is None else self.at(self._reached_s),
            by_pool={pool: float(each) for pool, each in sums.by_pool().items()},
            by_state={
                pool: {state: float(each) for state, each in states.items()}
                for pool, states in sums.by_state().items()
            },
            by_node={node: float(each) for node, each in sums.by_node().items()},
            by_hour=() if self._spending is None else self._spending.by_hour(),
            otherwise=self._otherwise(),
            advice="" if spent is None else self.advice().sentence,
            sources=sources_of(ledger),
            budget_usd=self._job.budget.usd,
            budget_hours=self._job.budget.hours,
            without_job=_without_job(none),
        )

    def advice(self) -> Advice:
        """Whether one more spot node is worth its price."""
        return advice_of(self._ledger, self._recent, self._job)

    def _otherwise(self) -> tuple[WhatIf, ...]:
        return tuple(
            WhatIf(
                name=each.name,
                usd=None if each.cost is None else float(each.cost),
                assumption=each.assumption,
            )
            for each in otherwise(self._ledger.bills, self._work, self._ledger.time_s)
        )


def money_of(
    ledger: Ledger,
    rollups: Iterable[RollupLine],
    iterations: Iterable[IterationMetrics],
    validations: Iterable[ValidationMetrics],
    job: JobSpec,
    none: Ledger | None = None,
) -> MoneyPart:
    """What is shown of a run's money, by all of its records, each in their order; lines of the
    roll-ups that the ledger does not account for do not count. See `RunMoney.part` for `none`."""
    money = RunMoney(job)
    money.ledger(ledger)
    for line in rollups:
        if line.number <= ledger.number:
            money.rollup(line)
    money.ledger(ledger)  # what came after the last line
    for metrics in iterations:
        money.iteration(metrics)
    for validation in validations:
        money.validation(validation)
    return money.part(none)


def latest_bills(ledger: Ledger) -> list[NodeBill]:
    """The latest bill of each node: its price now, and whether it is there."""
    latest: dict[str, NodeBill] = {}
    for bill in ledger.bills:
        before = latest.get(bill.node)
        if before is None or (bill.to_at, bill.from_at) >= (before.to_at, before.from_at):
            latest[bill.node] = bill
    return list(latest.values())


def advice_of(ledger: Ledger, iterations: Iterable[IterationMetrics], job: JobSpec) -> Advice:
    """Whether one more spot node is worth its price."""
    there = [bill for bill in latest_bills(ledger) if bill.is_there]
    spot = [bill for bill in there if bill.pool == "spot"]
    recent = list(iterations)[-_RECENT:]
    sums = account(ledger.bills)
    explored_ms = sums.worked_ms(("explore",))
    return advise(
        Measured(
            reserved_gpus=sum(bill.workers for bill in there if bill.pool == "reserved"),
            spot_gpus=sum(bill.workers for bill in spot),
            node_gpus=fmean(bill.workers for bill in spot) if spot else 0.0,
            reserved_price=_price_of(there, "reserved"),
            spot_price=_price_of(there, "spot"),
            iteration_s=_iteration_s(recent),
            rollout_s=_mean(each.rollout_s for each in recent),
            train_s=_mean(each.train_s for each in recent),
            previews_per_sample=_ratio(
                sum(each.previews for each in recent), sum(each.samples for each in recent)
            ),
            most_previews=job.exploration.candidates,
            contrasts=_contrasts(recent),
            useful_share=_useful(ledger.bills),
            explores=_explores(job, recent),
            spot_share_of_previews=_ratio(sums.worked_ms(("explore",), "spot"), explored_ms),
            currency=ledger.currency,
        )
    )


def sources_of(ledger: Ledger) -> tuple[str, ...]:
    """Where the prices are from, each with the pool and the price, and what may be a slip."""
    said = dict.fromkeys(_source(bill, ledger.currency) for bill in ledger.bills)
    return tuple(sorted(said))[:_MOST_SOURCES]


def _source(bill: NodeBill, currency: str) -> str:
    price = bill.price
    if price is None:
        return f"{bill.pool}: unpriced"
    is_above = price.on_demand is not None and price.usd_per_gpu_hour > price.on_demand
    slip = f"; above on demand, {price.on_demand:g}" if is_above else ""
    source = price.source or "unknown source"
    return f"{bill.pool}: {price.usd_per_gpu_hour:g} {currency} per GPU and hour ({source}{slip})"


def _from_at(ledger: Ledger) -> float:
    """When the run began to cost: the first bill may begin before it, as a machine boots."""
    ats = [bill.from_at for bill in ledger.bills if bill.from_at > 0]
    return min(ats, default=ledger.at - ledger.time_s)


def _contrasts(iterations: Sequence[IterationMetrics]) -> list[float]:
    return [
        each.contrast / each.contrast_at_random
        for each in iterations
        if each.contrast and each.contrast_at_random
    ]


def _explores(
    job: JobSpec, recent: Sequence[IterationMetrics]
) -> Literal["in training time", "never", "otherwise"]:
    exploration = job.exploration
    if exploration.mode == "none":
        return "never"
    fills = exploration.budget == "window" and exploration.weights == "previous"
    is_whole = all(each.exploration_share >= 1 for each in recent)
    return "in training time" if fills and is_whole else "otherwise"


def _iteration_s(iterations: Sequence[IterationMetrics]) -> float:
    """How long one takes; by its parts where only one is known."""
    if len(iterations) > 1:
        apart = iterations[-1].iteration - iterations[0].iteration
        passed_s = iterations[-1].time_s - iterations[0].time_s
        if apart > 0 and passed_s > 0:
            return passed_s / apart
    return _mean((each.rollout_s or 0.0) + (each.train_s or 0.0) for each in iterations)


def _price_of(bills: Sequence[NodeBill], pool: str) -> float | None:
    """The mean price of a GPU of those that are there; None if one has none."""
    of_pool = [bill for bill in bills if bill.pool == pool]
    prices = [bill.price.usd_per_gpu_hour for bill in of_pool if bill.price is not None]
    if len(prices) < len(of_pool):
        return None
    workers = sum(bill.workers for bill in of_pool)
    if not workers:
        return 0.0
    return sum(price * bill.workers for price, bill in zip(prices, of_pool, strict=True)) / workers


def _useful(bills: Sequence[NodeBill]) -> float:
    times = by_state(
        worker for bill in bills if bill.pool == "spot" for worker in bill.times.values()
    )
    lost = sum(ms for state, ms in times.items() if state in _NOT_USEFUL)
    return 1 - _ratio(lost, sum(times.values()))


def _without_job(none: Ledger | None) -> float | None:
    spent = None if none is None else account(none.bills).spent
    return None if spent is None else float(spent)


def _mean(values: Iterable[float | None]) -> float:
    known = [value for value in values if value is not None]
    return fmean(known) if known else 0.0


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else 0.0
