"""What GPUs cost a job, and what it may cost: warns when a budget is nearly spent, and stops the
job, which can be gone on with, when one is.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from spotlight.actors.protocol.up import NodeReport
from spotlight.errors import JobError
from spotlight.jobs.prices import prices_of
from spotlight.policies.money.budget import Budget, Standing, how_to_go_on
from spotlight.policies.money.prices import Prices
from spotlight.record.run_events import BudgetNear, NodeUnpriced

if TYPE_CHECKING:
    from spotlight.actors.coordinator.job.job_runner import JobRunner


class JobMoney:
    """See the module's docstring."""

    def __init__(self, job: JobRunner) -> None:
        self._job = job
        self._log = job.log.lines
        self.prices = self._prices(job.around.prices)
        budget = job.spec.budget
        self.budget = Budget(budget.usd, budget.hours, self.prices.currency)
        self.spent: float | None = None
        """What the job had cost when it was told last; None if nothing is priced."""
        self._standings: list[Standing] = []

    def _prices(self, given: Prices) -> Prices:
        try:
            return prices_of(self._job.spec.prices, given)
        except JobError as error:  # the coordinator has other prices than when the job came
            self._log.warning("prices_of_coordinator_not_used", reason=str(error))
            return prices_of(self._job.spec.prices, Prices())

    def begin(self) -> None:
        """Say what is taken as it is, though it may be a slip."""
        for remark in self.prices.remarks():
            self._log.warning("price_taken_as_it_is", remark=remark)

    def node_came(self, node: NodeReport) -> None:
        """If its time has no price, a budget of money does not count it: that is told once."""
        tally = self._job.record.run.tally
        if self.budget.usd is None or tally.has_unpriced:
            return
        if self.prices.of(node.node, node.pool, node.price, math.inf) is None:
            why = self.prices.refuses(node.price)
            self._job.event(NodeUnpriced(node=node.node, pool=node.pool, reason=why))

    def note(self, money: float | None, time_s: float) -> None:
        """What the job has cost until now, and its run time."""
        if self._job.phase.over:
            return
        self.spent = money
        self._standings = self.budget.standings(money, time_s)
        told = self._job.record.run.tally.budgets_near
        for field, is_spent, text in self._standings:
            if is_spent:
                run = str(self._job.record.run.path)
                self._job.end("cancelled", f"{text}; {how_to_go_on(field, run)}")
                return
            limit = self.budget.limit(field)
            if told.get(field) != limit:
                self._job.event(BudgetNear(budget=field, limit=limit, said=text))

    def troubles(self) -> list[str]:
        """What people should know of the budgets."""
        near = [standing for standing in self._standings if not standing.is_spent]
        said = [f"budget nearly spent: {standing.text}" for standing in near]
        if self.budget.usd is not None and self._job.record.run.tally.has_unpriced:
            said.append("`budget.usd` counts priced time only: not all nodes have a price")
        return said
