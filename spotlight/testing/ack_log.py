"""Remembers what a simulated coordinator has acknowledged, across its kills, to see that nothing of
it is lost or done again."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from spotlight.actors.coordinator.denoise_stage import DenoiseStage
from spotlight.actors.coordinator.job_journal import JobJournal
from spotlight.actors.protocol import CommitSteps, Completed, Denoise
from spotlight.testing.history import History
from spotlight.types import Request


class Witness:
    """Commits and completions by request, each with the lease under which it was accepted."""

    def __init__(self, history: History) -> None:
        self._history = history
        self._committed: dict[str, tuple[int, int]] = {}
        """Step and lease."""
        self._completed: dict[str, int] = {}

    @contextmanager
    def watching(self) -> Iterator[None]:
        """See what every coordinator of this process accepts. What it takes back is forgotten
        before it does, since it may be killed as soon as that is durable.
        """
        commit, complete = DenoiseStage.commit, DenoiseStage.complete
        start_over, rewind = DenoiseStage.start_over, JobJournal.rewind
        retry, drop = JobJournal.begin_again, JobJournal.drop_requests
        witness = self

        def committing(self: DenoiseStage, message: CommitSteps) -> int:
            saved = commit(self, message)
            lease = self.book.find(message.lease, message.worker)
            if saved and lease is not None:
                witness._has_committed([item.id for item in lease.items], message)
            return saved

        def completing(self: DenoiseStage, message: Completed) -> tuple[Request, ...]:
            done = complete(self, message)
            witness._has_completed([request.id for request in done], message)
            return done

        def starting_over(self: DenoiseStage, lease: int, name: str) -> None:
            witness._committed.clear()
            start_over(self, lease, name)

        def rewinding(self: JobJournal, completed: int) -> None:
            witness._committed.clear()
            witness._completed.clear()
            rewind(self, completed)

        def dropping(self: JobJournal, request_ids: Iterable[str]) -> None:
            dropped = list(request_ids)
            for request_id in dropped:
                witness._committed.pop(request_id, None)
                witness._completed.pop(request_id, None)
            drop(self, dropped)

        def retrying(self: JobJournal) -> None:
            witness._committed.clear()
            witness._completed.clear()
            retry(self)

        seams = (
            (DenoiseStage, "commit", committing, commit),
            (DenoiseStage, "complete", completing, complete),
            (DenoiseStage, "start_over", starting_over, start_over),
            (JobJournal, "rewind", rewinding, rewind),
            (JobJournal, "drop_requests", dropping, drop),
            (JobJournal, "begin_again", retrying, retry),
        )
        for owner, name, replacement, _ in seams:
            setattr(owner, name, replacement)
        try:
            yield
        finally:
            for owner, name, _, real in seams:
                setattr(owner, name, real)

    def check(self, granted: Denoise) -> None:
        """A member begins a batch: what was accepted before its grant must not be done again."""
        for request, saved in zip(granted.requests, granted.commits, strict=True):
            step, lease = self._committed.get(request.id, (0, 0))
            if lease < granted.lease and (saved.step if saved is not None else 0) < step:
                self._history.violation(
                    f"{request.id} is granted without its commit of step {step}"
                )
            if self._completed.get(request.id, granted.lease) < granted.lease:
                self._history.violation(f"{request.id} is granted after its completion")

    def _has_committed(self, request_ids: list[str], message: CommitSteps) -> None:
        self._history.add("committed", lease=message.lease, step=message.step)
        for request_id in request_ids:
            before, _ = self._committed.get(request_id, (0, 0))
            self._committed[request_id] = (max(before, message.step), message.lease)

    def _has_completed(self, request_ids: list[str], message: Completed) -> None:
        if request_ids:
            self._history.add("completed", lease=message.lease, requests=tuple(request_ids))
        for request_id in request_ids:
            if request_id in self._completed:
                self._history.violation(f"{request_id} counts twice")
            self._completed[request_id] = message.lease
