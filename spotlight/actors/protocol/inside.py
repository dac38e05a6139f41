"""Inside the coordinator: job runner and dispatcher."""

from __future__ import annotations

from spotlight.actors.protocol.up import WorkerRefs
from spotlight.transport.control import Message
from spotlight.types import Request, RequestKind, Result


class SubmitRequests(Message, frozen=True):
    """Queue requests; those already known are ignored, and those already finished are answered at
    once. Results go to the sender.
    """

    requests: tuple[Request, ...]


class CancelRequests(Message, frozen=True):
    """Forget the requests of a kind; leases on them are revoked, and what still comes is late."""

    kind: RequestKind


class ForgetRequests(Message, frozen=True):
    """The results of a kind are used up to this iteration: drop them and their bundles."""

    kind: RequestKind
    iteration: int


class BarWorkers(Message, frozen=True):
    """Grant nothing to these workers until the next `BarWorkers`: they are training."""

    workers: tuple[str, ...]


class AddWorkers(Message, frozen=True):
    """These workers of a node may pull from now on."""

    lane = "system"

    node: str
    pool: str
    workers: tuple[WorkerRefs, ...]


class RemoveWorkers(Message, frozen=True):
    """These workers are gone: re-issue what they held."""

    lane = "system"

    workers: tuple[str, ...]
    reason: str
    announced: bool = False
    """They left after a notice: what they held is not suspected of having ended them."""
    ended: bool = False
    """Their node says that their processes ended; else they are out of reach."""


class RequestsFinished(Message, frozen=True):
    """Denoised and scored."""

    results: tuple[Result, ...]
    restored: bool = False
    """By an earlier coordinator of this run."""

    def of(self, kind: RequestKind) -> list[Result]:
        """Those of a kind."""
        return [result for result in self.results if result.request.kind == kind]


class RequestsGivenUp(Message, frozen=True):
    """These requests failed for good, with the reason."""

    requests: tuple[Request, ...]
    reason: str

    def of(self, kind: RequestKind) -> list[Request]:
        """Those of a kind."""
        return [request for request in self.requests if request.kind == kind]


class Remind(Message, frozen=True):
    """Job runner to itself, every second: messages may be lost, so say again what matters."""
