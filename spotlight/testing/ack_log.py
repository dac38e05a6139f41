"""Remembers what a simulated coordinator has made durable, across its kills, to see that nothing of
it is lost or done again."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from spotlight.actors.coordinator.job_journal import JobJournal
from spotlight.actors.protocol import Grant
from spotlight.policies.dispatch.rows import SavedRow
from spotlight.testing.history import History
from spotlight.types import BundleOffer


class AckLog:
    """Commits and completions by request, each with the lease under which it was accepted."""

    def __init__(self, history: History) -> None:
        self._history = history
        self._committed: dict[str, tuple[int, int]] = {}
        """Step and lease."""
        self._completed: dict[str, int] = {}

    @contextmanager
    def watching(self) -> Iterator[None]:
        """See what every coordinator of this process writes down. What it takes back is forgotten
        before it does, since it may be killed as soon as that is durable.
        """
        save, rewind, retry = (
            JobJournal.save_requests,
            JobJournal.rewind,
            JobJournal.begin_again,
        )
        acks = self

        def saving(self: JobJournal, rows: Mapping[str, SavedRow | None]) -> None:
            acks._take_back(rows)
            save(self, rows)
            acks._note(rows)

        def rewinding(self: JobJournal, completed: int) -> None:
            acks._forget()
            rewind(self, completed)

        def retrying(self: JobJournal) -> None:
            acks._forget()
            retry(self)

        seams = (
            ("save_requests", saving, save),
            ("rewind", rewinding, rewind),
            ("begin_again", retrying, retry),
        )
        for name, replacement, _ in seams:
            setattr(JobJournal, name, replacement)
        try:
            yield
        finally:
            for name, _, real in seams:
                setattr(JobJournal, name, real)

    def check(self, granted: Grant) -> None:
        """A member begins a batch: what was accepted before its grant must not be done again."""
        for request, saved in zip(granted.requests, granted.commits, strict=True):
            step, lease = self._committed.get(request.id, (0, 0))
            if lease < granted.lease and (saved.step if saved is not None else 0) < step:
                self._history.violation(
                    f"{request.id} is granted without its commit of step {step}"
                )
            if self._completed.get(request.id, granted.lease) < granted.lease:
                self._history.violation(f"{request.id} is granted after its completion")

    def _take_back(self, rows: Mapping[str, SavedRow | None]) -> None:
        for request_id, row in rows.items():
            if row is None or row.commit is None:
                self._committed.pop(request_id, None)
                self._completed.pop(request_id, None)

    def _note(self, rows: Mapping[str, SavedRow | None]) -> None:
        for request_id, row in rows.items():
            if row is None or row.commit is None:
                continue
            lease = _lease_of(row.commit.bundle)
            if row.reward is None:
                self._committed[request_id] = (row.commit.step, lease)
            elif request_id in self._completed:
                self._history.violation(f"{request_id} counts twice")
            else:
                self._completed[request_id] = lease

    def _forget(self) -> None:
        self._committed.clear()
        self._completed.clear()


def _lease_of(bundle: BundleOffer) -> int:
    """Under which a bundle was left: `commits/worker/0/EPOCH-LEASE-STEP`, or `samples/...`."""
    found = re.search(r"/\d+-(\d+)(-\d+)?\Z", bundle.key)
    assert found is not None, bundle.key
    return int(found[1])
