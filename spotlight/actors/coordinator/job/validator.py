"""The validator: scores weights versions on the held-out prompts, beside whatever else goes on.

An image that could not be scored is left out of the mean and counted; a version without any scored
image has failed.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from spotlight.actors.coordinator.tenant.request_plans import evaluation_requests
from spotlight.jobs import JobSpec
from spotlight.types import Request, Result


@dataclass(frozen=True)
class Validated:
    """A version of which no image is open any more."""

    version: int
    results: tuple[Result, ...]
    """The images that could be scored."""


@dataclass
class _Validation:
    open: set[str]
    results: list[Result] = field(default_factory=list)


class Validator:
    """See the module's docstring."""

    def __init__(self, job: JobSpec, prompts: list[str]) -> None:
        self._job = job
        self._prompts = prompts
        self._running: dict[int, _Validation] = {}

    @property
    def versions(self) -> frozenset[int]:
        """Those that are being validated."""
        return frozenset(self._running)

    def start(self, version: int) -> tuple[Request, ...]:
        """The images of a version, unless they were asked for already."""
        if version in self._running:
            return ()
        requests = evaluation_requests(self._job, version, self._prompts)
        self._running[version] = _Validation({request.id for request in requests})
        return requests

    def finished(self, results: Iterable[Result]) -> list[Validated]:
        """Images of any running validation; returns what is over."""
        ended = [self._close(result.request, [result]) for result in results]
        return [validated for validated in ended if validated is not None]

    def given_up(self, requests: Iterable[Request]) -> list[Validated]:
        """Images that nobody could make or score; returns what is over."""
        ended = [self._close(request, []) for request in requests]
        return [validated for validated in ended if validated is not None]

    def _close(self, request: Request, results: list[Result]) -> Validated | None:
        version = request.weights_version
        validation = self._running.get(version)
        if validation is None or request.id not in validation.open:
            return None
        validation.open.discard(request.id)
        validation.results += results
        if validation.open:
            return None
        del self._running[version]
        return Validated(
            version, tuple(sorted(validation.results, key=lambda result: result.request.id))
        )
