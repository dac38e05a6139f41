"""The jobs and sessions of a coordinator, on disk before anybody is told of them.

They are in a journal of their own in the folder of its runs, `queue.records`, each under a number
that rises as they come: a coordinator that is killed at any moment knows afterwards every job that
was acknowledged, once. Those that have ended are kept for a while, so that people see how. What a
job did is in its run folder; of that the queue knows the place alone.

A write that the disk refuses changes nothing. The journal takes no more then, so the next write
opens it anew, and goes through as soon as the disk does.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from itertools import islice
from pathlib import Path
from typing import TypeVar

import msgspec

from spotlight import failpoints
from spotlight.errors import (
    JournalError,
    JournalInUse,
    JournalUnwritable,
    RequestRefused,
    UnknownJob,
)
from spotlight.store import running_note
from spotlight.store.journal import Journal
from spotlight.store.queued_job import QueuedJob
from spotlight.text import plain

RecordT = TypeVar("RecordT")

NAME = "queue.records"
MOST_LIVE = 1000
"""Jobs that have not ended, at most."""
MOST_ENDED = 500
"""This is how many of those that have ended are kept, the latest."""
SHORTEST_BEGINNING = 4
"""Characters by which an id may be begun to name its job."""
_OWNER = "queue"
_JOBS = "queued/"
"""Beginning of the journal's records of jobs: the number of the job follows."""
_IF_DAMAGED = "put it back from a copy, or move it away and resume its jobs from their run folders"
_ADVICE: dict[type[JournalError], str] = {
    JournalInUse: "stop that one first",
    JournalUnwritable: "free some space or repair the disk, then try again",
}
_DRAINED = "drained"
"""Key of the record of the nodes that are to have no work."""
_LONGEST_WORD = 100
_MOST_NAMED = 10
"""Jobs that one error names."""


class JobQueue:
    """An open queue. Use it in the thread that opened it, and `close` it.

    Args:
        path: of its journal.
        journal: that one. It is begun with the first write, so that a coordinator whose disk is
            full can start.
    """

    def __init__(self, path: Path, journal: Journal) -> None:
        self._path = path
        self._journal: Journal | None = journal
        """None after a write that the disk refused."""
        self._keep(_read(journal), _read_drained(journal))

    @classmethod
    def open(cls, runs: Path) -> JobQueue:
        """The queue of a folder of runs; a new one is empty, but for the run that a coordinator of
        an earlier version left there in the middle.

        Raises `JournalError` if it is damaged, of a newer version, or cannot be read.
        """
        path = runs / NAME
        with _explaining(), ExitStack() as undo:
            journal = _open(path)
            undo.callback(journal.close)
            queue = cls(path, journal)
            queue._take_over(runs)
            undo.pop_all()  # it is the queue's to close now
        return queue

    def add(self, job: QueuedJob) -> None:
        """Put a job at the end. It is on disk when this returns. A job that had ended and goes on
        takes the place of what was known of it (`known`).

        Raises `RequestRefused` if its run is in the queue already, or too many are, and
        `JournalError` if the disk refuses; nothing of it is there then.
        """
        self._require_room(job)
        number = max(self._jobs, default=0) + 1
        former = self._numbers.get(job.id)
        self._write({number: job} if former is None else {former: None, number: job})

    def changed(self, job: QueuedJob) -> None:
        """Keep what a job that is here is now. It is on disk when this returns.

        Raises `JournalError` if the disk refuses; the job is what it was then.
        """
        number = self._numbers[job.id]
        if self._jobs[number] != job:
            self._write({number: job})

    def known(self, job_id: str) -> QueuedJob | None:
        """The job of this id, if there is one."""
        number = self._numbers.get(job_id)
        return None if number is None else self._jobs[number]

    def take_back(self, job_id: str, former: QueuedJob | None) -> None:
        """A job did not come into the queue after all, and what was known of it before is true.
        Raises `JournalError` if the disk refuses; the job is there then."""
        self._write({self._numbers[job_id]: former})

    def drain(self, node: str, *, cancel: bool) -> None:
        """Keep that a node is to have no work, or (`cancel`) that it is to have some. It is on disk
        when this returns. Raises `JournalError` if the disk refuses; nothing has changed then."""
        drained = self.drained - {node} if cancel else self.drained | {node}
        if drained != self.drained:
            self._write({}, drained)

    def live(self) -> tuple[QueuedJob, ...]:
        """Those that have not ended: by priority, then in the order in which they came."""
        return self._live

    def ended(self) -> tuple[QueuedJob, ...]:
        """Those that have ended and are still known, the latest first."""
        return tuple(self._jobs[number] for number in _latest(self._jobs))

    def live_in(self, run_folder: str | Path) -> QueuedJob | None:
        """The job of this folder that has not ended; None if there is none."""
        there = (job for job in self.live() if job.run_folder == str(run_folder))
        return next(there, None)

    def find(self, text: str) -> QueuedJob:
        """The job of this id, of this name, or whose id alone begins so. Of several with one name
        the one is meant that has not ended.

        Raises `UnknownJob` if there is none, or there are several.
        """
        known = (*self.live(), *self.ended())
        if (number := self._numbers.get(text)) is not None:
            return self._jobs[number]
        if named := [job for job in known if job.name == text]:
            live = [job for job in named if not job.has_ended]
            return _only(live if len(live) == 1 else named, f"are called `{_word(text)}`")
        begun = [job for job in known if job.id.startswith(text)]
        if len(text) >= SHORTEST_BEGINNING and begun:
            return _only(begun, f"begin with `{_word(text)}`")
        there = f"there are: {_listed(known)}" if known else "there are none"
        raise UnknownJob(f"no job `{_word(text)}`; {there}")

    def close(self) -> None:
        """Release the file; a second call does nothing."""
        if self._journal is not None:
            self._journal.close()

    # --- inside ---

    def _take_over(self, runs: Path) -> None:
        """Killed in between, the next one finds the run both here and in the note."""
        job = running_note.left_in(runs)
        if job is not None and self.live_in(job.run_folder) is None:
            self.add(job)
        running_note.remove(runs)

    def _require_room(self, job: QueuedJob) -> None:
        live = self.live()
        there = [each for each in live if job.id == each.id or job.run_folder == each.run_folder]
        if there:
            raise RequestRefused(
                f"{job.run_folder} is in the queue already, as the job {there[0].id} in"
                f" {there[0].run_folder}; wait for it, or cancel it first"
            )
        if len(live) >= MOST_LIVE:
            raise RequestRefused(
                f"{MOST_LIVE:,} jobs wait or run, and no more may; wait for some, or cancel them"
            )

    def _write(
        self, changes: Mapping[int, QueuedJob | None], drained: frozenset[str] | None = None
    ) -> None:
        """Make the changes, first on disk, and let go whatever has ended too long ago."""
        drained = self.drained if drained is None else drained
        after = {**self._jobs, **changes}
        jobs = {number: job for number, job in after.items() if job is not None}
        for number in _latest(jobs)[MOST_ENDED:]:
            del jobs[number]
        failpoints.reach("queue.write")
        with _explaining():
            self._bring(self._journal or _open(self._path), jobs, drained)
        failpoints.reach("queue.written")
        self._keep(jobs, drained)

    def _keep(self, jobs: dict[int, QueuedJob], drained: frozenset[str]) -> None:
        """These are on disk."""
        self.drained = drained
        """The nodes that are to have no work, by name."""
        self._jobs = jobs
        """Jobs are here by their numbers, which rise in the order in which they came."""
        self._numbers = {job.id: number for number, job in jobs.items()}
        live = [job for _, job in sorted(jobs.items()) if not job.has_ended]
        self._live = tuple(sorted(live, key=lambda job: -job.priority))

    def _bring(
        self, journal: Journal, jobs: Mapping[int, QueuedJob], drained: frozenset[str]
    ) -> None:
        """Let the journal hold this. What differs is a change, or what a write that was refused has
        left."""
        self._journal = journal
        wanted = {_key(number): msgspec.json.encode(job) for number, job in jobs.items()}
        wanted |= {_DRAINED: msgspec.json.encode(sorted(drained))} if drained else {}
        held = dict(journal.items())
        changes: dict[str, bytes | None] = dict.fromkeys(held.keys() - wanted.keys())
        changes |= {key: body for key, body in wanted.items() if held.get(key) != body}
        try:
            journal.write(changes)
        except JournalError:
            journal.close()
            self._journal = None
            raise


