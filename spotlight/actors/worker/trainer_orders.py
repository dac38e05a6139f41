"""Whose orders a trainer rank obeys; what it does for them is a subclass's matter.

The node says who runs the job (`PrepareJob`), and the runner gives the orders. These two come over
different connections, so an order may be here first.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import structlog

from spotlight.actors.protocol import PrepareJob, StartTrainer
from spotlight.actors.runtime import Actor, ActorRef, Message, from_an_actor, handles
from spotlight.actors.worker.worker_state import WorkerContext

log = structlog.get_logger(__name__)


def from_node(actor: ObedientTrainer, message: Message) -> bool:
    """A guard for `handles`: the node that started this worker says it."""
    return actor.sender_address == actor.context.node


def from_runner(actor: ObedientTrainer, message: Message) -> bool:
    """A guard for `handles`: the job runner that the node named says it."""
    return actor.runner is not None and actor.sender == actor.runner


class ObedientTrainer(Actor, ABC):
    """See the module's docstring. Subclasses guard their handlers with the two functions above."""

    def __init__(self, context: WorkerContext) -> None:
        self.context = context
        self.runner: ActorRef | None = None
        self._early: tuple[ActorRef, StartTrainer] | None = None
        """The latest order of one that the node has not named yet; it may do so in a moment."""

    @abstractmethod
    def begin(self, message: StartTrainer, asker: ActorRef) -> None:
        """Build the trainer, from the run's checkpoint if there is one."""

    @handles(PrepareJob, only=from_node)
    async def on_prepare(self, message: PrepareJob) -> None:
        """Whose orders count from now on, and how many threads the job has."""
        self.context.use_threads(message.job.threads)
        self.runner = message.membership.runner
        if self._early is not None and self._early[0] == self.runner:
            (runner, order), self._early = self._early, None
            self.begin(order, runner)

    @handles(StartTrainer, only=from_an_actor)
    async def on_start(self, message: StartTrainer) -> None:
        """Begin, or keep the order until the node names its sender."""
        assert self.sender is not None
        if self.sender == self.runner:
            self.begin(message, self.sender)
        else:
            log.info("start_before_prepare", sender=str(self.sender))
            self._early = (self.sender, message)
