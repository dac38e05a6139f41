"""A job on a cluster of real processes, as a driver sees it: from its run folder, for a coordinator
that was killed after the end knows nothing of it.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from pathlib import Path

from spotlight.actors.protocol.users import JobStatus
from spotlight.errors import ActorError
from spotlight.record.run_events import (
    PhaseBegan,
    RunEvent,
    RunFinished,
    RunStarted,
    SamplesOutdated,
    WorkerStateBegan,
    decode_event,
)
from spotlight.running.client import CoordinatorClient
from spotlight.store.record_files import whole_event_lines, whole_state_lines

POLL_S = 0.2
_ANSWER_S = 2.0


@dataclass
class LiveRun:
    """See the module's docstring."""

    folder: Path
    status: JobStatus | None = None
    """The latest that the coordinator gave."""
    problems: list[str] = field(default_factory=list)

    @property
    def events(self) -> list[RunEvent]:
        """Of the run folder, so far."""
        return [decode_event(line) for line in whole_event_lines(self.folder)]

    @property
    def began(self) -> bool:
        """Whether the first rollout has."""
        return any(e.phase == "rollout" for e in self.events if isinstance(e, PhaseBegan))

    @property
    def outcome(self) -> str:
        """How the job ended, and why; empty while it runs."""
        marks = [e for e in self.events if isinstance(e, RunStarted | RunFinished)]
        if not marks or isinstance(marks[-1], RunStarted):
            return ""
        return f"{marks[-1].outcome} {marks[-1].reason}".strip()

    @property
    def trainer(self) -> str:
        """The worker that trains, or trained last; empty before."""
        states = map(decode_event, whole_state_lines(self.folder))
        trains = [
            event.worker
            for event in states
            if isinstance(event, WorkerStateBegan) and event.state == "train"
        ]
        return trains[-1] if trains else ""

    async def until_begun(self) -> None:
        """Wait for the first rollout; the driver bounds the whole."""
        while not (self.began or self.outcome):  # noqa: ASYNC110 - a file says so
            await asyncio.sleep(POLL_S)

    async def follow(self, client: CoordinatorClient, limit_s: float) -> None:
        """Look at the job until it ends and its report is there; what is not as it should be is a
        problem."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + limit_s
        while not (self.outcome and (self.folder / "report.html").exists()):
            if loop.time() > deadline:
                what = "has no report" if self.outcome else "did not end"
                self.problems.append(f"the job {what} within {limit_s:g} s")
                return
            await asyncio.sleep(POLL_S)
            self.status = await status_of(client) or self.status
        if self.outcome != "finished":
            self.problems.append(f"the job {self.outcome}")
        outdated = [event for event in self.events if isinstance(event, SamplesOutdated)]
        self.problems += [f"{event.samples} samples could not be made" for event in outdated]


async def status_of(client: CoordinatorClient) -> JobStatus | None:
    """What the coordinator says; None if it is away."""
    try:
        return await client.status(timeout_s=_ANSWER_S)
    except ActorError:
        return None


async def until_all_there(client: CoordinatorClient, workers: int, limit_s: float) -> None:
    """Wait until so many workers have joined. Raises `TimeoutError`."""
    async with asyncio.timeout(limit_s):
        while (  # noqa: ASYNC110 - only asking tells
            status := await status_of(client)
        ) is None or len(status.workers) < workers:
            await asyncio.sleep(POLL_S)
