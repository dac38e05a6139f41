"""One job on this machine, from its submission to its end: what `spotlight run` shows, and
`spotlight.run` returns.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from spotlight.actors.protocol.users import JobStatus
from spotlight.errors import ActorError, RunFolderError, UserError
from spotlight.jobs import JobSpec
from spotlight.permissions import Permissions
from spotlight.running.client import CoordinatorClient, connect
from spotlight.running.local_cluster import LocalCluster, LocalPlaces, local_cluster

_CALL_LIMIT_S = 1.0
_POLL_S = 0.1
_SILENCE_S = 10.0
"""The user is told when the coordinator has not answered for so long."""
_SILENCE_LIMIT_S = 600.0
"""A coordinator that lives and does not answer is given up."""


class Observer(Protocol):
    """Who looks on while a job runs."""

    async def progress(self, status: JobStatus) -> None:
        """Called some ten times a second with what is known last."""
        ...

    def tell(self, line: str) -> None:
        """Something is the matter that the user should know of."""
        ...


class StopWish:
    """Tells a run to end its job. `wish` may be called at any time, also from a signal handler."""

    def __init__(self) -> None:
        self.reason: str | None = None
        """Why; None as long as nobody wants it to end."""

    def wish(self, reason: str = "cancelled by the user") -> None:
        """End the job; the first reason counts."""
        self.reason = self.reason or reason


def check_new_folder(folder: Path) -> None:
    """Raise `RunFolderError` if a run is there already."""
    if os.path.exists(folder / "config.yaml"):  # of a path that is too long, too
        raise RunFolderError(
            f"{folder} already holds a run; continue it with --resume, or give another --run-folder"
        )


def make_log_folder(logs: Path) -> None:
    """Make the folder of the daemons' logs; raises `RunFolderError`."""
    try:
        logs.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunFolderError(
            f"{logs}: {error.strerror}; give a --run-folder that can be written"
        ) from error


async def run_local_job(
    job: JobSpec,
    folder: Path,
    observer: Observer,
    stop: StopWish,
    *,
    places: LocalPlaces,
    resume: bool,
    changes: Sequence[str] = (),
) -> JobStatus | None:
    """Run a job that was checked, in a folder whose `logs` are there, to its end. When a run goes
    on, it is its job with `changes`.

    Returns its last status; None if it was stopped while the coordinator did not answer. Raises
    `UserError` when the coordinator refuses the job, cannot be started, or is lost for good. When
    it is cancelled the job is cancelled, and can be resumed; in each case all daemons end.
    """
    allowed = Permissions.of(job).plus(places.permissions)
    places = replace(places, run_folder=folder, permissions=allowed)
    async with (
        local_cluster(job.pools, folder / "logs", places) as cluster,
        connect(cluster.join) as client,
    ):
        try:
            await client.submit(job, str(folder), resume=resume, changes=changes)
        except ActorError as error:
            log = folder / "logs" / "coordinator.log"
            raise UserError(
                f"the coordinator did not accept the job ({error}); see {log}"
            ) from error
        try:
            return await _follow(cluster, client, observer, stop)
        except asyncio.CancelledError:
            stop.wish("cancelled by the program that ran it")
            await _follow(cluster, client, observer, stop)
            raise


async def _follow(
    cluster: LocalCluster, client: CoordinatorClient, observer: Observer, stop: StopWish
) -> JobStatus | None:
    """Look at the job until it ends; None if it was broken off, as nobody answered."""
    status = JobStatus()
    cancelled = False
    silence = _Silence(cluster, observer)
    while True:
        try:
            if stop.reason is not None and not cancelled:
                cancelled = True
                await client.cancel(reason=stop.reason, timeout_s=_CALL_LIMIT_S)
            status = await client.status(timeout_s=_CALL_LIMIT_S)
            silence.is_over()
        except ActorError as error:
            if cancelled:
                return None
            silence.goes_on(error)
        await observer.progress(status)
        if status.outcome:
            return status
        await asyncio.sleep(_POLL_S)


class _Silence:
    """How long the coordinator has not answered, and what that means: one that is slow, or is
    being started again, is waited for.
    """

    def __init__(self, cluster: LocalCluster, observer: Observer) -> None:
        self._cluster = cluster
        self._observer = observer
        self._now = asyncio.get_running_loop().time
        self._told: set[str] = set()
        self.is_over()

    def is_over(self) -> None:
        """It answers."""
        self._since = self._now()
        self._said = False
        for daemon in self._cluster.daemons:
            if daemon.ended and daemon.name not in self._told:
                self._told.add(daemon.name)
                self._observer.tell(f"{daemon.ended}; see {self._cluster.logs}")

    def goes_on(self, error: ActorError) -> None:
        """It does not. Raises `UserError` when there is nothing more to wait for."""
        silent_s, ended = self._now() - self._since, self._cluster.coordinator.ended
        if ended or silent_s > _SILENCE_LIMIT_S:
            why = ended or f"the coordinator has not answered for {silent_s:.0f} s ({error})"
            raise UserError(f"{why}; see {self._cluster.logs}, and continue with --resume")
        if silent_s > _SILENCE_S and not self._said:
            self._said = True
            self._observer.tell(
                f"the coordinator has not answered for {silent_s:.0f} s; waiting for it"
                f" (at most {_SILENCE_LIMIT_S:.0f} s; Ctrl-C ends the run)"
            )
