"""What somebody at a command line asks the coordinator of a simulated cluster."""

from __future__ import annotations

from spotlight.actors.protocol.users import (
    CancelJob,
    GetStatus,
    JobList,
    JobStatus,
    JobUnknown,
    ListJobs,
)
from spotlight.errors import ActorError
from spotlight.transport.control import Message
from spotlight_simulation.memory_cluster import Cluster


async def look(cluster: Cluster) -> JobStatus | None:
    """How its only job or session is; None without an answer."""
    return _known(await _ask(cluster, GetStatus(), limit_s=2.0))


async def look_at(cluster: Cluster, job: str) -> JobStatus | JobUnknown | None:
    """How a job is, by its name or id; None without an answer."""
    answer = await _ask(cluster, GetStatus(job), limit_s=2.0)
    assert isinstance(answer, JobStatus | JobUnknown | None)
    return answer


async def cancel(cluster: Cluster) -> JobStatus | None:
    """End the newest session; returns how that was, None without an answer or without one."""
    answer = await _ask(cluster, ListJobs(), limit_s=5.0)
    jobs = answer.jobs if isinstance(answer, JobList) else ()
    live = [each for each in jobs if each.kind == "session" and each.ended_at is None]
    if not live:
        return None
    newest = max(live, key=lambda each: each.submitted_at)
    return _known(await _ask(cluster, CancelJob(newest.name), limit_s=5.0))


async def _ask(
    cluster: Cluster, message: GetStatus | ListJobs | CancelJob, *, limit_s: float
) -> Message | None:
    try:
        return await cluster.user().ask(cluster.coordinator_actor(), message, timeout_s=limit_s)
    except ActorError:
        return None


def _known(answer: Message | None) -> JobStatus | None:
    return answer if isinstance(answer, JobStatus) else None
