"""The validator: scores a weights version on the held-out prompts, beside whatever else goes on.

Messages in: StartValidation (job runner), RequestsFinished, RequestsGivenUp (dispatcher).
Messages out: SubmitRequests (dispatcher), ValidationDone or ValidationFailed (job runner).

An image that could not be scored is left out of the mean and counted; a version without any scored
image has failed.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from spotlight.actors.coordinator.request_plans import evaluation_requests
from spotlight.actors.protocol import (
    RequestsFinished,
    RequestsGivenUp,
    StartValidation,
    SubmitRequests,
    ValidationDone,
    ValidationFailed,
)
from spotlight.actors.runtime import Actor, ActorRef, from_this_process, handles
from spotlight.jobs import JobSpec
from spotlight.types import Request, Result


@dataclass
class _Validation:
    open: set[str]
    reply_to: ActorRef
    results: list[Result] = field(default_factory=list)


class Validator(Actor):
    """See the module's docstring."""

    def __init__(self, job: JobSpec, dispatcher: ActorRef, prompts: list[str]) -> None:
        self._job = job
        self._dispatcher = dispatcher
        self._prompts = prompts
        self._running: dict[int, _Validation] = {}

    @handles(StartValidation, only=from_this_process)
    async def on_start(self, message: StartValidation) -> None:
        """Submit the version's images."""
        assert self.sender is not None
        if message.version in self._running:
            return
        requests = evaluation_requests(self._job, message.version, self._prompts)
        self._running[message.version] = _Validation({r.id for r in requests}, self.sender)
        self.tell(self._dispatcher, SubmitRequests(requests, self.ref))

    @handles(RequestsFinished, only=from_this_process)
    async def on_finished(self, message: RequestsFinished) -> None:
        """Images of any running validation."""
        for result in message.results:
            self._close(result.request, result)

    @handles(RequestsGivenUp, only=from_this_process)
    async def on_given_up(self, message: RequestsGivenUp) -> None:
        """Images that nobody could make or score."""
        for request in message.requests:
            self._close(request, None)

    def _close(self, request: Request, result: Result | None) -> None:
        version = request.weights_version
        validation = self._running.get(version)
        if validation is None or request.id not in validation.open:
            return
        validation.open.discard(request.id)
        if result is not None:
            validation.results.append(result)
        if validation.open:
            return
        del self._running[version]
        results = sorted(validation.results, key=lambda entry: entry.request.id)
        if not results:
            self.tell(validation.reply_to, ValidationFailed(version))
            return
        score = sum(entry.reward for entry in results) / len(results)
        self.tell(validation.reply_to, ValidationDone(version, score, tuple(results)))
