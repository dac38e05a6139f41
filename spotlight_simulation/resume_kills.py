"""A coordinator that is killed while it takes a run that is to go on with other settings: the run
is either as it was, or goes on with all of them.

All is on virtual time, with the real actors. `resumed_at` is one life of such a cluster, with a
kill; `resumes` has one for each place where it may fall.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import msgspec

from spotlight.actors.protocol.users import JobAccepted, JobStatus, SubmitJob
from spotlight.errors import ActorError
from spotlight.jobs import job_to_yaml
from spotlight.jobs.resuming import job_with
from spotlight.store.run_folder import read_config
from spotlight_simulation.chaos import scratch_folder, silence
from spotlight_simulation.freezing import FreezableLoop
from spotlight_simulation.job_life import chaos_job
from spotlight_simulation.memory_cluster import COORDINATOR, Cluster, Killed
from spotlight_simulation.processes import NodeSpec
from spotlight_simulation.queue_kills import operate
from spotlight_simulation.simulated_user import look_at

_NODES = (NodeSpec("reserved", "reserved", 1),)
_CHANGES = ("iterations=2", "training.learning_rate=1e-05")
_POLL_S = 1.0
_ANSWER_S = 5.0
_LOOKS_S = 20.0
"""A coordinator that was started again has begun what is in its queue by then."""
_LIMIT_S = 3600.0


class ResumedLife(msgspec.Struct, frozen=True):
    """What came of the run."""

    places: int
    """This is how many failpoints the coordinator reached while it took the run."""
    killed_at: str
    """The failpoint where it was killed; empty without a kill."""
    goes_on: bool
    """Whether the run went on; else it was as before."""
    problem: str = ""
    """What of the two was only half so; empty if nothing."""


def resumes() -> Iterator[ResumedLife]:
    """One with a kill at each place that a life without one has."""
    for place in range(1, resumed_at(0).places + 1):
        yield resumed_at(place)


def resumed_at(place: int) -> ResumedLife:
    """A life in which the coordinator is killed at that failpoint, the first being 1; 0 for no
    kill."""
    with (
        scratch_folder() as folder,
        silence(),
        asyncio.Runner(loop_factory=FreezableLoop) as runner,
    ):
        return runner.run(_life(folder, place))


class _Killer:
    """Counts the failpoints that the coordinator reaches while it is asked, and kills it at one."""

    def __init__(self, cluster: Cluster, place: int) -> None:
        self._cluster = cluster
        self._place = place
        self.is_asked = False
        self.reached = 0
        """How many it has counted."""
        self.killed_at = ""
        """The name of the one where it has killed the coordinator."""
        cluster.on_failpoint = self._on_failpoint

    def _on_failpoint(self, name: str) -> None:
        if not self.is_asked:
            return
        self.reached += 1
        if self.reached == self._place:
            self.killed_at, self.is_asked = name, False
            self._cluster.kill_process(COORDINATOR)
            raise Killed


async def _life(folder: Path, place: int) -> ResumedLife:
    cluster = Cluster(0, folder, _NODES)
    killer = _Killer(cluster, place)
    async with cluster, asyncio.timeout(_LIMIT_S):
        await cluster.start_coordinator()
        await cluster.start_node("reserved")
        operator = asyncio.create_task(operate(cluster))
        job = chaos_job(folder, iterations=1, validation={"seeds": 1, "every": 1})
        accepted = await _ask(cluster, SubmitJob(job, "", resume=False))
        assert isinstance(accepted, JobAccepted), accepted
        run = Path(accepted.run_folder)
        await _ended(cluster)
        before = _settings(run)
        killer.is_asked = True
        again = job_with(read_config(run), _CHANGES)
        answer = await _ask(cluster, SubmitJob(again, str(run), resume=True, changes=_CHANGES))
        killer.is_asked = False
        await asyncio.sleep(_LOOKS_S)
        end = await _ended(cluster)
        operator.cancel()
    goes_on = end.iterations == again.iterations
    after = _settings(run)
    wanted = {**before, "config-001.yaml": before["config.yaml"]}
    problem = ""
    if goes_on:
        is_so = (
            end.iteration == again.iterations
            and job_to_yaml(read_config(run)) == job_to_yaml(again)
            and {name: text for name, text in after.items() if name != "config.yaml"}
            == {name: text for name, text in wanted.items() if name != "config.yaml"}
        )
        problem = "" if is_so else f"it went on, with {sorted(after)} and {end}"
    elif after != before or isinstance(answer, JobAccepted):
        problem = f"it did not go on, and {sorted(after)} are there; the answer was {answer}"
    return ResumedLife(killer.reached, killer.killed_at, goes_on, problem)


def _settings(run: Path) -> dict[str, str]:
    return {file.name: file.read_text() for file in run.glob("config*")}


async def _ask(cluster: Cluster, message: SubmitJob) -> object:
    """None without an answer."""
    try:
        return await cluster.user().ask(cluster.coordinator_actor(), message, timeout_s=_ANSWER_S)
    except ActorError:
        return None


async def _ended(cluster: Cluster) -> JobStatus:
    while True:
        status = await look_at(cluster, "")
        if isinstance(status, JobStatus) and status.outcome:
            return status
        await asyncio.sleep(_POLL_S)
