"""A program with a training loop of its own on a cluster with a schedule of faults, all from one
seed."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

import msgspec

from spotlight.actors.coordinator.key_ring import door_file
from spotlight.actors.protocol.users import JobAccepted, SubmitJob
from spotlight.actors.runtime import ActorSystem
from spotlight.errors import ActorError, RequestRefused, SessionEnded
from spotlight.jobs import JobSpec, WorkSpec, work_from_data
from spotlight.store import job_queue, ledger_file
from spotlight.timings import Timings
from spotlight_simulation.aims import all_faults
from spotlight_simulation.cluster_watch import ClusterWatch
from spotlight_simulation.fault_injector import ARMED_S, disturbed
from spotlight_simulation.faults import KINDS, Fault, FaultKind
from spotlight_simulation.history import History
from spotlight_simulation.invariants import workers_are_free_again
from spotlight_simulation.loop_program import LoopProgram
from spotlight_simulation.memory_cluster import COORDINATOR, PROGRAM, Cluster
from spotlight_simulation.processes import NodeSpec
from spotlight_simulation.simulated_session import session
from spotlight_simulation.simulated_user import cancel, look

Ending = Literal["all read", "left in the middle", "killed", "cancelled"]
"""How the last session ends, when no fault is left."""

_FAULTS_UNTIL_S = 40.0
_TURNS = 4
_CALM_S = ARMED_S + 5.0
"""The longest from the last fault until it happens, or is over."""
_LIVENESS_S = 900.0
"""A program comes to its end within this time."""
_KEPT_S = 15.0
"""What was taken is deleted within this time."""
GIVEN_UP_S = Timings().coordinator.session_away_s + 10.0
"""How long a session may stay whose program was killed."""
_SETTLE_S = 30.0
_LOOK_S = 1.0
_FOLLOWER_S = 300.0
_PAUSE_S = 2.0
"""The pause of the program before it begins another session."""
_LEAVES = 0.1
"""How often the program leaves a session after an iteration, and begins another."""


class SessionScenario(msgspec.Struct, frozen=True):
    """What is run for a seed."""

    work: WorkSpec
    nodes: tuple[NodeSpec, ...]
    faults: tuple[Fault, ...]
    ending: Ending
    follower: JobSpec | None
    """What runs after the last session; None for another session."""


def session_scenario(
    seed: int, follower: JobSpec, kinds: Sequence[FaultKind] = KINDS
) -> SessionScenario:
    """The work, the cluster and the faults of a seed; on every second one a job follows."""
    rng = random.Random(f"{seed} session")
    workers = rng.choice([1, 1, 2, 3])
    spot = rng.randint(2, 3) if workers == 1 else 1
    nodes = (
        NodeSpec("reserved", "reserved", 1),
        *(NodeSpec(f"spot-{number}", "spot", workers) for number in range(1, spot + 1)),
    )
    work = session_work(rng)
    faults = all_faults(
        seed,
        reserved=["reserved"],
        spot=[node.name for node in nodes[1:]],
        kinds=kinds,
        until_s=_FAULTS_UNTIL_S,
        drives_session=True,
    )
    ending: Ending = rng.choice(get_args(Ending))
    return SessionScenario(work, nodes, faults, ending, rng.choice([follower, None]))


def session_work(rng: random.Random) -> WorkSpec:
    """What a program wants done."""
    return work_from_data(
        {
            "model": {"checkpoint": "builtin:ocr-tiny"},
            "sampler": {
                "height": 32,
                "width": 64,
                "steps": 8,
                "micro_batch": 4,
                "degree": rng.choice(["auto", "auto", 2]),
            },
            "rewards": [{"kind": "ocr"}],
        }
    )


@dataclass
class SessionRun:
    """A seed while it runs, and what is left of it for the invariants."""

    scenario: SessionScenario
    cluster: Cluster
    folder: Path
    seed: int
    turns: int = 0
    lives: int = 0
    """Processes that the program has had."""
    began_much: bool = False
    """The last session is in the middle of its work, and is to be ended."""
    ended: bool = False
    """The last session is over."""

    @property
    def names(self) -> tuple[str, ...]:
        """The names of its sessions so far."""
        return tuple(f"{self.seed}-{life}" for life in range(1, self.lives + 1))

    def kept_for_the_session(self) -> list[str]:
        """Keys of what the coordinator's disk holds of it."""
        stores = self.cluster.stores.all_in_use()
        name = f"runs/session-{self.seed}-{self.lives}/"
        return [
            k for folder, disk in stores.items() if folder.startswith(name) for k in disk.bundles
        ]

    @property
    def history(self) -> History:
        """What happened."""
        return self.cluster.history

    @property
    def calm_at(self) -> float:
        """From then on nothing is disturbed any more."""
        return (
            max((each.at_s + each.lasts_s for each in self.scenario.faults), default=0.0) + _CALM_S
        )


async def simulate_session(seed: int, made: SessionScenario, folder: Path) -> SessionRun:
    """The life of a program; what must not happen is checked afterwards."""
    cluster = Cluster(seed, folder, made.nodes)
    run = SessionRun(made, cluster, folder, seed)
    async with cluster, disturbed(cluster, made.faults):
        await until_it_ends(run)
        if not run.history.violations:
            await _see_what_is_left(run)
            await _follow(run)
    cluster.history.add("end", sessions=run.lives)
    return run


