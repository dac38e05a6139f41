"""A job on a simulated cluster without faults that is gone on with after its end, once or more."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import yaml

from spotlight.actors.protocol.users import JobAccepted, SubmitJob
from spotlight.errors import RequestRefused
from spotlight.jobs import JobSpec
from spotlight.jobs.resuming import job_with
from spotlight.record.run_events import SegmentBegan
from spotlight.running.forking import make_fork, plan_fork
from spotlight.store.run_folder import RunFolder
from spotlight_simulation.chaos import scratch_folder, silence
from spotlight_simulation.freezing import FreezableLoop
from spotlight_simulation.job_life import chaos_job
from spotlight_simulation.memory_cluster import Cluster
from spotlight_simulation.processes import NodeSpec
from spotlight_simulation.simulated_user import look

_NODES = (NodeSpec("reserved", "reserved", 1), NodeSpec("spot", "spot", 1))
_POLL_S = 1.0
_ANSWER_S = 5.0


class ContinuedRun:
    """What such a run has left at its last end. Its exploration has a fixed budget.

    Args:
        exploration: fields of that section of the job.
        iterations: at first.
        changes: each is made, as `path=value`, when the run has ended, and it goes on.
        fork_at: the first is made in a fork of the run after so many iterations, which goes on
            instead of it.
    """

    def __init__(
        self,
        exploration: Mapping[str, Any],
        iterations: int,
        *changes: str,
        fork_at: int | None = None,
    ) -> None:
        with (
            scratch_folder() as folder,
            silence(),
            asyncio.Runner(loop_factory=FreezableLoop) as runner,
        ):
            explores = {"candidates": 2, "budget": "fixed", **exploration}
            job = chaos_job(folder, iterations=iterations, exploration=explores, keep_checkpoints=3)
            path = runner.run(_lives(folder, job, changes, fork_at))
            self.weights = max((path / "checkpoints").iterdir()).read_bytes()
            """Those of the last checkpoint: their name tells all samples that they came of."""
            self.configs: dict[str, Any] = {
                each.name: yaml.safe_load(each.read_text()) for each in path.glob("*.yaml")
            }
            """The jobs in its folder, by the file."""
            opened, _ = RunFolder.reopen(path, None)
            self.figures = [_timeless(each) for each in opened.metrics()]
            """All of its metrics that do not depend on time."""
            self.segments = [
                each for each in opened.events((SegmentBegan,)) if isinstance(each, SegmentBegan)
            ]
            """The segments that began after the first."""
            opened.close()

    @property
    def iterations(self) -> list[dict[str, Any]]:
        """The figures of its iterations."""
        return [each for each in self.figures if each["kind"] == "iteration"]


def _timeless(metrics: msgspec.Struct) -> dict[str, Any]:
    fields = msgspec.to_builtins(metrics)
    return {key: value for key, value in fields.items() if not key.endswith("_s") and key != "at"}


async def _lives(folder: Path, job: JobSpec, changes: Sequence[str], fork_at: int | None) -> Path:
    """Returns the run folder that went on last."""
    path = folder / "runs" / "run"
    cluster = Cluster(0, folder, _NODES)
    async with cluster:
        await cluster.start_coordinator()
        for node in _NODES:
            await cluster.start_node(node.name)
        await _to_its_end(cluster, SubmitJob(job, str(path), resume=False))
        for number, change in enumerate(changes):
            job, made = job_with(job, [change]), [change]
            if number == 0 and fork_at is not None:
                fork = plan_fork(f"{path}@{fork_at}", made, None)
                make_fork(fork)
                path, made = fork.folder, []
            await _to_its_end(cluster, SubmitJob(job, str(path), resume=True, changes=tuple(made)))
    return path


async def _to_its_end(cluster: Cluster, message: SubmitJob) -> None:
    coordinator = cluster.coordinator_actor()
    answer = await cluster.user().ask(coordinator, message, timeout_s=_ANSWER_S)
    if not isinstance(answer, JobAccepted):
        raise RequestRefused(getattr(answer, "reason", "it was refused"))
    while True:
        await asyncio.sleep(_POLL_S)
        status = await look(cluster)
        if status is not None and status.outcome:
            if status.outcome != "finished":
                raise RequestRefused(f"{status.outcome}: {status.reason}")
            return
