"""The segments of a run: stretches of iterations, each with one job and one version of Spotlight.

The journal has them all, with the whole job of each. `config.yaml` is the job of the last one;
those before stand in `config-001.yaml` and so on, for people.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from spotlight import __version__
from spotlight.errors import JobError, JournalError
from spotlight.jobs import JobSpec, job_of_run
from spotlight.jobs.resuming import differences
from spotlight.store.journal import Journal

SEGMENT = "segment/"
"""Beginning of the journal's records of segments: the number of each, from 1, follows."""
JOB = "job"
"""The journal's record of the job at the run's birth."""


class Segment(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A stretch of a run, as the journal has it."""

    first: int
    """Its first iteration, from 0."""
    job: Mapping[str, Any]
    """The job as plain data."""
    version: str
    """The version of Spotlight that began it."""
    source: str = ""
    """The run and the iteration that it was forked from; empty if it goes on with this run."""


def segments_of(journal: Journal) -> list[Segment]:
    """The segments so far, in their order. A run that was begun before there were any has one,
    and one that is new, or of 0.1.0, has none. Raises `JournalError`."""
    found = [_decoded(journal, key) for key, _ in journal.items(SEGMENT)]
    born = journal.get(JOB)
    if found or born is None:
        return found
    return [Segment(0, msgspec.json.decode(born), journal.version_of(JOB))]


def next_segment(
    found: list[Segment], job: JobSpec, first: int, source: str = ""
) -> list[Segment] | None:
    """The segments with the one that a job begins at an iteration; None if it goes on with the
    last one."""
    last = found[-1] if found and not source else None
    if last is not None and (job_of(last), last.version) == (job, __version__):
        return None
    return [*found, Segment(first, msgspec.to_builtins(job), __version__, source)]


def begun_at(found: list[Segment], completed: int) -> list[Segment]:
    """The segments of a run that goes on after so many iterations: what is made again is of the
    last one."""
    if not found or found[-1].first <= completed:
        return found
    return [*found[:-1], msgspec.structs.replace(found[-1], first=completed)]


def records_of(found: list[Segment]) -> dict[str, bytes]:
    """What the journal has of these segments."""
    return {
        f"{SEGMENT}{number:06d}": msgspec.json.encode(each)
        for number, each in enumerate(found, start=1)
    }


def changes_of(before: Segment, after: Segment) -> tuple[str, ...]:
    """What a segment says otherwise than the one before it, a field each."""
    return tuple(map(str, differences(job_of(before), job_of(after))))


def config_name(number: int) -> str:
    """The file with the job of a segment that is over, by its number from 1."""
    return f"config-{number:03d}.yaml"


def job_of(segment: Segment) -> JobSpec:
    """The job of a segment."""
    return job_of_run(dict(segment.job))


def _decoded(journal: Journal, key: str) -> Segment:
    try:
        segment = msgspec.json.decode(journal.get(key) or b"", type=Segment)
        job_of(segment)
    except (msgspec.MsgspecError, JobError) as error:
        raise JournalError(
            f"{journal.path}: the job of a segment of the run ({key}) cannot be read ({error})",
            f"resume with Spotlight {journal.version_of(key)}, which wrote it",
        ) from error
    return segment
