"""What somebody at a command line asks the coordinator of a simulated cluster."""

from __future__ import annotations

from spotlight.actors.protocol import CancelJob, GetStatus, JobStatus, JobUnknown
from spotlight.errors import ActorError
from spotlight_simulation.memory_cluster import Cluster


async def look(cluster: Cluster) -> JobStatus | None:
    """How its only job or session is; None without an answer."""
    return _known(await _ask(cluster, GetStatus(), limit_s=2.0))


async def look_at(cluster: Cluster, job: str) -> JobStatus | JobUnknown | None:
    """How a job is, by its name or id; None without an answer."""
    return await _ask(cluster, GetStatus(job), limit_s=2.0)


async def cancel(cluster: Cluster) -> JobStatus | None:
    """End its only job or session; returns how that was, None without an answer."""
    return _known(await _ask(cluster, CancelJob(), limit_s=5.0))


async def _ask(
    cluster: Cluster, message: GetStatus | CancelJob, *, limit_s: float
) -> JobStatus | JobUnknown | None:
    try:
        answer = await cluster.user().ask(cluster.coordinator_actor(), message, timeout_s=limit_s)
    except ActorError:
        return None
    assert isinstance(answer, JobStatus | JobUnknown)
    return answer


def _known(answer: JobStatus | JobUnknown | None) -> JobStatus | None:
    return answer if isinstance(answer, JobStatus) else None