async def until_it_ends(run: SessionRun) -> None:
    """Watch the program, and end its last session as the scenario says."""
    loop, cluster = asyncio.get_running_loop(), run.cluster
    watch, reach = ClusterWatch(cluster), None
    living = asyncio.create_task(_live(run))
    while not run.ended and not run.history.violations:
        await asyncio.sleep(_LOOK_S)
        if living.done():
            living.result()
        if reach != (reach := _is_in_reach(cluster)):
            cluster.history.add("reach", there=reach)
        watch.look()
        if loop.time() > run.calm_at + _LIVENESS_S:
            cluster.history.violation("the program did not come to its end")
        if run.began_much and run.scenario.ending == "killed":
            run.ended = cluster.kill_process(PROGRAM)
        elif run.began_much and run.scenario.ending == "cancelled":
            await cancel(cluster)
    cluster.kill_process(PROGRAM)
    living.cancel()
    await asyncio.wait((living,))


def _is_in_reach(cluster: Cluster) -> bool:
    """Whether program and coordinator hear each other."""
    both = (PROGRAM, COORDINATOR)
    return (
        all(map(cluster.is_up, both))
        and not any(cluster.loop.is_frozen(cluster.processes[name].identity) for name in both)
        and cluster.reaches(*both)
        and cluster.reaches(*reversed(both))
    )


async def _live(run: SessionRun) -> None:
    """One process of the program after the other; each has a session."""
    while not run.ended:
        await run.cluster.buried()
        run.lives += 1
        await run.cluster.run_program(PROGRAM, lambda system: _hold_session(run, system))
        await asyncio.sleep(_PAUSE_S)


async def _hold_session(run: SessionRun, system: ActorSystem) -> None:
    name, history = run.names[-1], run.history
    rng = run.cluster.rng(f"program {run.lives}")
    program: LoopProgram | None = None
    try:
        async with session(run.cluster, system, PROGRAM, name, run.scenario.work) as rollouts:
            history.add("begun", session=name)
            program = LoopProgram(rollouts, name, run.scenario.work, rng=rng, history=history)
            try:
                is_over = await _run_loop(run, program, rng)
            except SessionEnded as error:
                reason = str(error).replace(str(run.folder), "FOLDER")
                history.add("session_lost", session=name, reason=reason)
                await program.hear_of_the_end()
                is_over = run.began_much
        history.add("left", session=name)
        run.ended = is_over
    except (RequestRefused, ActorError) as error:
        reason = str(error).replace(str(run.folder), "FOLDER")
        history.add("not_begun", session=name, reason=reason)
        if program is not None:
            history.violation(f"in the middle of a session: {error!r}")


async def _run_loop(run: SessionRun, program: LoopProgram, rng: random.Random) -> bool:
    """Until the program leaves; returns whether it has come to its end."""
    loop, ending = asyncio.get_running_loop(), run.scenario.ending
    while run.turns < _TURNS or loop.time() < run.calm_at:
        await program.turn(train_s=rng.choice([0.0, 5.0, 15.0, 15.0, 80.0]))
        run.turns += 1
        if rng.random() < _LEAVES:
            return False
    await program.turn(train_s=1.0)
    if ending == "all read":
        await program.finish()
        await asyncio.sleep(_KEPT_S)
        for key in run.kept_for_the_session():
            run.history.violation(f"{key} is kept, though all groups were taken")
        return True
    await program.begin_much()
    if ending != "left in the middle":
        run.began_much = True
        await program.wait_for_the_end()
    return True


async def _see_what_is_left(run: SessionRun) -> None:
    """After the last session nothing holds on to it."""
    cluster = run.cluster
    if run.scenario.ending == "killed":
        await asyncio.sleep(GIVEN_UP_S)
    await asyncio.sleep(_SETTLE_S)
    status = await look(cluster)
    joined = {worker.node for worker in status.workers} if status else set()
    left = list(workers_are_free_again(cluster, joined))
    runs = run.folder / "runs"
    known = (door_file(runs), runs / job_queue.NAME, runs / ledger_file.NAME)
    kept = sorted(path for path in runs.iterdir() if path not in known)
    left += [f"{path.name} is left on disk" for path in kept]
    left += [
        f"{len(disk.bundles)} bundles are left in the store of {name}"
        for name, disk in cluster.stores.all_in_use().items()
        if disk.bundles and name.partition(" ")[0] in {node.name for node in cluster.nodes}
    ]
    for what in left:
        cluster.history.violation(f"after the session {what}")


async def _follow(run: SessionRun) -> None:
    """Whatever comes next has the cluster to itself."""
    cluster, job = run.cluster, run.scenario.follower
    try:
        async with asyncio.timeout(_FOLLOWER_S):
            if job is None:
                await cluster.buried()
                await cluster.run_program(PROGRAM, lambda system: _hold_short(run, system))
            else:
                await _have_done(run, job)
    except (TimeoutError, RequestRefused, ActorError) as error:
        cluster.history.violation(f"what followed the session was not done: {error!r}")


async def _hold_short(run: SessionRun, system: ActorSystem) -> None:
    name, work = f"{run.seed}-after", run.scenario.work
    async with session(run.cluster, system, PROGRAM, name, work) as rollouts:
        rng = run.cluster.rng("after")
        program = LoopProgram(rollouts, name, work, rng=rng, history=run.history)
        await program.turn(train_s=0.0)
        await program.finish()


async def _have_done(run: SessionRun, job: JobSpec) -> None:
    cluster = run.cluster
    message = SubmitJob(job, str(run.folder / "runs" / "after"), False)
    answer = await cluster.user().ask(cluster.coordinator_actor(), message, timeout_s=5.0)
    if not isinstance(answer, JobAccepted):
        raise RequestRefused(getattr(answer, "reason", ""))
    status = None
    while status is None or not status.outcome:
        await asyncio.sleep(_LOOK_S)
        status = await look(cluster)
    if status.outcome != "finished":
        raise RequestRefused(f"the job {status.outcome}: {status.reason}")
