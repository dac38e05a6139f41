"""How a node leaves: after a notice its workers commit and give back their work, then the node
ends.

It keeps them warm: a notice may be withdrawn, and a node that is still there long after its
deadline stays. A node that another job is to have gives its work back in the same way, and comes
back when the coordinator says so. What stands is in the node's reports and in its workers' plans,
so nothing here is said only once.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

import structlog

from spotlight.actors.node.coordinator_link import CoordinatorLink
from spotlight.actors.node.worker_plans import WorkerPlans
from spotlight.actors.protocol.down import UserNotice
from spotlight.actors.protocol.up import NodeNotice
from spotlight.actors.runtime import ActorRef
from spotlight.policies.departure import SHARING, Departure, Standing
from spotlight.policies.notices import Notice
from spotlight.timings import DepartureTimings

if TYPE_CHECKING:
    from spotlight.actors.node.node import NodeScheduler

log = structlog.get_logger(__name__)


class Leaving:
    """See the module's docstring.

    Args:
        node: whose tasks wait, and which ends when it was told to and has left.
        plans: say when the workers stop.
        link: reports whenever something changes.
    """

    def __init__(
        self,
        node: NodeScheduler,
        plans: WorkerPlans,
        link: CoordinatorLink,
        timings: DepartureTimings,
    ) -> None:
        self._node = node
        self._plans = plans
        self._link = link
        self._outlived_after_s = timings.outlived_after_s
        self._departure = Departure(timings)
        self._must_end = False
        self._user_notice: tuple[ActorRef, int] | None = None
        """Who told the latest notice of a user, and its number."""

    @property
    def notice(self) -> NodeNotice | None:
        """The most urgent one; None while the node may stay."""
        notice = self._departure.notice
        return NodeNotice(notice.source, notice.lead_s) if notice is not None else None

    @property
    def has_left(self) -> bool:
        """Whether nothing is left that could be lost."""
        return self._departure.left

    async def follow_cloud(self, notices: AsyncIterator[Notice]) -> None:
        """Do what the machine's cloud says, for as long as the node runs."""
        async for notice in notices:
            if notice.kind == "advise":
                log.warning("node_at_risk", source=notice.source, event=notice.event_id)
            elif notice.kind == "cancel":
                self._withdraw("cloud")
            else:
                self._leave("cloud", notice.source, notice.lead_s)

    def follow_user(self, coordinator: ActorRef, notice: UserNotice | None) -> None:
        """A user gives notice, or takes it back; each word of it counts once."""
        told, number = self._user_notice or (coordinator, 0)
        if notice is None or (told == coordinator and notice.number <= number):
            return
        self._user_notice = (coordinator, notice.number)
        if notice.cancel:
            self._withdraw("user")
        else:
            self._leave("user", "user", notice.notice_s)

    def follow_sharing(self, give_back_in_s: float | None) -> None:
        """Another job is to have the node, or it may go on."""
        if give_back_in_s is None:
            self._withdraw(SHARING)
        elif not self._departure.stands(SHARING):
            self._leave(SHARING, SHARING, give_back_in_s)

    def drained(self, worker: str) -> None:
        """Nothing is left there that could be lost."""
        self._departure.drained(worker)
        self.look()

    def restarted(self, worker: str) -> None:
        """A worker's process has ended: whether the next one holds something is open."""
        self._departure.restarted(worker)

    def look(self) -> None:
        """Go, if nothing is left of what there is to wait for."""
        if self._departure.may_leave(self._node.workers):
            log.warning("node_left")
            self._link.report()
        if self._departure.left and self._must_end:
            self._link.report_at_last()
            self._node.end()

    def _leave(self, via: str, source: str, lead_s: float | None) -> None:
        log.warning("node_leaving", source=source, lead_s=lead_s)
        self._must_end = self._must_end or source == "signal"
        self._departure.give(via, source, lead_s, asyncio.get_running_loop().time())
        self._go_on()

    def _withdraw(self, via: str) -> None:
        if self._departure.withdraw(via):
            if self._departure.notice is None:
                self._stay("withdrawn")
            else:
                self._go_on()

    def _go_on(self) -> None:
        notice = self._departure.notice
        assert notice is not None, "the node leaves for a reason"
        self._tell()
        self._node.run_task(self._stay_if_outlived(notice))
        self.look()

    def _stay(self, reason: str) -> None:
        log.warning("node_stays", reason=reason)
        self._departure.stay()
        self._tell()

    def _tell(self) -> None:
        """The workers when to stop, or to go on; and the coordinator."""
        now = asyncio.get_running_loop().time()
        is_given = self._departure.notice is not None
        self._plans.set_stop(now + self._departure.stop_in_s(now) if is_given else None)
        self._link.report()

    async def _stay_if_outlived(self, notice: Standing) -> None:
        now = asyncio.get_running_loop().time()
        await asyncio.sleep(notice.deadline + self._outlived_after_s - now)
        if self._departure.notice == notice:
            self._stay("outlived")
