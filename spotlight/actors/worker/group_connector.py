"""How a member comes together with the others of its SP group, and parts from them."""

from __future__ import annotations

from collections.abc import Callable

from spotlight.actors.protocol.down import GroupPlan
from spotlight.actors.worker.engine import Engine, Meeting, Model
from spotlight.actors.worker.step_group import GroupSteps, SoloSteps, StepGroup
from spotlight.actors.worker.worker_state import WorkerContext
from spotlight.errors import TransportError


class GroupConnector:
    """See the module's docstring.

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
        """The same in all members that have this job and this model; None without a job."""
        loaded = self._model()
        return loaded[1] if loaded is not None else None

    def meet(self, order: GroupPlan, rank: int, send: Callable[[str, bytes], None]) -> Meeting:
        """Begin to form a group; `send` hands an entry to all others. Raises `TransportError`
        without a job, and `CannotShard` if the model cannot be shared out.
        """
        loaded = self._model()
        if loaded is None:
            raise TransportError("the job has ended on this member")
        workers = [seat.worker for seat in order.seats]
        return self._engine.meet(loaded[0], order.epoch, workers, rank, order.ring, send)

    def leave(self, group: StepGroup) -> None:
        """Part from a group in which nobody waits."""
        if isinstance(group, GroupSteps):
            group.collective.close()

    def leave_behind(self, group: StepGroup) -> None:
        """Part from one in which steps may be stuck: they are nothing to us any more."""
        if isinstance(group, GroupSteps):
            group.collective.abandon()
            if group.inside:
                self._context.abandon_accelerator()
