"""Reports: what a worker says to its node, and to those who run its job.

A report is whole: the latest one counts, and it is sent on change and every few seconds, so one
that is lost costs no more than a little time.
"""

from __future__ import annotations

from typing import Literal

from spotlight.actors.runtime import ActorRef
from spotlight.transport.control import Message
from spotlight.types import Record, WorkerName

WorkerState = Literal[
    "starting", "loading", "rollout", "explore", "evaluate", "score", "train", "idle", "gone"
]


class WorkerRefs(Record, frozen=True):
    """The actors of one worker process."""

    worker: WorkerName
    epoch: int
    """Differs for every process that ever bears the name."""
    leader: ActorRef
    member: ActorRef
    trainer_rank: ActorRef


class WorkerUp(Message, frozen=True):
    """Worker to its node: the process is warm and its actors are there."""

    refs: WorkerRefs
    key: str
    """That the node gave the process as it started it, so that nobody else comes in its place."""


class WorkerReport(Message, frozen=True):
    """What a worker holds, does, and is ready for.

    Member to its leader whenever it changes; the leader adds what it knows itself and sends it to
    the node, to the job runner, and to the leader of rank 0 of its SP group. It is also the answer
    to a `WorkerPlan`: a process whose loop does not turn gives none.
    """

    worker: WorkerName
    epoch: int
    """Of the worker's process."""
    plan: int = 0
    """Number of the latest plan that it follows; 0 before the first."""
    job_id: str = ""
    """The job whose spec it has; empty for none."""
    rollout: tuple[int, ...] = ()
    """Weights versions of that job which the member has, model included, for rollouts."""
    evaluation: tuple[int, ...] = ()
    """The same for evaluations."""
    cannot_serve: str = ""
    """Why the job's model cannot be loaded here; empty if nothing is known against it."""
    group: int = 0
    """Epoch of the SP group that it is in, or tries to form; 0 before the first."""
    formed: bool = True
    """Whether that group can denoise."""
    failure: str = ""
    """Why that group did not form, or broke; empty if it did not."""
    culprits: tuple[WorkerName, ...] = ()
    """The members that are why; nobody if that is not known."""
    draining: bool = False
    """Whether it takes nothing more, because the node is to leave."""
    drained: bool = False
    """Whether nothing is left there that could be lost, either."""
    state: WorkerState = "starting"
    """What the worker does."""
    detail: str = ""
    """The same in words."""

    @property
    def ready_for(self) -> str:
        """The job that it can denoise for; empty for none."""
        return self.job_id if self.rollout else ""
