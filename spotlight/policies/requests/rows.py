"""What the table of requests keeps of each request, lease and worker, and which part of it survives
a restart."""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import dataclass, field
from enum import Enum
from typing import Literal, NamedTuple

from spotlight.policies.requests.events import Report
from spotlight.types import BundleOffer, Commit, Record, Request, Result

_MOST_FAILED_GRADIENTS = 3
"""A worker that could not compute so many in a row is given no more."""
_STORY = 32
"""How many of the latest events of a request's life are remembered."""


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
    """Where its steps are saved; after the last step only the rewards are missing."""
    rewards: tuple[float, ...] | None = None
    """What a finished request was given, reward by reward; None of others."""
    given_up: str = ""
    """Why nobody tries it again; empty unless it was given up."""


@dataclass(eq=False)
class Row:
    """One request in the table."""

    request: Request
    state: RequestState = RequestState.QUEUED
    commit: Commit | None = None
    lease: int = 0
    """The number of the lease that it is in; 0 while it is in none."""
    attempts: int = 0
    """How many leases it was in."""
    resumed_at: int = 0
    """How many steps it had when the latest lease began."""
    failures_at: dict[str, int] = field(default_factory=dict)
    """How often denoising it failed, by worker."""
    score_failures: int = 0
    """How often scoring it failed."""
    failed_at: frozenset[str] = frozenset()
    """The workers at which it failed; others try it first."""
    lost_with: set[str] = field(default_factory=set)
    """The nodes that were lost while they had it."""
    done_by: str = ""
    """The key of the bundle that held its sample when it was done."""
    result: Result | None = None
    """How it was done, while its sample is needed."""
    refused: list[BundleOffer] = field(default_factory=list)
    """What was delivered of it without a lease. A table after this one may take that, so it stays
    until the request is forgotten."""
    events: list[tuple[float, str]] = field(default_factory=list)
    """What happened to it, with the second at which it did."""

    @property
    def failures(self) -> int:
        """How often denoising it failed, wherever that was."""
        return sum(self.failures_at.values())

    @property
    def steps_done(self) -> int:
        """How many steps need not be taken again."""
        return self.commit.step if self.commit is not None else 0

    @property
    def is_denoised(self) -> bool:
        """Whether only its rewards are missing."""
        return self.steps_done >= self.request.settings.steps

    @property
    def is_gradient(self) -> bool:
        """Whether nothing is denoised for it."""
        return self.request.kind == "gradient"

    def story(self) -> str:
        """Its life so far, an event a line."""
        first = f"{self.request.id}: {self.state.value} after {self.steps_done} steps"
        return "\n".join([first, *(f"  {at:.3f} s: {what}" for at, what in self.events)])

    def note(self, now: float, what: str) -> None:
        """Remember an event of its life."""
        self.events.append((now, what))
        if len(self.events) > _STORY:
            del self.events[0]


class WeightsKey(NamedTuple):
    """The weights that a worker must hold for a request."""

    version: int
    use: Literal["rollout", "evaluation", "gradient"]


def weights_of(request: Request) -> WeightsKey:
    """The weights with which a request is denoised; of a gradient those that roll out."""
    kind = request.kind
    use = kind if kind in ("evaluation", "gradient") else "rollout"
    return WeightsKey(request.weights_version, use)


@dataclass(eq=False)
class Lease:
    """The right of `worker` to work on `rows` until `deadline`, in seconds on the table's clock."""

    number: int
    worker: str
    rows: tuple[Row, ...]
    granted_at: float
    deadline: float
    is_known: bool = False
    """Whether its holder has said that it has it."""
    is_denoised: bool = False
    """Whether its images only wait for their rewards."""
    recalled: str = ""
    """Why it was asked back; empty if it was not."""

    @property
    def request(self) -> Request:
        """One of its requests, for what all of them share: kind, weights version and settings."""
        return self.rows[0].request

    @property
    def ids(self) -> tuple[str, ...]:
        """The ids of its requests, in their order."""
        return tuple(row.request.id for row in self.rows)


class StepsOf(NamedTuple):
    """Whose steps take the same time."""

    members: int
    """How many workers the group has."""
    preview_model: bool
    """Whether the model that the job names for previews takes the steps."""


@dataclass(eq=False)
class Taker:
    """One worker process as the table sees it."""

    name: str
    epoch: int
    node: str
    pool: str
    leader: Hashable
    """Who is told what follows for it."""
    computes: bool = False
    """Whether it computes gradients, before all else."""
    failed_gradients: int = 0
    """How many gradients it could not compute, in a row."""
    is_versatile: bool = False
    """Whether it does the other thing, denoises or computes, while there is nothing of that."""
    report: Report | None = None
    """Its latest report; None until there is one, and after it could not be reached."""
    leaving: bool = False
    """Whether its node has notice: it gets nothing more."""
    is_sick: bool = False
    """Whether it fails what others can do: it gets nothing until it is another process."""
    silent: bool = False
    """Whether it let a lease expire and has not been heard since."""
    failures: int = 0
    """How many leases it gave back though it should not have, failed, or let expire."""
    step_s: dict[StepsOf, float] = field(default_factory=dict)
    """How many seconds a denoising step of a batch took of late, by whose steps they are."""
    regrouped_at: float = -math.inf
    """When its group changed its size."""
    free_since: float = -math.inf
    """When its group had denoised a batch, or had given it up."""
    leases: dict[int, Lease] = field(default_factory=dict)
    """What it holds, by number."""
    revoked: set[int] = field(default_factory=set)
    """The leases that it was told to drop, and may still name."""

    @property
    def members(self) -> int:
        """How many workers the group has that it leads; 1 while it leads none."""
        return max(1, self.report.members) if self.report is not None else 1

    @property
    def load(self) -> int:
        """How many leases still keep its accelerator busy."""
        return sum(not lease.is_denoised for lease in self.leases.values())

    @property
    def not_begun(self) -> list[Lease]:
        """The leases that wait behind another one."""
        return [lease for _, lease in sorted(self.leases.items()) if not lease.is_denoised][1:]

    @property
    def fails_gradients(self) -> bool:
        """Whether it is given no more of them, until it is another process; it still denoises."""
        return self.failed_gradients >= _MOST_FAILED_GRADIENTS

    @property
    def weights(self) -> tuple[WeightsKey, ...]:
        """What its group holds for what it does first."""
        return self._of_gradients if self.computes else self._to_denoise

    @property
    def other_weights(self) -> tuple[WeightsKey, ...]:
        """What it holds for what it does otherwise; evaluations, which are long, are not for those
        that gradients are waited for from."""
        if not self.is_versatile:
            return ()
        if self.computes:
            return tuple(key for key in self._to_denoise if key.use == "rollout")
        return self._of_gradients

    @property
    def _of_gradients(self) -> tuple[WeightsKey, ...]:
        """Alone: members of a group compute parts of sums, so other bits."""
        if self.fails_gradients:
            return ()
        report = self.report
        versions = report.rollout_versions if report is not None and self.members == 1 else ()
        return tuple(WeightsKey(version, "gradient") for version in versions)

    @property
    def _to_denoise(self) -> tuple[WeightsKey, ...]:
        report = self.report
        if report is None:
            return ()
        return (
            *(WeightsKey(version, "rollout") for version in report.rollout_versions),
            *(WeightsKey(version, "evaluation") for version in report.evaluation_versions),
        )
