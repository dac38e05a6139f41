"""Inside the coordinator's process: the coordinator and the job runner."""

from __future__ import annotations

from spotlight.actors.protocol.users import JobStatus
from spotlight.transport.control import Message


class NodeDown(Message, frozen=True):
    """Coordinator to the running job: a node is gone, with all its workers."""

    lane = "system"

    node: str
    reason: str
    announced: bool = False
    """It had notice, and left."""


class JobEnded(Message, frozen=True):
    """Job runner to coordinator: the last status."""

    status: JobStatus


class RunAgain(Message, frozen=True):
    """Job runner to coordinator: the trainers are lost; run the job again from its last checkpoint,
    with whoever is there.
    """

    reason: str
