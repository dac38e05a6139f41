"""The actors of one worker process, and how its node learns that they are there."""

from __future__ import annotations

from collections.abc import Callable

from spotlight.actors.protocol.delivery import insist
from spotlight.actors.protocol.up import WorkerRefs, WorkerUp
from spotlight.actors.runtime import Actor, ActorRef, ActorSystem
from spotlight.actors.worker.engine import Engine
from spotlight.actors.worker.group_leader import GroupLeader
from spotlight.actors.worker.member import Member
from spotlight.actors.worker.shared_model import SharedModel
from spotlight.actors.worker.trainer_rank import TrainerRank
from spotlight.actors.worker.worker_state import WorkerContext


async def start_actors(
    system: ActorSystem, context: WorkerContext, engine: Engine, start: str
) -> None:
    """Start them; the crash of one ends the process. `start`: see `WorkerUp`."""

    async def spawn(factory: Callable[[], Actor], name: str) -> ActorRef:
        return await system.spawn(factory, name, linked=True)

    shared = SharedModel(context, engine)
    member = await spawn(lambda: Member(context, engine, shared), "member")
    trainer = await spawn(lambda: TrainerRank(context, engine, shared), "trainer-rank")
    leader = await spawn(lambda: GroupLeader(context, member, trainer), "leader")
    refs = WorkerRefs(context.name, context.epoch, leader, member, trainer, engine.device_kind)
    await spawn(lambda: Introduction(context, WorkerUp(refs, start, engine.device)), "introduction")


class Introduction(Actor):
    """Tells the node that the worker is up, and ends once the node knows it. The first attempt may
    be lost: when the process is stopped while it connects, for example."""

    def __init__(self, context: WorkerContext, message: WorkerUp) -> None:
        self._context = context
        self._message = message

    async def started(self) -> None:
        """Begin; the process goes on meanwhile."""
        self.run_task(self._introduce())

    async def _introduce(self) -> None:
        node = self.system.well_known(self._context.node, "node")
        timings = self._context.timings.delivery
        await insist(self, lambda: node, self._message, wanted=lambda: True, timings=timings)
        self.stop()
