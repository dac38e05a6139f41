"""Looking on at a job of a coordinator from anywhere, until it ends. The coordinator may be away
for a while, as when it is started again: the same job is looked at when it is back.
"""

from __future__ import annotations

import asyncio

from spotlight.actors.protocol.users import JobStatus
from spotlight.errors import ActorError, NotAdmitted, NotAllowed, OtherVersion, UserError
from spotlight.running.client import CoordinatorClient
from spotlight.running.local_run import Observer

POLL_S = 1.0
_CALL_LIMIT_S = 2.0
_SILENCE_S = 5.0
"""The user is told when the coordinator has not answered for so long."""
_SILENCE_LIMIT_S = 600.0
"""A coordinator that does not answer is given up after so long."""
_FINAL = (NotAdmitted, NotAllowed, OtherVersion)
"""What a coordinator says that will not change its mind."""


async def follow(client: CoordinatorClient, job: str, observer: Observer) -> JobStatus:
    """Show a job to the observer, by its id or name (see `CoordinatorClient.status`), until it has
    ended; returns its last status. Raises `UserError`, and `ActorError` if the coordinator does not
    answer to begin with, or lets this process in no more."""
    status = await client.status(job)
    if not status.job:
        raise UserError("no job is running; `spotlight list --all` says which have ended")
    silence = _Silence(observer)
    while True:
        await observer.progress(status)
        if status.outcome:
            return status
        await asyncio.sleep(POLL_S)
        try:
            status = await client.status(status.id or job, timeout_s=_CALL_LIMIT_S)
        except _FINAL:
            raise
        except ActorError as error:
            silence.goes_on(error)
        else:
            silence.is_over()


class _Silence:
    """How long the coordinator has not answered, and what the user is told of it."""

    def __init__(self, observer: Observer) -> None:
        self._observer = observer
        self._now = asyncio.get_running_loop().time
        self._since = self._now()
        self._told = False

    def is_over(self) -> None:
        """It answers."""
        if self._told:
            self._observer.tell("the coordinator answers again")
        self._since, self._told = self._now(), False

    def goes_on(self, error: ActorError) -> None:
        """It does not. Raises the error when that was so for too long."""
        silent_s = self._now() - self._since
        if silent_s > _SILENCE_LIMIT_S:
            raise error
        if silent_s > _SILENCE_S and not self._told:
            self._told = True
            self._observer.tell(
                f"the coordinator has not answered for {silent_s:.0f} s; waiting for it (at most"
                f" {_SILENCE_LIMIT_S:.0f} s)"
            )
