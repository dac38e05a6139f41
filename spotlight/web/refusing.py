"""Why a request to the page's server is not granted, as an answer of HTTP."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus

from spotlight.errors import SpotlightError


class Refused(SpotlightError):
    """A request is not granted; the text says why, and what to do."""

    def __init__(
        self, status: HTTPStatus, reason: str, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(reason)
        self.status = status
        self.headers = dict(headers or {})


def busy(reason: str, again_s: int) -> Refused:
    """There is too much to do now; the same may be granted in so many seconds."""
    headers = {"Retry-After": str(again_s)}
    return Refused(HTTPStatus.SERVICE_UNAVAILABLE, reason, headers)


def not_found(reason: str) -> Refused:
    """There is no such thing."""
    return Refused(HTTPStatus.NOT_FOUND, reason)
