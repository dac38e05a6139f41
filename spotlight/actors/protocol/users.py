"""Between users and the coordinator."""

from __future__ import annotations

from typing import Literal

from spotlight.actors.protocol.down import NoticeSeconds
from spotlight.jobs import JobSpec
from spotlight.text import LONGEST_ERROR, clean_fields
from spotlight.transport.control import Message
from spotlight.types import JobKind, JobState, NodeState, Record, WorkerState
from spotlight.types import Priority as Priority
from spotlight.types import Weight as Weight

Outcome = Literal["", "finished", "cancelled", "failed"]


class SubmitJob(Message, frozen=True):
    """Put a job into the queue, or the run in `run_folder`, which goes on."""

    job: JobSpec
    run_folder: str
    resume: bool
    weight: Weight = 1.0
    priority: Priority = 0
    changes: tuple[str, ...] = ()
    """What a run that goes on does otherwise from here on, each `path=value`."""


class JobAccepted(Message, frozen=True):
    """The job is in the queue, whatever happens to the coordinator, with its files in
    `run_folder`."""

    job_id: str
    run_folder: str


class JobRefused(Message, frozen=True):
    """The job is not in the queue, and why."""

    reason: str

    def __post_init__(self) -> None:
        clean_fields(self, "reason", most=LONGEST_ERROR)


class JobUnknown(Message, frozen=True):
    """There is no job of that id or name, or there are several; `reason` says which there are."""

    reason: str

    def __post_init__(self) -> None:
        clean_fields(self, "reason", most=LONGEST_ERROR)


class CancelJob(Message, frozen=True):
    """End a job now, or take it out of the queue; it can be resumed from its run folder. Answered
    with the `JobStatus` before, or with `CancelRefused` or `JobUnknown`."""

    job: str = ""
    """This is its id, the beginning of its id, or its name. Empty: the only one that has not ended.
    """
    reason: str = "cancelled by the user"

    def __post_init__(self) -> None:
        clean_fields(self, "reason")


class CancelRefused(Message, frozen=True):
    """The job goes on, and why."""

    reason: str

    def __post_init__(self) -> None:
        clean_fields(self, "reason")


class GetStatus(Message, frozen=True):
    """Ask for a `JobStatus`, or `JobUnknown`."""

    job: str = ""
    """This is its id, the beginning of its id, or its name. Empty: the one that runs for the
    longest, or else the one that ended last."""


class ListJobs(Message, frozen=True):
    """Ask for a `JobList`."""


class JobEntry(Record, frozen=True):
    """A job or session in the list of them."""

    id: str
    name: str
    kind: JobKind
    owner: str
    """This is the id of a submitter's join token, or the operators'."""
    state: JobState
    weight: float
    priority: int
    submitted_at: float
    """Seconds since 1970. So are those below."""
    began_at: float | None = None
    """It is None for one that waits for its first start."""
    ended_at: float | None = None
    run_folder: str = ""
    iteration: int = 0
    iterations: int = 0
    nodes: int = 0
    """How many nodes work for it."""
    note: str = ""
    """What it waits for, or why it ended as it did."""

    def __post_init__(self) -> None:
        clean_fields(self, "name", "note", most=LONGEST_ERROR)


class JobList(Message, frozen=True):
    """All jobs and sessions that have not ended, in the order in which they are to begin, and the
    latest of the others."""

    jobs: tuple[JobEntry, ...]


class WorkerStatus(Record, frozen=True):
    """What one worker does."""

    name: str
    node: str
    pool: str
    state: WorkerState
    detail: str
    leader: str = ""
    """Who leads the SP group that it is in, if that has several members."""
    members: int = 1
    """Members of that group."""

    def __post_init__(self) -> None:
        clean_fields(self, "name", "node", "pool", "detail", "leader")


class NodeStatus(Record, frozen=True):
    """A node that is there, or was."""

    name: str
    pool: str
    workers: int
    """How many it has, or had last."""
    state: NodeState
    since_s: float
    """Seconds since this coordinator first heard of it; of one that has left or is lost, since it
    went."""
    version: str = ""
    """Its version of Spotlight; empty of one that has left or is lost."""
    detail: str = ""
    """Who gave it notice, or why it went."""
    notice_left_s: float | None = None
    """Seconds until it is taken, by its notice; None if it has none, or that does not say."""
    job: str = ""
    """Id of the job or session that it works for; empty if for none."""

    def __post_init__(self) -> None:
        clean_fields(self, "name", "pool", "version", "detail", "job")


