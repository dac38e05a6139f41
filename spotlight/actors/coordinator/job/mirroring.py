"""Copies a job's run to object storage, beside the job: however slow, broken or full that is, it
holds up nothing and ends nothing. What came of it is told in events and in the status.

The state of the run is taken on the event loop, where it is consistent, and copied in a thread.
"""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import msgspec

from spotlight.actors.coordinator.tenant.job_journal import MADE_AGAIN
from spotlight.actors.protocol.users import MirrorStatus
from spotlight.actors.runtime.abandonable_thread import AbandonableThread
from spotlight.policies.mirror_schedule import MirrorSchedule, Upload, Wait
from spotlight.policies.run_tally import RunTally
from spotlight.record.run_events import MirrorFailed, RunMirrored
from spotlight.store.mirror import Mirror, Snapshot, Uploaded
from spotlight.store.object_store import ObjectStore
from spotlight.store.run_folder import RunFolder

if TYPE_CHECKING:
    from spotlight.actors.coordinator.job.job_runner import JobRunner


class MirrorPlace:
    """Where a coordinator copies its runs to, and the one thread that talks to it: what a job has
    left there to do is done before anything of the next, so that no old manifest comes last.

    Args:
        rng: source of the mirrors' names.
    """

    def __init__(self, store: ObjectStore, rng: random.Random) -> None:
        self._store = store
        self._rng = rng
        self.thread = AbandonableThread("mirror")

    def mirror(self, folder: str, run: str) -> Mirror:
        """Of the run folder of this name, and of this run."""
        return Mirror(self._store.below(folder), run, f"{self._rng.getrandbits(64):016x}")

    def close(self) -> None:
        """Begin nothing more; what is being copied is left to its thread."""
        self.thread.close()


class Mirroring:
    """See the module's docstring.

    Args:
        job: whose tasks wait for the copies, and which writes down what happened.
        place: None for a run that is not copied.
        run: id of the job.
        before: what came of it until now.
        close_limit_s: the last state of a job has so long.
    """

    def __init__(
        self,
        job: JobRunner,
        place: MirrorPlace | None,
        folder: RunFolder,
        run: str,
        before: RunTally,
        *,
        close_limit_s: float,
    ) -> None:
        self._job = job
        self._place = place
        self._mirror = place.mirror(folder.path.name, run) if place is not None else None
        self._folder = folder
        self._close_limit_s = close_limit_s
        self._now = asyncio.get_running_loop().time
        self._schedule = MirrorSchedule()
        self._copying: asyncio.Task[None] | None = None
        self._hurry = asyncio.Event()
        self._status = MirrorStatus(before.mirrored, failures=before.mirror_failures)

    @property
    def status(self) -> MirrorStatus | None:
        """What users are told; None for a run that is not copied."""
        return self._status if self._place is not None else None

    def take(self, completed: int) -> None:
        """The run can be gone on with from the checkpoint of so many iterations: copy it as soon as
        that can be, as it is then."""
        if self._place is None:
            return
        self._change(committed=completed)
        self._schedule.taken()
        if self._copying is None or self._copying.done():
            self._copying = self._job.run_task(self._copy())

    async def finish(self) -> None:
        """Return when the last state of the job is copied, or the time for that is up."""
        self.take(self._status.committed)  # with what was written since its commit
        self._schedule.hurry()
        self._hurry.set()
        if self._copying is not None:
            await asyncio.wait((self._copying,), timeout=self._close_limit_s)
            if not self._copying.done():
                self._copying.cancel()
                self._job.log.lines.error("mirror_not_complete", limit_s=self._close_limit_s)
                problem = f"the last state was not copied within {self._close_limit_s:g} s"
                self._change(problem=self._status.problem or problem)

    async def _copy(self) -> None:
        """Until the newest state is copied."""
        while (step := self._schedule.next(self._now())) is not None:
            match step:
                case Wait(seconds):
                    with suppress(TimeoutError):
                        async with asyncio.timeout(seconds):
                            await self._hurry.wait()
                    self._hurry.clear()
                case Upload(number):
                    await self._upload(number)

    async def _upload(self, number: int) -> None:
        completed, began = self._status.committed, self._now()
        try:
            done = await self._in_thread(Snapshot(self._folder, completed, MADE_AGAIN))
        except Exception as error:  # whatever is wrong with a copy, it ends no job
            return self._note_failure(completed, error)
        self._schedule.uploaded(number)
        self._change(completed=completed, problem="")
        self._job.event(
            RunMirrored(
                iteration=completed,
                files=done.files,
                nbytes=done.nbytes,
                seconds=round(self._now() - began, 3),
            )
        )

    async def _in_thread(self, snapshot: Snapshot) -> Uploaded:
        assert self._place is not None and self._mirror is not None
        mirror, began = self._mirror, False

        def copy() -> Uploaded:
            nonlocal began
            began = True
            with snapshot:
                return mirror.upload(snapshot)

        try:
            return await asyncio.get_running_loop().run_in_executor(self._place.thread, copy)
        finally:
            if not began:  # it was cancelled while the thread was busy
                snapshot.close()

    def _note_failure(self, completed: int, error: Exception) -> None:
        retry_s = self._schedule.failed(self._now())
        failures = self._status.failures + 1
        self._change(failures=failures, problem=str(error))
        self._job.event(
            MirrorFailed(iteration=completed, failures=failures, retry_s=retry_s, reason=str(error))
        )

    def _change(self, **fields: Any) -> None:
        self._status = msgspec.structs.replace(self._status, **fields)
