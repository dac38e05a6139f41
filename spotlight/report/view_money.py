"""What a run has cost, as a view shows it: by its ledger, its roll-ups and its metrics."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from fractions import Fraction
from statistics import fmean
from typing import Literal

from spotlight.jobs import JobSpec
from spotlight.policies.money.advice import Measured, advise
from spotlight.policies.money.bill import (
    Account,
    account,
    latest_bills,
    mean_price,
    sources_of,
)
from spotlight.policies.money.otherwise import Work, otherwise
from spotlight.policies.money.spending import Spending
from spotlight.record.ledger import Ledger, NodeBill, RollupLine, TimeState
from spotlight.record.run_metrics import IterationMetrics
from spotlight.report.run_view import ExplorationPart, MoneyPart, WhatIf

_LATEST = 32
"""The latest iterations, so many, say how it goes now."""
_USEFUL: tuple[TimeState, ...] = ("rollout", "explore", "train", "score", "evaluate", "idle")
_DIGITS = 6


class ViewMoney:
    """Fed with what a run writes down, in order."""

    def __init__(self, job: JobSpec) -> None:
        self._job = job
        self._spending: Spending | None = None
        self._work = Work()
        self._latest: deque[IterationMetrics] = deque(maxlen=_LATEST)
        self._iterations = 0
        self.bills: tuple[NodeBill, ...] = ()
        self._account = Account()
        self._spent: Fraction | None = None
        self._ledger: Ledger | None = None
        self._seconds: dict[str, dict[TimeState, float]] = {}
        self._changes = 0
        self._told: tuple[object, MoneyPart] = (None, MoneyPart())

    @property
    def is_known(self) -> bool:
        """Whether anything was accounted for."""
        return bool(self.bills)

    def ledger(self, ledger: Ledger) -> None:
        """The account as it stands."""
        self._changes += 1
        self._ledger, self.bills = ledger, ledger.bills
        self._seconds = _seconds(ledger.bills)
        self._account = account(ledger.bills)
        self._spent = self._account.spent
        if self._spending is None and ledger.bills:
            self._spending = Spending(min(bill.from_at for bill in ledger.bills))
        if self._spending is not None and self._spent is not None:
            self._spending.settle(ledger.time_s, ledger.at, float(self._spent))

    def rollup(self, line: RollupLine) -> None:
        """The next line of the roll-ups."""
        self._changes += 1
        if self._spending is None:
            self._spending = Spending(line.at - line.end_s)
        self._spending.add(line)

    def iteration(self, metrics: IterationMetrics) -> None:
        """An iteration is over."""
        self._changes += 1
        self._iterations = metrics.iteration + 1
        self._latest.append(metrics)
        self._work = self._work.plus(
            train_s=metrics.train_s or 0.0,
            samples=metrics.samples,
            reused=metrics.samples_reused - metrics.samples_finished,  # which were rolled out
            previews=metrics.previews,
        )

    def usd_at(self, time_s: float) -> float | None:
        """What had been spent by a run time; None if nothing is priced."""
        if self._spending is None or self._spent is None:
            return None
        return round(self._spending.at_run_time(time_s), _DIGITS)

    def seconds(self) -> dict[str, dict[TimeState, float]]:
        """Of all workers, by pool and state."""
        return self._seconds

    def of_exploration(self) -> float | None:
        """What exploration on spot nodes has cost; None if that is not known."""
        spent = self._account.paid_for("spot", "explore")
        return None if spent is None else float(spent)

    def part(
        self, time_s: float, reached_s: float | None, exploration: ExplorationPart
    ) -> MoneyPart:
        """All of it, reckoned again only when something was added.

        Args:
            time_s: run time.
            reached_s: the run time at which the target was reached, if it was.
            exploration: what it gains, by which advice is given.
        """
        key = (self._changes, reached_s, exploration)
        if self._told[0] != key:
            self._told = key, self._part(time_s, reached_s, exploration)
        return self._told[1]

    def _part(
        self, time_s: float, reached_s: float | None, exploration: ExplorationPart
    ) -> MoneyPart:
        budget = self._job.budget
        paid, ledger = self._account, self._ledger
        if ledger is None or not self.bills:
            return MoneyPart(
                currency=self._job.prices.currency,
                budget_usd=budget.usd,
                budget_hours=budget.hours,
            )
        spent, done = self._spent, self._iterations
        return MoneyPart(
            currency=ledger.currency,
            spent=None if spent is None else _rounded(spent),
            unpriced_s=paid.unpriced_s,
            per_iteration=None if spent is None or not done else _rounded(spent / done),
            to_target=None if reached_s is None else self.usd_at(reached_s),
            by_pool=_sorted(paid.by_pool()),
            by_state={pool: _sorted(states) for pool, states in sorted(paid.by_state().items())},
            by_node=_largest(paid.by_node()),
            by_hour=self._by_hour(),
            otherwise=self._otherwise(time_s),
            advice=advise(self._measured(ledger, exploration)).sentence
            if spent is not None
            else "",
            sources=sources_of(self.bills, ledger.currency),
            budget_usd=budget.usd,
            budget_hours=budget.hours,
        )

    def _by_hour(self) -> tuple[tuple[float, float], ...]:
        if self._spending is None or self._spent is None:
            return ()
        return tuple((hour, round(usd, _DIGITS)) for hour, usd in self._spending.by_hour())

    def _otherwise(self, time_s: float) -> tuple[WhatIf, ...]:
        return tuple(
            WhatIf(
                name=one.name,
                usd=None if one.cost is None else _rounded(one.cost),
                assumption=one.assumption,
            )
            for one in otherwise(self.bills, self._work, time_s)
        )

    def _advice(self, ledger: Ledger, exploration: ExplorationPart) -> str:
        return advise(self._measured(ledger, exploration)).sentence

    def _measured(self, ledger: Ledger, exploration: ExplorationPart) -> Measured:
        """What advice is based on."""
        there = [bill for bill in latest_bills(self.bills) if bill.is_there]
        spot = [bill for bill in there if bill.pool == "spot"]
        latest, work = list(self._latest), self._work
        spot_ms = self._account.total_ms("spot")
        useful_ms = self._account.worked_ms(_USEFUL, "spot")
        return Measured(
            reserved_gpus=sum(bill.workers for bill in there if bill.pool == "reserved"),
            spot_gpus=sum(bill.workers for bill in spot),
            node_gpus=max((bill.workers for bill in spot), default=0),
            reserved_price=_price(there, "reserved"),
            spot_price=_price(there, "spot"),
            iteration_s=_iteration_s(latest),
            rollout_s=_mean(one.rollout_s for one in latest),
            train_s=_mean(one.train_s for one in latest),
            previews_per_sample=work.previews / work.samples if work.samples else 0.0,
            most_previews=self._job.exploration.candidates,
            contrast=_interval(exploration),
            doubling=_doubling(latest),
            useful_share=useful_ms / spot_ms if spot_ms else 1.0,
            explores=_explores(self._job, latest),
            spot_share_of_previews=self._spot_share_of_previews(),
            currency=ledger.currency,
        )

    def _spot_share_of_previews(self) -> float:
        explored_ms = self._account.worked_ms(("explore",))
        return self._account.worked_ms(("explore",), "spot") / explored_ms if explored_ms else 1.0


def _price(bills: Sequence[NodeBill], pool: str) -> float | None:
    price = mean_price(bills, pool)
    return None if price is None else float(price)


def _iteration_s(latest: Sequence[IterationMetrics]) -> float:
    if len(latest) < 2:
        return 0.0
    return (latest[-1].time_s - latest[0].time_s) / (len(latest) - 1)


def _mean(values: Iterable[float | None]) -> float:
    known = [value for value in values if value is not None]
    return fmean(known) if known else 0.0


def _interval(exploration: ExplorationPart) -> tuple[float, float] | None:
    """That of the contrast of the kept seeds over random ones; None if it is not known yet."""
    if exploration.low is None or exploration.high is None:
        return None
    return exploration.low, exploration.high


def _doubling(latest: Sequence[IterationMetrics]) -> float | None:
    """What twice as many previews would add to the gain of choosing, in parts of it."""
    told = [
        (one.choice_worth - 1, one.choice_worth_doubled - one.choice_worth)
        for one in latest
        if one.choice_worth is not None and one.choice_worth_doubled is not None
    ]
    gained, added = map(sum, zip(*told, strict=True)) if told else (0.0, 0.0)
    return added / gained if gained > 0 else None


def _explores(
    job: JobSpec, latest: Sequence[IterationMetrics]
) -> Literal["in training time", "never", "otherwise"]:
    asked = job.exploration
    if asked.mode == "none":
        return "never"
    fills = asked.budget == "window" and asked.weights == "previous"
    is_whole = all(one.exploration_share >= 1 for one in latest)
    return "in training time" if fills and is_whole else "otherwise"


def _seconds(bills: Iterable[NodeBill]) -> dict[str, dict[TimeState, float]]:
    """Of all workers, by pool and state."""
    found: dict[str, dict[TimeState, int]] = {}
    for bill in bills:
        pool = found.setdefault(bill.pool, {})
        for times in bill.times.values():
            for state, ms in times.items():
                pool[state] = pool.get(state, 0) + ms
    return {
        pool: {state: ms / 1000 for state, ms in states.items() if ms}
        for pool, states in sorted(found.items())
    }


def _rounded(value: Fraction) -> float:
    return round(float(value), _DIGITS)


def _sorted(values: dict[str, Fraction]) -> dict[str, float]:
    return {name: _rounded(values[name]) for name in sorted(values)}


def _largest(values: dict[str, Fraction], most: int = 256) -> dict[str, float]:
    """Of so many nodes at most, those that cost most."""
    largest = sorted(values, key=lambda name: (-values[name], name))[:most]
    return _sorted({name: values[name] for name in largest})
