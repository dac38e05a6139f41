"""How many messages in a row it takes from one thing to another, as a simulated job without faults
shows: each is followed back from its end.

A message is preceded by the latest one about the same that its sender had by then. The actors of
the coordinator's process call each other, so what one of them had counts for those that had none.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

from benchmarks.house.watching import Hop, watched
from spotlight.actors.protocol.down import Grant, NodePlan, Receipt, WorkerPlan
from spotlight.actors.protocol.trainer import Train, TrainerReport
from spotlight.actors.protocol.up import CommitSteps, Completed, WorkerReport
from spotlight.actors.protocol.users import JobAccepted, JobStatus, PreemptNode, SubmitJob
from spotlight.actors.runtime import Message
from spotlight.errors import ActorError
from spotlight_simulation.addresses import address_of
from spotlight_simulation.chaos import scratch_folder, silence
from spotlight_simulation.fault_injector import disturbed
from spotlight_simulation.freezing import FreezableLoop
from spotlight_simulation.job_life import chaos_job
from spotlight_simulation.memory_cluster import COORDINATOR, Cluster
from spotlight_simulation.processes import NodeSpec
from spotlight_simulation.simulated_user import look

NODES = (
    NodeSpec("reserved", "reserved", 1),
    NodeSpec("spot-1", "spot", 1),
    NodeSpec("spot-2", "spot", 1),
)
_NOTICED = "spot-2"
_STEPS = 24
"""Steps of each sample: there are so many that notice comes while one is denoised."""
_LIMIT_S = 600.0
_LOOK_S = 0.5
_NOTICE_S = 30.0


def measured() -> dict[str, list[str]]:
    """The longest of each kind, as the messages that it consists of."""
    hops = _hops_of_a_job()
    return {
        "seed_to_gradient": _longest(_seed_walks(hops)),
        "notice_to_commit": _longest(_notice_walks(hops)),
        "weights_to_member": _longest(_weights_walks(hops)),
    }


def _hops_of_a_job() -> list[Hop]:
    with (
        scratch_folder() as folder,
        silence(),
        watched(address_of(COORDINATOR), turns=False) as watch,
        asyncio.Runner(loop_factory=FreezableLoop) as runner,
    ):
        runner.run(_job_with_notice(folder))
    return watch.hops


async def _job_with_notice(folder: Path) -> None:
    """Run a job to its end; while it denoises samples, a user gives a node notice."""
    sampler = {"height": 32, "width": 64, "steps": _STEPS, "micro_batch": 4, "degree": 1}
    job = chaos_job(folder, group_size=8, sampler=sampler)
    cluster = Cluster(0, folder, NODES)
    async with cluster, disturbed(cluster, ()), asyncio.timeout(_LIMIT_S):
        submitted = SubmitJob(job, str(folder / "runs" / "chaos-001"), False)
        answer: Message | None = None
        while not isinstance(answer, JobAccepted):
            await asyncio.sleep(_LOOK_S)
            answer = await _ask(cluster, submitted)
        await _until(cluster, lambda status: status.phase == "rollout" and status.done > 0)
        await _ask(cluster, PreemptNode(_NOTICED, _NOTICE_S, False))
        await _until(cluster, lambda status: status.outcome == "finished")


async def _ask(cluster: Cluster, message: Message) -> Message | None:
    try:
        return await cluster.user().ask(cluster.coordinator_actor(), message, timeout_s=5.0)
    except ActorError:
        return None


async def _until(cluster: Cluster, holds: Callable[[JobStatus], bool]) -> None:
    status: JobStatus | None = None
    while status is None or not holds(status):
        await asyncio.sleep(_LOOK_S)
        status = await look(cluster)


# --- the walks ---


def _seed_walks(hops: Sequence[Hop]) -> Iterator[list[Hop]]:
    """From the grant of a request to the order to train on its sample."""
    bundles = {
        hop.message.bundle.key: hop.message.requests
        for hop in hops
        if isinstance(hop.message, Completed)
    }
    for hop in hops:
        if isinstance(hop.message, Train):
            for sample in hop.message.samples:
                request = bundles[sample.bundle.key][sample.row]
                yield _walk_to(hop, hops, partial(_names, request))


def _names(request: str, hop: Hop) -> bool:
    message = hop.message
    if isinstance(message, Grant):
        return request in [each.id for each in message.requests]
    return isinstance(message, Completed) and request in message.requests


def _notice_walks(hops: Sequence[Hop]) -> Iterator[list[Hop]]:
    """From the plan that says a user's notice to the receipt of the commit that it causes."""
    notice = next(
        hop for hop in hops if isinstance(hop.message, NodePlan) and hop.message.notice is not None
    )
    later = [hop for hop in hops if hop.sent >= notice.sent]
    for hop in later:
        if isinstance(hop.message, Receipt) and isinstance(hop.asked, CommitSteps):
            walk = _walk_to(hop, later, partial(_leaves_or_commits, hop.asked.worker))
            if walk[0] is notice:
                yield walk
                return  # others follow as the worker goes on


def _leaves_or_commits(worker: str, hop: Hop) -> bool:
    message = hop.message
    if isinstance(message, CommitSteps):
        return message.worker == worker
    if isinstance(message, WorkerPlan):
        return message.stop_in_s is not None
    return isinstance(message, NodePlan) and message.notice is not None


def _weights_walks(hops: Sequence[Hop]) -> Iterator[list[Hop]]:
    """From the report of a trainer to the first report of a member that has the weights."""
    seen: set[int] = set()
    for hop in hops:
        if isinstance(hop.message, WorkerReport):
            for version in set(hop.message.rollout) - seen - {0}:
                seen.add(version)
                yield _walk_to(hop, hops, partial(_brings, version))


def _brings(version: int, hop: Hop) -> bool:
    message = hop.message
    if isinstance(message, TrainerReport):
        return message.published is not None and message.published.version == version
    if isinstance(message, NodePlan | WorkerPlan) and message.job is not None:
        return version in [offer.version for offer in message.job.weights]
    return False


def _walk_to(end: Hop, hops: Sequence[Hop], about: Callable[[Hop], bool]) -> list[Hop]:
    """The hops that lead to one, itself the last."""
    relevant = [hop for hop in hops if about(hop)]
    walk = [end]
    while (before := _before(walk[0], relevant)) is not None:
        walk.insert(0, before)
    return walk


def _before(hop: Hop, relevant: Sequence[Hop]) -> Hop | None:
    earlier = [each for each in relevant if each.came < hop.sent and each is not hop]
    own = [each for each in earlier if each.target == hop.source]
    if not own and hop.source[0] == address_of(COORDINATOR):
        own = [each for each in earlier if each.target[0] == hop.source[0]]
    return max(own, key=lambda each: each.came, default=None)


def _longest(walks: Iterator[list[Hop]]) -> list[str]:
    longest = max(walks, key=len)
    return [f"{type(hop.message).__name__} to {hop.target[1]}" for hop in longest]
