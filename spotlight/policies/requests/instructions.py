"""The instructions of the table of requests to the dispatcher, in the order in which to carry them
out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from spotlight.policies.requests.rows import SavedRow
from spotlight.record.run_events import RunEvent
from spotlight.types import BundleOffer, Commit, Request, RequestKind, Result


@dataclass(frozen=True)
class Persist:
    """Write rows to the journal by request id (None removes one) before anything else is done."""

    rows: Mapping[str, SavedRow | None]


@dataclass(frozen=True)
class GrantLease:
    """Give a worker a batch; tell the table if it cannot be reached."""

    worker: str
    lease: int
    requests: tuple[Request, ...]
    commits: tuple[Commit | None, ...]
    commit_every: int


@dataclass(frozen=True)
class RevokeLeases:
    """Nobody wants the results of these leases any more."""

    worker: str
    leases: tuple[int, ...]


@dataclass(frozen=True)
class RecallLeases:
    """The worker is to commit these and give them back."""

    worker: str
    leases: tuple[int, ...]


@dataclass(frozen=True)
class EndWorker:
    """Have the process of a worker ended by its node, for this reason: it fails what others can
    do."""

    node: str
    worker: str
    epoch: int
    reason: str


@dataclass(frozen=True)
class RequestsFinished:
    """These requests are done; `restored` if an earlier coordinator of this run had them done."""

    results: tuple[Result, ...]
    restored: bool = False

    def of(self, kind: RequestKind) -> list[Result]:
        """Those of a kind."""
        return [result for result in self.results if result.request.kind == kind]


@dataclass(frozen=True)
class RequestsGivenUp:
    """These requests failed for good, with the reason."""

    requests: tuple[Request, ...]
    reason: str

    def of(self, kind: RequestKind) -> list[Request]:
        """Those of a kind."""
        return [request for request in self.requests if request.kind == kind]


@dataclass(frozen=True)
class DeleteBundle:
    """Nobody needs this bundle any more."""

    bundle: BundleOffer


@dataclass(frozen=True)
class Answer:
    """What the worker that delivered something is told: how many requests counted, or that it must
    ask again in a second."""

    accepted: int
    ask_again: bool = False


@dataclass(frozen=True)
class RecordEvent:
    """Something happened that a user may want to read about."""

    event: RunEvent


Instruction = (
    Persist
    | GrantLease
    | RevokeLeases
    | RecallLeases
    | EndWorker
    | RequestsFinished
    | RequestsGivenUp
    | DeleteBundle
    | Answer
    | RecordEvent
)
