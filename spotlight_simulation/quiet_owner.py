"""Somebody whose requests a dispatcher serves, and who wants to hear of nothing but their end."""

from __future__ import annotations

from collections.abc import Callable

from spotlight.actors.coordinator.tenant.request_queue import Ended
from spotlight.actors.protocol.gradients import SliceOrder
from spotlight.policies.requests.instructions import EndWorker
from spotlight.record.run_events import RunEvent
from spotlight.transport.tensors import ArtifactStore
from spotlight.types import BundleOffer, Request


class QuietOwner:
    """See the module's docstring.

    Args:
        store: loses the bundles that nobody needs.
        ended: is given what is finished or given up.
    """

    def __init__(self, store: ArtifactStore, ended: Callable[[Ended], None]) -> None:
        self._store = store
        self._ended = ended

    def requests_ended(self, ended: Ended) -> None:
        """Pass it on."""
        self._ended(ended)

    def slice_of(self, request: Request) -> SliceOrder | None:
        """Nobody trains."""
        return None

    def discard(self, bundle: BundleOffer) -> None:
        """Delete it."""
        self._store.delete(bundle.key)

    def has(self, bundle: BundleOffer) -> bool:
        """Nobody else keeps any."""
        return True

    def event(self, event: RunEvent) -> None:
        """Nobody writes it down."""

    def backlog_changed(self) -> None:
        """Nobody plans with it."""

    def end_worker(self, end: EndWorker) -> None:
        """No process is ended."""
