"""How a member comes together with the others of its SP group, and parts from them."""

from __future__ import annotations

from collections.abc import Callable

from spotlight.actors.protocol import GroupPlan
from spotlight.actors.worker.engine import Engine, Meeting, Model
from spotlight.actors.worker.step_group import GroupSteps, SoloSteps, StepGroup
from spotlight.actors.worker.worker_state import WorkerContext
from spotlight.errors import TransportError


class GroupConnector:
    """See `sp_membership.Connector`.

    Args:
        model: the one that is loaded, and the fingerprint of its job; None before.
    """

    def __init__(
        self,
        context: WorkerContext,
        engine: Engine,
        model: Callable[[], tuple[Model, str] | None],
    ) -> None:
        self._context = context
        self._engine = engine
        self._model = model
        self.alone: StepGroup = SoloSteps(engine.step)

    def fingerprint(self) -> str | None:
        """See `Connector.fingerprint`."""
        loaded = self._model()
        return loaded[1] if loaded is not None else None

    def meet(self, order: GroupPlan, rank: int, send: Callable[[str, bytes], None]) -> _Arrival:
        """See `Connector.meet`."""
        loaded = self._model()
        if loaded is None:
            raise TransportError("the job has ended on this member")
        workers = [seat.worker for seat in order.seats]
        return _Arrival(self._engine.meet(loaded[0], order.epoch, workers, rank, order.ring, send))

    def leave(self, company: StepGroup) -> None:
        """See `Connector.leave`."""
        if isinstance(company, GroupSteps):
            company.collective.close()

    def leave_behind(self, company: StepGroup) -> None:
        """See `Connector.leave_behind`."""
        if isinstance(company, GroupSteps):
            company.collective.abandon()
            if company.inside:
                self._context.abandon_accelerator()


class _Arrival:
    """See `sp_membership.Arrival`."""

    def __init__(self, meeting: Meeting) -> None:
        self._meeting = meeting
        self.deliver = meeting.deliver
        self.close = meeting.close

    async def company(self) -> GroupSteps:
        """See `Arrival.company`."""
        return GroupSteps(await self._meeting.collective())
