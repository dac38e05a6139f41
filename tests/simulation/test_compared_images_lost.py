"""Images that are compared with others, of which a bundle or all but one are lost."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec

from spotlight.errors import TransferFailed
from spotlight.jobs import JobSpec, RewardSpec
from spotlight.permissions import Permissions
from spotlight.types import BundleOffer
from spotlight_simulation.chaos import silence
from spotlight_simulation.cluster_watch import ClusterWatch
from spotlight_simulation.fault_injector import disturbed
from spotlight_simulation.freezing import FreezableLoop
from spotlight_simulation.job_life import Run, Scenario, chaos_job, have_it_done
from spotlight_simulation.memory_cluster import Cluster
from spotlight_simulation.processes import NodeSpec

COMPARES = RewardSpec(kind="python", name="compares", python="own:compares", groupwise=True)
NODES = (NodeSpec("reserved", "reserved", 1), NodeSpec("spot", "spot", 1))
BATCH = 2


def compared(folder: Path, **changes: object) -> JobSpec:
    """A group has two bundles, and nothing is explored."""
    job = chaos_job(folder, iterations=1, exploration={"mode": "none"}, **changes)
    sampler = msgspec.structs.replace(job.sampler, micro_batch=BATCH)
    return msgspec.structs.replace(job, rewards=(COMPARES,), sampler=sampler)


def have_done(folder: Path, job: JobSpec, *, lose: int = 0) -> Run:
    """The job on a cluster that loses this many bundles just before they are compared."""

    async def live() -> Run:
        cluster = Cluster(0, folder, NODES, permissions=Permissions.of(job))
        run = Run(Scenario(job, NODES, (), False), cluster, folder)
        fetch, lost = cluster.stores.fetch, list[str]()

        async def fetch_what_is_there(offer: BundleOffer) -> bytes:
            if len(lost) < lose and offer.key.startswith("samples/") and offer.key not in lost:
                lost.append(offer.key)
            if offer.key in lost:
                raise TransferFailed(f"{offer.key} is lost")
            return await fetch(offer)

        cluster.stores.fetch = fetch_what_is_there  # type: ignore[method-assign]
        async with cluster, disturbed(cluster, ()):
            await have_it_done(run, ClusterWatch(cluster))
        return run

    with silence(), asyncio.Runner(loop_factory=FreezableLoop) as runner:
        return runner.run(live())


def test_of_a_group_only_the_bundle_that_is_lost_is_made_again(tmp_path: Path) -> None:
    steps = []
    for lose in (0, 1):
        folder = tmp_path / f"{lose}"
        folder.mkdir()
        job = compared(folder)
        run = have_done(folder, job, lose=lose)
        assert run.history.violations == []
        assert run.outcomes == [("finished", "")]
        steps.append(run.cluster.hardware.steps)
    assert steps[1] - steps[0] == BATCH * job.sampler.steps
