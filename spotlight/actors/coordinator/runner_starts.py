"""How the runner of a job, or of a session, is made from what its coordinator has."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from spotlight.actors.coordinator.fleet import TenantFleet
from spotlight.actors.coordinator.job.job_parts import JobSetup
from spotlight.actors.coordinator.job.job_runner import JobRunner
from spotlight.actors.coordinator.job.mirroring import MirrorPlace
from spotlight.actors.coordinator.session.session_folder import SessionFolder
from spotlight.actors.coordinator.session.session_parts import SessionSetup
from spotlight.actors.coordinator.session.session_runner import SessionRunner
from spotlight.actors.coordinator.submissions import SessionFiles, Submission
from spotlight.actors.protocol import JobStatus, NodeReport
from spotlight.actors.runtime import ActorRef
from spotlight.store.run_folder import RunFolder
from spotlight.timings import Timings
from spotlight.transport.tensors import ArtifactStore


@dataclass(frozen=True)
class RunnerStart:
    """A runner that is to start."""

    title: str
    """For people."""
    actor: str
    """Its name."""
    tenant: str
    """The id of its job or session."""
    folder: Path
    token: str
    """Of the store in the folder."""
    owner: str
    """The id of a submitter's join token, or the operators'."""


@dataclass(frozen=True)
class RunnerSurroundings:
    """What every runner is given, and calls."""

    store: ArtifactStore
    """The folder's, started."""
    fleet: TenantFleet
    coordinator: ActorRef
    nodes: tuple[NodeReport, ...]
    """Who is there already."""
    timings: Timings
    mirror: MirrorPlace | None
    on_status: Callable[[JobStatus], None]
    on_end: Callable[[JobStatus], None]
    on_loss: Callable[[], None]


def make_job_runner(
    folder: RunFolder,
    submission: Submission,
    job_id: str,
    around: RunnerSurroundings,
    *,
    came_back: bool,
) -> JobRunner:
    """The runner of a job."""
    job, files, timings = submission.job, submission.files, around.timings.coordinator
    listen_s = 0.0
    if came_back:
        listen_s = timings.takeover_s if around.nodes else timings.listen_s
    return JobRunner(
        JobSetup(
            job,
            job_id,
            folder,
            around.store,
            files,
            came_back,
            listen_s,
            around.timings,
            around.mirror,
            submission.hub_files,
        ),
        around.fleet,
        coordinator=around.coordinator,
        nodes=around.nodes,
        on_status=around.on_status,
        on_end=around.on_end,
        on_loss=around.on_loss,
    )


def make_session_runner(
    folder: SessionFolder, files: SessionFiles, around: RunnerSurroundings, *, came_back: bool
) -> SessionRunner:
    """The runner of a session."""
    return SessionRunner(
        SessionSetup(folder, around.store, files, came_back, around.timings),
        around.fleet,
        coordinator=around.coordinator,
        nodes=around.nodes,
        on_status=around.on_status,
        on_end=around.on_end,
    )