class MirrorStatus(Record, frozen=True):
    """How far the copy of a run in object storage is."""

    completed: int | None = None
    """Iterations in the checkpoint that it holds; None if nothing was copied yet."""
    committed: int = 0
    """Iterations in the checkpoint that it should hold."""
    failures: int = 0
    """Copies that failed, in the whole run."""
    problem: str = ""
    """Why the latest one failed; empty if it did not."""

    def __post_init__(self) -> None:
        clean_fields(self, "problem", most=LONGEST_ERROR)


class JobStatus(Message, frozen=True):
    """Progress of the job, for people; without arguments it says that there is no job."""

    job: str = ""
    id: str = ""
    owner: str = ""
    """This is the id of a submitter's join token, or the operators'."""
    weight: float = 1.0
    priority: int = 0
    phase: str = "waiting"
    iteration: int = 0
    iterations: int = 0
    weights_version: int = 0
    elapsed_s: float = 0.0
    """Seconds of run time: those of earlier coordinators count as far as they are on record, to the
    last ten, and those without one do not."""
    done: int = 0
    """Samples of the rollout that are there; this and `wanted` are 0 in other phases."""
    wanted: int = 0
    """Samples that the rollout is to have."""
    images_per_s: float = 0.0
    """It is that of the rollout which is under way, or else of the latest."""
    reward_mean: float | None = None
    """The mean of the latest samples that are all there; None before the first."""
    validation: tuple[tuple[float, float], ...] = ()
    workers: tuple[WorkerStatus, ...] = ()
    previews: int = 0
    """Those from which seeds were chosen, in the iterations that are on record. This and the counts
    below are of the whole run: they are in the run folder, and a coordinator that comes back counts
    on. Of a session, which leaves no record, all are since this coordinator began with it."""
    previews_late: int = 0
    """Previews that came too late for that."""
    handed_on: int = 0
    """Requests that went to another worker, since the first was lost or did not say in time that it
    still worked on them; each as often as that happened."""
    results_ignored: int = 0
    """Results that did not count, since the work had been taken back from who delivered them."""
    given_up: tuple[str, ...] = ()
    """Requests given up because every node that took them was lost."""
    preemptions: int = 0
    """Nodes that had notice, or were lost without."""
    outcome: Outcome = ""
    reason: str = ""
    run_folder: str = ""
    note: str = ""
    """What the job waits for, if that is not what a job of its phase does."""
    mirror: MirrorStatus | None = None
    """None if the run is not copied to object storage."""
    spent: float | None = None
    """What the run has cost, as far as its time has a price; None if none has."""
    currency: str = "USD"
    """The currency of `spent`."""
    price_sources: tuple[str, ...] = ()
    """Where prices are from that no node says of itself, and what of them may be a slip."""
    troubles: tuple[str, ...] = ()
    """What is wrong with trackers, exploration, the disk, workers and budgets: each names one, and
    says why it does not work, or how much is left."""
    nodes: tuple[NodeStatus, ...] = ()
    """All nodes of the coordinator, by name: those that are there, whatever they work for, and the
    latest that went."""

    def __post_init__(self) -> None:
        clean_fields(
            self, "job", "phase", "reason", "note", "price_sources", "troubles", most=LONGEST_ERROR
        )


class PreemptNode(Message, frozen=True):
    """User to coordinator: give a node notice as its cloud would. Answered with `Acknowledged`,
    `NodeUnknown` or `ConsentNeeded`.
    """

    node: str
    notice_s: NoticeSeconds
    cancel: bool
    yes: bool = False
    """Do it even if a job cannot train then."""


class DrainNode(Message, frozen=True):
    """User to coordinator: a node gives its work back and stays, with nothing to do, until that is
    taken back (`cancel`), however often it or the coordinator is started again. Answered with
    `Acknowledged`, `NodeUnknown`, `ConsentNeeded` or `DrainRefused`.
    """

    node: str
    cancel: bool
    yes: bool = False
    """Do it even if a job cannot train then."""


class DrainRefused(Message, frozen=True):
    """The node does what it did, and why."""

    reason: str

    def __post_init__(self) -> None:
        clean_fields(self, "reason", most=LONGEST_ERROR)


class ConsentNeeded(Message, frozen=True):
    """Nothing was done; say `yes` to have it done all the same."""

    reason: str

    def __post_init__(self) -> None:
        clean_fields(self, "reason")


class NodeUnknown(Message, frozen=True):
    """No node of that name is there to be told anything; `nodes` are."""

    nodes: tuple[str, ...]
    gone: str = ""
    """What became of the one that was there; empty if none of that name is remembered."""

    def __post_init__(self) -> None:
        clean_fields(self, "gone", most=LONGEST_ERROR)


class Acknowledged(Message, frozen=True):
    """Done; nothing more to say."""
