"""What the queue of a coordinator keeps of a job or session."""

from __future__ import annotations

from typing import Annotated

import msgspec

from spotlight.types import JobKind, JobState, Record

_Count = Annotated[int, msgspec.Meta(ge=0)]


class QueuedJob(Record, frozen=True):
    """A job or session in the queue of a coordinator. Times are seconds since 1970."""

    id: str
    name: str
    kind: JobKind
    owner: str
    """This is the id of a submitter's join token, or the operators'."""
    weight: Annotated[float, msgspec.Meta(ge=0)]
    """Its share of the spot nodes is in proportion to it."""
    priority: int
    """Jobs of a higher one begin first."""
    ranks: _Count
    """This is how many workers train; it is 0 for a session."""
    run_folder: str
    """This is the absolute path of what it leaves behind, and goes on from."""
    submitted_at: float
    state: JobState = "queued"
    began_at: float | None = None
    """It is None for one that waits for its first start."""
    ended_at: float | None = None
    """It is None for one that has not ended."""
    reason: str = ""
    """Why it ended as it did."""
    iteration: _Count = 0
    """This is how many iterations are done, as far as is known here."""
    iterations: _Count = 0
    """This is how many iterations there are to be."""
    changes: tuple[str, ...] = ()
    """The settings, each `path=value`, with which the run goes on, and which it has once begun."""

    @property
    def has_ended(self) -> bool:
        """Whether it takes no more of the coordinator's care."""
        return self.state not in ("queued", "running")
