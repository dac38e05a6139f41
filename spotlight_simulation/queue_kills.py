"""A coordinator that is killed in the middle of its queue's writes, with the jobs of a user who
looks, asks again where no answer came, and cancels one: none may be lost, and none be there twice.

All is on virtual time, with the real actors. `killed_at` is one life of such a cluster, with a
kill; `lives` has one for each place where it may fall.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import msgspec

from spotlight.actors.protocol.users import (
    CancelJob,
    JobAccepted,
    JobEntry,
    JobList,
    ListJobs,
    SubmitJob,
)
from spotlight.errors import ActorError
from spotlight.jobs import JobSpec
from spotlight.transport.control import Message
from spotlight.types import JobState
from spotlight_simulation.chaos import scratch_folder, silence
from spotlight_simulation.freezing import FreezableLoop
from spotlight_simulation.job_life import chaos_job
from spotlight_simulation.memory_cluster import COORDINATOR, Cluster, Killed
from spotlight_simulation.processes import NodeSpec

_NODES = (NodeSpec("reserved", "reserved", 1), NodeSpec("spot", "spot", 1))
"""One job trains at a time, so that others wait."""
_WANTED: dict[str, JobState] = {"first": "finished", "second": "finished", "third": "cancelled"}
"""How the jobs of the user are to end, by name."""
_BEGIN, _END = "queue.write", "queue.written"
_POLL_S = 1.0
_AWAY_S = 3.0
"""The coordinator is away for this long after its kill."""
_ANSWER_S = 5.0
_LIMIT_S = 3600.0


class QueueLife(msgspec.Struct, frozen=True):
    """What came of the jobs."""

    places: int
    """This is how many places of the queue's writes the coordinator reached."""
    killed_at: str
    """The failpoint where it was killed; empty without a kill."""
    lost: tuple[str, ...] = ()
    """The jobs that were acknowledged and are not there, or did not end as they should."""
    twice: tuple[str, ...] = ()
    """The names of jobs that are there more than once."""


def lives(every: int = 1) -> Iterator[QueueLife]:
    """One with a kill at each place that the queue's writes have in a life without, or at some of
    them; half a second of processor time each."""
    for place in range(1, killed_at(0).places + 1, every):
        yield killed_at(place)


def killed_at(place: int) -> QueueLife:
    """A life in which the coordinator is killed at that place of its queue's writes, the first
    being 1; 0 for no kill."""
    with (
        scratch_folder() as folder,
        silence(),
        asyncio.Runner(loop_factory=FreezableLoop) as runner,
    ):
        return runner.run(_life(folder, place))


class _Killer:
    """Counts the failpoints of the queue's writes, those of its journal among them, and kills the
    coordinator at one."""

    def __init__(self, cluster: Cluster, place: int) -> None:
        self._cluster = cluster
        self._place = place
        self._is_writing = False
        self.reached = 0
        """How many it has counted."""
        self.killed_at = ""
        """The name of the one where it has killed the coordinator."""
        cluster.on_failpoint = self._on_failpoint

    def _on_failpoint(self, name: str) -> None:
        self._is_writing = self._is_writing or name == _BEGIN
        if not self._is_writing:
            return
        self._is_writing = name != _END
        self.reached += 1
        if self.reached == self._place:
            self.killed_at, self._is_writing = name, False
            self._cluster.kill_process(COORDINATOR)
            raise Killed


class _User:
    """Whose jobs they are."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self._cluster = cluster
        job = chaos_job(folder, iterations=1, validation={"seeds": 1, "every": 1})
        self._jobs = {name: msgspec.structs.replace(job, name=name) for name in _WANTED}
        self._acknowledged: dict[str, str] = {}
        """The names of all jobs that were acknowledged, by their ids."""
        self.entries: tuple[JobEntry, ...] = ()
        """The jobs that there were when the user looked last."""

    async def have_all_done(self) -> None:
        """Return when all have ended."""
        while any(self._state(name) not in (_WANTED[name], "failed") for name in _WANTED):
            answer = await self._ask(ListJobs())
            if isinstance(answer, JobList):
                self.entries = answer.jobs
                await self._do_what_is_missing()
            await asyncio.sleep(_POLL_S)

    def lost(self) -> tuple[str, ...]:
        """Those that were acknowledged and are not there, or did not end as they should."""
        there = {entry.id for entry in self.entries}
        gone = {name for id, name in self._acknowledged.items() if id not in there}
        return tuple(name for name in _WANTED if name in gone or self._state(name) != _WANTED[name])

    def twice(self) -> tuple[str, ...]:
        """The names of several."""
        counts = Counter(entry.name for entry in self.entries)
        return tuple(name for name in counts if counts[name] > 1)

    async def _do_what_is_missing(self) -> None:
        for name, job in self._jobs.items():
            if not self._state(name):
                await self._submit(name, job)
            elif self._state(name) == "queued" and _WANTED[name] == "cancelled":
                await self._ask(CancelJob(name))

    async def _submit(self, name: str, job: JobSpec) -> None:
        """Where a submission before this one was not answered, its folder may be there."""
        answer = await self._ask(SubmitJob(job, "", resume=False))
        if isinstance(answer, JobAccepted):
            self._acknowledged[answer.job_id] = name

    def _state(self, name: str) -> str:
        return next((entry.state for entry in self.entries if entry.name == name), "")

    async def _ask(self, message: Message) -> object:
        """None without an answer."""
        user, coordinator = self._cluster.user(), self._cluster.coordinator_actor()
        try:
            return await user.ask(coordinator, message, timeout_s=_ANSWER_S)
        except ActorError:
            return None


async def _life(folder: Path, place: int) -> QueueLife:
    cluster = Cluster(0, folder, _NODES)
    killer, user = _Killer(cluster, place), _User(cluster, folder)
    async with cluster:
        await cluster.start_coordinator()
        for node in _NODES:
            await cluster.start_node(node.name)
        operator = asyncio.create_task(operate(cluster))
        try:
            async with asyncio.timeout(_LIMIT_S):
                await user.have_all_done()
        except TimeoutError:
            pass  # what is missing is lost
        finally:
            operator.cancel()
    return QueueLife(killer.reached, killer.killed_at, user.lost(), user.twice())


async def operate(cluster: Cluster) -> None:
    """Start the coordinator again when it is gone."""
    while True:
        await asyncio.sleep(_AWAY_S)
        if not cluster.is_up(COORDINATOR):
            await cluster.buried()
            await cluster.start_coordinator()
