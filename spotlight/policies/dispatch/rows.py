"""What the table of requests keeps for each request, and which part survives a restart."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from spotlight.types import BundleOffer, Commit, Record, Request, Result

_STORY = 32
"""Of a request's life, so many of the latest events are remembered."""


class RequestState(Enum):
    """Where a request is in its life.

    ```
                    granted              completed with rewards
    submitted -> QUEUED ------> LEASED --------------------------> DONE
                   ^ |            | |
                   | |            | +-- failed too often, or --> GIVEN_UP
                   | |            |     lost with too many nodes    ^
                   | |            |                                 |
                   +-+------------+ returned, failed, revoked,      |
                     |              expired, or its worker is gone  |
                     +----------------------------------------------+
                       given up by an earlier coordinator of this run
    ```
    """

    QUEUED = "queued"
    LEASED = "leased"
    DONE = "done"
    GIVEN_UP = "given up"


class SavedRow(Record, frozen=True, omit_defaults=True):
    """What the journal holds of a request: how far it is, or how it ended.

    Example: `SavedRow(commit=Commit(step=10, bundle=..., row=2), rewards=(0.7,))` is finished.
    """

    commit: Commit | None = None
    """Saved steps; after the last one only the rewards are missing."""
    rewards: tuple[float, ...] | None = None
    """Of a finished request."""
    given_up: str = ""
    """Why nobody tries it again."""


@dataclass(eq=False)
class Row:
    """One request in the table."""

    request: Request
    state: RequestState = RequestState.QUEUED
    commit: Commit | None = None
    lease: int = 0
    """While it is leased."""
    attempts: int = 0
    """Leases that it was in."""
    resumed_at: int = 0
    """Steps that it had when the latest lease began."""
    failures_at: dict[str, int] = field(default_factory=dict)
    """How often denoising it failed, by worker."""
    score_failures: int = 0
    failed_at: frozenset[str] = frozenset()
    """Workers at which it failed; others try it first."""
    lost_with: set[str] = field(default_factory=set)
    """Nodes that were lost while they had it."""
    done_by: str = ""
    """Key of the bundle that held its sample when it was done."""
    result: Result | None = None
    """How it was done, while its sample is needed."""
    refused: list[BundleOffer] = field(default_factory=list)
    """Delivered without a lease. A table after this one may take them, so they stay until the
    request is forgotten."""
    events: list[tuple[float, str]] = field(default_factory=list)

    @property
    def failures(self) -> int:
        """How often denoising it failed."""
        return sum(self.failures_at.values())

    @property
    def steps_done(self) -> int:
        """Steps that need not be taken again."""
        return self.commit.step if self.commit is not None else 0

    @property
    def is_denoised(self) -> bool:
        """Whether only its rewards are missing."""
        return self.steps_done >= self.request.settings.steps

    def story(self) -> str:
        """Its life so far, an event a line."""
        first = f"{self.request.id}: {self.state.value} after {self.steps_done} steps"
        return "\n".join([first, *(f"  {at:.3f} s: {what}" for at, what in self.events)])

    def note(self, now: float, what: str) -> None:
        """Remember an event of its life."""
        self.events.append((now, what))
        if len(self.events) > _STORY:
            del self.events[0]


@dataclass(eq=False)
class Lease:
    """The right of `worker` to work on `rows` until `deadline`, in seconds on the table's clock."""

    number: int
    worker: str
    rows: tuple[Row, ...]
    granted_at: float
    deadline: float
    is_known: bool = False
    """Its holder has said that it has it."""
    is_denoised: bool = False
    """Its images only wait for their rewards."""
    recalled: str = ""
    """Why it was asked back; empty if it was not."""

    @property
    def request(self) -> Request:
        """One of its requests: kind, weights version and settings are those of all."""
        return self.rows[0].request

    @property
    def ids(self) -> tuple[str, ...]:
        """Of its requests, in order."""
        return tuple(row.request.id for row in self.rows)
