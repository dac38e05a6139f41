"""A node's side of its membership: it reports to the coordinator, and follows its plan.

A report is sent at once when it changes, and every few seconds; whatever is lost of reports and
plans comes again with the next one. A coordinator that does not answer is asked until it is back;
to one that does not know this node's key any more the node introduces itself anew (`Enrolment`).
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

import structlog

from spotlight.actors.node.enrolment import Enrolment
from spotlight.actors.protocol.delivery import try_tell
from spotlight.actors.protocol.down import NodePlan, NodeRefused
from spotlight.actors.protocol.up import NodeReport
from spotlight.actors.runtime import ActorRef
from spotlight.actors.runtime.log_limiter import LimitedLog
from spotlight.errors import AccessLost, AccessRefused, ActorError, NotAdmitted, UserError
from spotlight.timings import NodeTimings

if TYPE_CHECKING:
    from spotlight.actors.node.node import NodeScheduler

log = structlog.get_logger(__name__)


class CoordinatorLink:
    """See the module's docstring.

    Args:
        node: asks on its behalf, says what to report, and follows every plan but old ones; the same
            one again, if it is repeated.
        address: of the coordinator's process.
        enrolment: that of a node which joined by a token.
    """

    def __init__(
        self,
        node: NodeScheduler,
        address: str,
        enrolment: Enrolment | None,
        timings: NodeTimings,
    ) -> None:
        self._node = node
        self._address = address
        self._enrolment = enrolment
        self._timings = timings
        self._number = 0
        """The number of the latest report."""
        self._plan = 0
        """Number of the latest plan."""
        self._opened = False
        self._wake = asyncio.Event()
        """Report again without a pause."""
        self._lost_at: float | None = None
        """When the coordinator was lost; None while it is there."""
        self._refused_at: float | None = None
        """When it began to refuse this node; None while it does not."""
        self._log = LimitedLog(log)
        self.coordinator: ActorRef | None = None
        """The coordinator that this node has joined, and whose plan it follows."""

    def open(self) -> None:
        """Report from now on."""
        if not self._opened:
            self._opened = True
            self._node.run_task(self._keep_reporting())
        else:
            self.report()

    def report(self) -> None:
        """Something is new: say so now."""
        if self._opened and self.coordinator is not None:
            self._node.run_task(self._tell())
        else:
            self._wake.set()

    def report_at_last(self) -> None:
        """Say how things stand before the process ends; nobody waits for an answer."""
        try_tell(self._node, self._coordinator_now(), self._next_report())

    def lost(self, reason: str) -> None:
        """The coordinator is gone: join again when it is back."""
        self._log.warning("coordinator_lost", about=self.coordinator, reason=reason)
        if self._lost_at is None:
            self._lost_at = asyncio.get_running_loop().time()
        self.coordinator = None
        self._wake.set()

    def accept(self, plan: NodePlan) -> None:
        """Follow a plan, unless it is an old one."""
        if plan.coordinator != self.coordinator:
            self._log.info("joined", about=plan.coordinator, coordinator=self._address)
            self.coordinator, self._plan = plan.coordinator, 0
        self._node.watch(plan.coordinator)
        if plan.number >= self._plan:
            self._plan = plan.number
            log.debug("node_plan_followed", coordinator=str(plan.coordinator), number=plan.number)
            self._node.follow(plan)

    async def _keep_reporting(self) -> None:
        while True:
            self._wake.clear()
            is_known = await self._tell()
            pause_s = self._timings.report_s if is_known else self._timings.join_pause_s
            with suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._wake.wait()

    async def _tell(self) -> bool:
        """Report once; whether the coordinator is there and knows this node."""
        try:
            answer = await self._node.ask(
                self._coordinator_now(), self._next_report(), timeout_s=self._timings.join_limit_s
            )
        except ActorError as error:
            self._log.info("waiting_for_coordinator", address=self._address, reason=str(error))
            if isinstance(error, NotAdmitted):
                await self._enroll_again()
            if (
                self._lost_at is not None
                and self._now() - self._lost_at > self._timings.away_limit_s
            ):
                self._node.end_job()
            return False
        if isinstance(answer, NodeRefused):
            self._note_refusal(UserError(answer.reason))
            return False
        self._lost_at = self._refused_at = None
        if isinstance(answer, NodePlan):
            self.accept(answer)
        return True

    async def _enroll_again(self) -> None:
        if self._enrolment is None:
            return
        try:
            await self._enrolment.once()
        except AccessRefused as error:
            if error.soon:
                self._note_refusal(error)
            else:
                self._node.end(AccessLost(str(error)))
        except ActorError as error:
            self._log.info("waiting_for_coordinator", address=self._address, reason=str(error))

    def _note_refusal(self, error: UserError) -> None:
        self._log.error("join_refused", reason=str(error))
        if self._refused_at is None:
            self._refused_at = self._now()
        if self._now() - self._refused_at >= self._timings.refused_limit_s:
            self._node.end(error)

    def _next_report(self) -> NodeReport:
        self._number += 1
        return self._node.report(self._number, self.coordinator, self._plan)

    def _coordinator_now(self) -> ActorRef:
        """Whichever is there when a message arrives."""
        return self._node.system.well_known(self._address, "coordinator")

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()
