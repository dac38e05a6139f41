"""`spotlight.run`: a job on this machine, for programs."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from spotlight.actors.protocol.users import JobStatus, Outcome
from spotlight.actors.runtime.logs import log_to_the_program
from spotlight.errors import UserError
from spotlight.jobs import JobSpec, job_from_data, load_job
from spotlight.preflight.checks import check, check_store
from spotlight.preflight.starts import find_start
from spotlight.record.run_events import CallbackTrouble
from spotlight.report.metrics import read_run, summarise
from spotlight.running.local_cluster import LocalPlaces
from spotlight.running.local_run import (
    StopWish,
    check_new_folder,
    make_log_folder,
    run_local_job,
)
from spotlight.running.loop_thread import LoopThread
from spotlight.running.record_follower import RecordFollower
from spotlight.store.memory_folder import usable_base
from spotlight.store.object_store import open_store
from spotlight.store.run_folder import next_run_folder, read_continued
from spotlight.trackers import Callback, CallbackThread, NamedCallback

AnyPath = str | os.PathLike[str]

_MOST_WAITING = 1024
"""Records that callbacks have not been told of; no more are read then."""
_MOST_HELD = 64 * 1024
"""Most of these that are held, with those that are read at once: none is dropped while the job
runs."""
_PAUSE_S = 0.05
_CLOSE_LIMIT_S = 60.0
"""When the job has ended its callbacks have so long for what they were not told yet."""


class RunSummary(msgspec.Struct, frozen=True, kw_only=True):
    """How a run went. Scores and rewards are None where nothing was measured."""

    outcome: Outcome
    """`finished`, `cancelled` or `failed`; the latter two can be resumed."""
    reason: str
    """Why it was cancelled or failed; empty if it finished."""
    run_folder: Path
    """What it left behind; `report.html` is in it, and `export` when it finished."""
    iterations: int
    """Iterations on record."""
    seconds: float
    """Run time, that of earlier, interrupted runs in this folder included."""
    samples: int
    """Samples that were trained on."""
    images_per_s: float | None
    """Samples made per second of rollout."""
    reward_start: float | None
    """Mean reward of the first iteration's samples."""
    reward_end: float | None
    """The mean reward of the last iteration."""
    validation_start: float | None
    """Validation score of the initial weights."""
    validation_end: float | None
    """The score of the last weights that were validated."""
    validation_best: float | None
    """The highest one."""
    exported_iteration: int | None
    """How many iterations the weights in `export` were trained; None if there are none."""
    callback_troubles: tuple[CallbackTrouble, ...]
    """Callbacks that failed or were too slow."""


async def run(
    job: JobSpec | Mapping[str, Any] | AnyPath | None = None,
    *,
    resume: AnyPath | None = None,
    changes: Sequence[str] = (),
    run_folder: AnyPath | None = None,
    store: AnyPath | None = None,
    mirror: str = "",
    callbacks: Sequence[Callback] = (),
) -> RunSummary:
    """Run a job on this machine to its end, as the command `spotlight run` does.

    Starts a coordinator and the nodes of the job's `pools` as processes, which end with this call,
    however it ends. When it is cancelled the job is cancelled, and can be resumed.

    Args:
        job: a `JobSpec`, the same as plain data (paths start at the working folder), or the path of
            a job file.
        resume: instead of a job, the folder of a run to go on with.
        changes: what the job of that run says otherwise from here on, each `path=value`.
        run_folder: where a new run goes; `runs/NAME-NNN` by default.
        store: the folder in which nodes keep their copies of the weights, instead of shared memory.
        mirror: copies the run to this URL of object storage, as the option `--mirror` does.
        callbacks: told of the run in a thread of their own (`spotlight.Callback`). One that raises
            is logged, counted and named in the summary; only `StopJob` ends the job.

    Raises `UserError` (a `JobError` with the field, a `RunFolderError`, ...) for what the caller
    can fix, before a process is started where that can be known. A job that fails later is no
    error: the summary says why.
    """
    log_to_the_program()
    if mirror:
        open_store("mirror", mirror)
    places = LocalPlaces(usable_base("store", Path(store) if store is not None else None), mirror)
    spec, folder = await asyncio.to_thread(_prepare, job, resume, changes, run_folder, places.store)
    stop = StopWish()
    named = [NamedCallback(_name(one), lambda one=one: one) for one in callbacks]  # type: ignore[misc]
    thread = CallbackThread(
        named,
        lambda name, reason: stop.wish(f"stopped by the callback `{name}`: {reason}"),
        most=_MOST_HELD,
    )
    follower = await asyncio.to_thread(RecordFollower, folder, thread.put)
    observer = _Follow(follower, thread)
    try:
        last = await run_local_job(
            spec,
            folder,
            observer,
            stop,
            places=places,
            resume=resume is not None,
            changes=changes,
        )
    finally:
        with suppress(TimeoutError):  # what is left is counted as dropped
            async with asyncio.timeout(_CLOSE_LIMIT_S):
                await observer.finish()
        await thread.aclose(_CLOSE_LIMIT_S)
    return await asyncio.to_thread(_summary, folder, last, thread.troubles())