def discard(runs: Path) -> None:
    """Forget the queue of a folder of runs, which nobody has open: whoever starts a coordinator
    there says what it goes on with."""
    (runs / NAME).unlink(missing_ok=True)
    running_note.remove(runs)


def _open(path: Path) -> Journal:
    return Journal.read(path, _OWNER)


def _key(number: int) -> str:
    return f"{_JOBS}{number:010d}"


def _read(journal: Journal) -> dict[int, QueuedJob]:
    return {
        int(key.removeprefix(_JOBS)): _decode(journal, key, QueuedJob)
        for key, _ in journal.items(_JOBS)
    }


def _read_drained(journal: Journal) -> frozenset[str]:
    if journal.get(_DRAINED) is None:
        return frozenset()
    return _decode(journal, _DRAINED, frozenset[str])


def _decode(journal: Journal, key: str, kind: type[RecordT]) -> RecordT:
    try:
        return msgspec.json.decode(journal.get(key) or b"", type=kind)
    except msgspec.MsgspecError as error:
        version = journal.version_of(key)
        raise JournalError(
            f"{journal.path}: the record {key} of Spotlight {version} cannot be read ({error})"
        ) from error


def _latest(jobs: Mapping[int, QueuedJob]) -> list[int]:
    """The numbers of those that have ended, the latest first."""
    ended = [(job.ended_at or 0.0, number) for number, job in jobs.items() if job.has_ended]
    return [number for _, number in sorted(ended, reverse=True)]


def _only(jobs: Sequence[QueuedJob], how: str) -> QueuedJob:
    if len(jobs) > 1:
        raise UnknownJob(f"{len(jobs)} jobs {how}: {_listed(jobs)}; give the id")
    return jobs[0]


def _listed(jobs: Sequence[QueuedJob]) -> str:
    ids = ", ".join(job.id for job in islice(jobs, _MOST_NAMED))
    more = len(jobs) - _MOST_NAMED
    return f"{ids} and {more} more" if more > 0 else ids


def _word(text: str) -> str:
    return plain(text, _LONGEST_WORD)


@contextmanager
def _explaining() -> Iterator[None]:
    """A journal says what can be done about that of a run."""
    try:
        yield
    except JournalError as error:
        kind = type(error)
        raise kind(error.problem, _ADVICE.get(kind, _IF_DAMAGED)) from error
