"""Whose orders a trainer rank obeys; what it does for them is a subclass's matter.

The node's plan says who runs the job, and the runner gives the orders. These two come over
different connections, so an order may be here first.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import structlog

from spotlight.actors.protocol import StartTrainer, WorkerPlan
from spotlight.actors.runtime import (
    Actor,
    ActorRef,
    Message,
    from_an_actor,
    from_this_process,
    handles,
)
from spotlight.actors.worker.worker_state import WorkerContext

log = structlog.get_logger(__name__)


def from_runner(actor: ObedientTrainer, message: Message) -> bool:
    """A guard for `handles`: the job runner that the node named says it."""
    return actor.runner is not None and actor.sender == actor.runner


class ObedientTrainer(Actor, ABC):
    """See the module's docstring. Subclasses guard their handlers with the function above."""

    def __init__(self, context: WorkerContext) -> None:
        self.context = context
        self.runner: ActorRef | None = None
        self._early: tuple[ActorRef, StartTrainer] | None = None
        """The latest order of one that the node has not named yet; it may do so in a moment."""

    @abstractmethod
    def begin(self, message: StartTrainer, asker: ActorRef) -> None:
        """Build the trainer, from the run's checkpoint if there is one."""

    @abstractmethod
    def free_all_but(self, job_id: str) -> None:
        """Free what belongs to any other job than this one."""

    @handles(WorkerPlan, only=from_this_process)
    async def on_plan(self, message: WorkerPlan) -> None:
        """Whose orders count from now on, and how many threads the job has."""
        job = message.job
        self.free_all_but(job.job_id if job is not None else "")
        self.runner = job.membership.runner if job is not None else None
        if job is not None and job.spec is not None:
            self.context.use_threads(job.spec.threads)
        if self.runner is not None and self._early is not None and self._early[0] == self.runner:
            (runner, order), self._early = self._early, None
            self.begin(order, runner)

    @handles(StartTrainer, only=from_an_actor)
    async def on_start(self, message: StartTrainer) -> None:
        """Begin, or keep the order until the node names its sender."""
        assert self.sender is not None
        if self.sender == self.runner:
            self.begin(message, self.sender)
        else:
            log.info("start_before_plan", sender=str(self.sender))
            self._early = (self.sender, message)