def run_blocking(
    job: JobSpec | Mapping[str, Any] | AnyPath | None = None,
    *,
    resume: AnyPath | None = None,
    changes: Sequence[str] = (),
    run_folder: AnyPath | None = None,
    store: AnyPath | None = None,
    mirror: str = "",
    callbacks: Sequence[Callback] = (),
) -> RunSummary:
    """`run` for programs that wait until the job has ended, with or without an event loop."""
    with LoopThread() as thread:
        return thread.call(
            run(
                job,
                resume=resume,
                changes=changes,
                run_folder=run_folder,
                store=store,
                mirror=mirror,
                callbacks=callbacks,
            )
        )


class _Follow:
    """See `Observer`: passes on what the run writes down."""

    def __init__(self, follower: RecordFollower, thread: CallbackThread) -> None:
        self._follower = follower
        self._thread = thread

    async def progress(self, status: JobStatus) -> None:
        """See `Observer`."""
        if self._thread.waiting <= _MOST_WAITING:
            await asyncio.to_thread(self._follower.poll)

    def tell(self, line: str) -> None:
        """See `Observer`: the logs of the run have it, too."""

    async def finish(self) -> None:
        """Pass on the rest, as fast as the callbacks take it."""
        while await asyncio.to_thread(self._follower.poll):
            while self._thread.waiting > _MOST_WAITING:  # noqa: ASYNC110 - another thread's
                await asyncio.sleep(_PAUSE_S)


def _prepare(
    job: JobSpec | Mapping[str, Any] | AnyPath | None,
    resume: AnyPath | None,
    changes: Sequence[str],
    run_folder: AnyPath | None,
    store: Path | None,
) -> tuple[JobSpec, Path]:
    """The job, checked, and its folder, which is there."""
    if (job is None) == (resume is None) or (resume is not None and run_folder is not None):
        raise UserError("give either a job, perhaps with a run_folder, or a run folder to resume")
    if changes and resume is None:
        raise UserError("changes: are for a run that goes on; write them into the job")
    if resume is not None:
        folder = Path(resume).resolve()
        spec = read_continued(folder, changes)
    else:
        if isinstance(job, JobSpec):
            spec = job_from_data(msgspec.to_builtins(job))  # checks it, as a file is
        elif isinstance(job, Mapping):
            spec = job_from_data(dict(job), base=Path.cwd())
        else:
            spec = load_job(Path(job or ""))
        wanted = Path(run_folder) if run_folder else next_run_folder(Path("runs"), spec.name)
        folder = wanted.resolve()
        check_new_folder(folder)
        if spec.model.start:
            find_start(spec.model)
    check_store(spec, check(spec, run_folder=folder), store)
    make_log_folder(folder / "logs")
    return spec, folder


def _summary(
    folder: Path, last: JobStatus | None, troubles: tuple[CallbackTrouble, ...]
) -> RunSummary:
    figures = summarise(read_run(folder))
    return RunSummary(
        outcome=(last.outcome if last is not None else None) or "cancelled",
        reason=last.reason if last is not None else "the coordinator did not answer",
        run_folder=folder,
        iterations=figures["iterations"],
        seconds=figures["run_seconds"],
        samples=figures["samples"],
        images_per_s=figures["images_per_s"],
        reward_start=figures["reward_start"],
        reward_end=figures["reward_end"],
        validation_start=figures["validation_start"],
        validation_end=figures["validation_end"],
        validation_best=figures["validation_best"],
        exported_iteration=figures["exported"]["iteration"] if figures["exported"] else None,
        callback_troubles=troubles,
    )


def _name(callback: Callback) -> str:
    kind = type(callback)
    return f"{kind.__module__}.{kind.__qualname__}"
