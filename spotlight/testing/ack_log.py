"""Remembers what a simulated coordinator has made durable, across its kills, to see that nothing of
it is lost or done again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary

from spotlight.actors.coordinator.job_journal import JobJournal
from spotlight.actors.protocol import Grant
from spotlight.policies.dispatch.leases import Leases
from spotlight.policies.dispatch.rows import Lease, SavedRow
from spotlight.testing.history import History


class AckLog:
    """Commits and completions by request, each with the newest lease that there was when it was
    accepted: only later grants can be expected to know of it."""

    def __init__(self, history: History) -> None:
        self._history = history
        self._committed: dict[str, tuple[int, int]] = {}
        """Step and newest lease."""
        self._completed: dict[str, int] = {}
        self._newest = 0
        """Lease."""
        self._staged: WeakKeyDictionary[JobJournal, dict[str, SavedRow | None]] = (
            WeakKeyDictionary()
        )
        """What is not durable yet."""

    @contextmanager
    def watching(self) -> Iterator[None]:
        """See what every coordinator of this process writes down. What it takes back is forgotten
        before it does, since it may be killed as soon as that is durable.
        """
        stage, commit, rewind, retry = (
            JobJournal.stage_requests,
            JobJournal.commit_staged,
            JobJournal.rewind,
            JobJournal.begin_again,
        )
        open_lease = Leases.open
        acks = self

        def opening(self: Leases, *of: Any, **more: Any) -> Lease:
            lease = open_lease(self, *of, **more)
            acks._newest = max(acks._newest, lease.number)
            return lease

        def staging(self: JobJournal, rows: Mapping[str, SavedRow | None]) -> None:
            acks._take_back(rows)
            stage(self, rows)
            acks._staged.setdefault(self, {}).update(rows)

        def committing(self: JobJournal) -> None:
            commit(self)
            acks._note(acks._staged.pop(self, {}))

        def rewinding(self: JobJournal, completed: int) -> None:
            acks._forget()
            rewind(self, completed)

        def retrying(self: JobJournal) -> None:
            acks._forget()
            retry(self)

        seams = (
            (JobJournal, "stage_requests", staging, stage),
            (JobJournal, "commit_staged", committing, commit),
            (JobJournal, "rewind", rewinding, rewind),
            (JobJournal, "begin_again", retrying, retry),
            (Leases, "open", opening, open_lease),
        )
        for owner, name, replacement, _ in seams:
            setattr(owner, name, replacement)
        try:
            yield
        finally:
            for owner, name, _, real in seams:
                setattr(owner, name, real)

    def check(self, granted: Grant) -> None:
        """A member begins a batch: what was accepted before its grant must not be done again."""
        for request, saved in zip(granted.requests, granted.commits, strict=True):
            step, newest = self._committed.get(request.id, (0, 0))
            if newest < granted.lease and (saved.step if saved is not None else 0) < step:
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
            if row.reward is None:
                self._committed[request_id] = (row.commit.step, self._newest)
            elif request_id in self._completed:
                self._history.violation(f"{request_id} counts twice")
            else:
                self._completed[request_id] = self._newest

    def _forget(self) -> None:
        self._committed.clear()
        self._completed.clear()
