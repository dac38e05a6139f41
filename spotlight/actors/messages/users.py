"""Between users and the coordinator."""

from __future__ import annotations

from typing import Literal

from spotlight.actors.messages.work import Record
from spotlight.jobs import JobSpec
from spotlight.transport.control import Message

Outcome = Literal["", "finished", "cancelled", "failed"]


class SubmitJob(Message, frozen=True):
    """Start a job, or go on with the one in `run_folder`."""

    job: JobSpec
    run_folder: str
    resume: bool


class JobAccepted(Message, frozen=True):
    """The job runs; its files are in `run_folder`."""

    job_id: str
    run_folder: str


class JobRefused(Message, frozen=True):
    """The job does not run, and why."""

    reason: str


class CancelJob(Message, frozen=True):
    """End the job now; it can be resumed from its run folder."""


class GetStatus(Message, frozen=True):
    """Ask for a `JobStatus`."""


class WorkerStatus(Record, frozen=True):
    """What one worker does."""

    name: str
    node: str
    pool: str
    state: str
    detail: str
    leader: str = ""
    """Who leads the SP group that it is in, if that has several members."""
    members: int = 1
    """Of that group."""


class JobStatus(Message, frozen=True):
    """Progress of the job, for people."""

    job: str
    phase: str
    iteration: int
    iterations: int
    weights_version: int
    elapsed_s: float
    done: int
    wanted: int
    images_per_s: float
    reward_mean: float | None
    validation: tuple[tuple[float, float], ...]
    workers: tuple[WorkerStatus, ...]
    previews: int
    reissued: int
    late: int
    discarded: int
    """Finished samples thrown away because newer weights were published; must stay 0."""
    quarantined: tuple[str, ...]
    """Requests given up because every node that took them was lost."""
    preemptions: int
    dead_letters: int
    outcome: Outcome
    reason: str
    """Of the outcome; before it, what the job waits for, if it cannot begin."""
    run_folder: str


class JobEnded(Message, frozen=True):
    """Job runner to coordinator: the last status."""

    status: JobStatus
