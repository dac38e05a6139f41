"""Several jobs at once on a cluster with a schedule of faults, all from one seed; now and then with
a program that has a loop of its own beside them.

Each has weights of its own to begin with, so whatever is another's shows in what it trains on; and
each is held against the same invariants as a job, or a session, that is alone.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import get_args

import msgspec

from spotlight.actors.protocol.users import JobStatus
from spotlight.timings import SharingTimings, Timings
from spotlight_simulation.aims import all_faults
from spotlight_simulation.fault_injector import disturbed
from spotlight_simulation.faults import KINDS, SESSION_KINDS, Fault, FaultKind
from spotlight_simulation.history import History
from spotlight_simulation.invariants import INVARIANTS, workers_are_free_again
from spotlight_simulation.job_life import (
    Run,
    Scenario,
    chaos_job,
    finishes_seeds,
    have_it_done,
    last_fault_s,
)
from spotlight_simulation.memory_cluster import Cluster
from spotlight_simulation.processes import NodeSpec
from spotlight_simulation.session_chaos import (
    GIVEN_UP_S,
    Ending,
    SessionRun,
    SessionScenario,
    session_work,
    until_it_ends,
)
from spotlight_simulation.session_invariants import session_violations
from spotlight_simulation.share_watch import ShareWatch
from spotlight_simulation.simulated_user import look, look_at

TIMINGS = Timings(sharing=SharingTimings(quantum_s=20.0, give_back_s=5.0, look_s=2.0))
"""Jobs of a minute or two are to see nodes come and go."""
_SETTLE_S = 30.0
_LOOK_S = 1.0


class SharedScenario(msgspec.Struct, frozen=True):
    """What is run for a seed."""

    jobs: tuple[Scenario, ...]
    begin_s: tuple[float, ...]
    """When each is submitted."""
    program: SessionScenario | None = None
    """What is beside them."""

    @property
    def nodes(self) -> tuple[NodeSpec, ...]:
        """The machines that they share."""
        return self.jobs[0].nodes

    @property
    def faults(self) -> tuple[Fault, ...]:
        """What befalls all of them."""
        return self.jobs[0].faults


def shared_scenario(seed: int, folder: Path, kinds: Sequence[FaultKind] = KINDS) -> SharedScenario:
    """The jobs, the cluster and the faults of a seed. Now and then not all jobs can train at once.
    Prompts are written into the folder."""
    rng = random.Random(f"{seed} shared")
    count, workers = rng.choice([2, 2, 3]), rng.choice([1, 1, 2])
    reserved = [f"reserved-{each}" for each in range(count - rng.choice([0, 0, 1]))]
    spot = [f"spot-{each}" for each in range(rng.randint(2, 4))]
    nodes = (
        *(NodeSpec(name, "reserved", 1) for name in reserved),
        *(NodeSpec(name, "spot", workers) for name in spot),
    )
    has_program = random.Random(f"{seed} beside").random() < 0.5
    faults = all_faults(
        seed,
        reserved=reserved,
        spot=spot,
        kinds=[kind for kind in kinds if has_program or kind not in SESSION_KINDS],
        until_s=80.0,
    )
    exact = rng.random() < 0.5
    jobs = []
    for number in range(count):
        finishing = random.Random(f"{seed} finish {number}")
        finishes = finishing.random() < 0.3
        job = chaos_job(
            folder,
            name=f"chaos-{number}",
            seed=seed * 10 + number,
            degree=rng.choice([2, 4]),
            checkpoint_every=rng.choice([1, 2]),
            slices=1 + 3 * (seed // 8 % 2),
            exploration={
                "candidates": 2,
                "budget": "fixed" if exact else "window",
                **(finishes_seeds(finishing) if finishes else {}),
            },
        )
        weight, priority = rng.choice([0.0, 1.0, 1.0, 3.0]), rng.choice([0, 0, 1])
        jobs.append(Scenario(job, nodes, faults, exact, weight, priority))
    begin_s = tuple(round(rng.uniform(0.0, 30.0), 3) for _ in jobs)
    program = None
    if has_program:
        ending: Ending = rng.choice(get_args(Ending))
        program = SessionScenario(session_work(rng), nodes, faults, ending, None)
    return SharedScenario(tuple(jobs), begin_s, program)


@dataclass
class SharedRun:
    """A seed while it runs, and what is left of it for the invariants."""

    scenario: SharedScenario
    cluster: Cluster
    folder: Path
    runs: list[Run] = field(default_factory=list)
    program: SessionRun | None = None
    """What was beside the jobs."""

    @property
    def history(self) -> History:
        """What happened."""
        return self.cluster.history


@dataclass
class OneOfSeveral(Run):
    """One of the jobs, to which only that happened which is its own."""

    @property
    def history(self) -> History:
        """See `Run`."""
        return self.cluster.history.of(self.job_id)


@dataclass
class SessionBesideJobs(SessionRun):
    """The sessions of a program, to which only that happened which is their own."""

    @property
    def history(self) -> History:
        """See `SessionRun`."""
        return self.cluster.history.of(*self.names)


async def simulate_shared(seed: int, made: SharedScenario, folder: Path) -> SharedRun:
    """The life of the jobs; what must not happen is checked afterwards."""
    exact = made.jobs[0].exact_training
    cluster = Cluster(seed, folder, made.nodes, exact_training=exact, timings=TIMINGS)
    runs = [Run(job, cluster, folder, job.job.name) for job in made.jobs]
    program = None if made.program is None else SessionRun(made.program, cluster, folder, seed)
    shared = SharedRun(made, cluster, folder, runs, program)
    watch = ShareWatch(cluster, runs)
    async with cluster, disturbed(cluster, made.faults):
        async with asyncio.TaskGroup() as lives:
            for run, begins_s in zip(runs, made.begin_s, strict=True):
                lives.create_task(_live(run, begins_s, watch))
            if program is not None:
                lives.create_task(_hold_sessions(program, watch))
        if all(run.outcomes and run.outcomes[-1][0] == "finished" for run in runs):
            await _see_what_is_left(shared)
    cluster.history.add("end", outcomes=tuple(tuple(run.outcomes) for run in runs))
    return shared


async def _live(run: Run, begins_s: float, watch: ShareWatch) -> None:
    await asyncio.sleep(begins_s)
    await have_it_done(run, watch)


async def _hold_sessions(program: SessionRun, watch: ShareWatch) -> None:
    """Until the program has come to its end."""
    ending = asyncio.create_task(until_it_ends(program))
    while not ending.done():
        session = program.names[-1] if program.names else ""
        status = await look_at(program.cluster, f"session-{session}") if session else None
        watch.session = status if isinstance(status, JobStatus) else None
        await asyncio.wait((ending,), timeout=_LOOK_S)
    watch.session = None
    ending.result()


async def _see_what_is_left(shared: SharedRun) -> None:
    cluster = shared.cluster
    left_s = last_fault_s(shared.runs[0]) - cluster.loop.time()
    given_up_s = GIVEN_UP_S if shared.program is not None else 0.0
    await asyncio.sleep(max(0.0, left_s) + given_up_s + _SETTLE_S)
    status = await look(cluster)
    joined = {worker.node for worker in status.workers} if status else set()
    for what in workers_are_free_again(cluster, joined):
        cluster.history.violation(what)


def check_shared(shared: SharedRun) -> None:
    """Put every violation into the history."""
    for run in shared.runs:
        its = OneOfSeveral(**vars(run))
        for what in _violations(its):
            shared.history.violation(f"{run.scenario.job.name}: {what}")
    if shared.program is not None:
        beside = SessionBesideJobs(**vars(shared.program))
        for what in session_violations(beside):
            shared.history.violation(f"the session: {what}")
    shared.cluster.ledgers.check()


def _violations(run: Run) -> Iterator[str]:
    for invariant in INVARIANTS:
        for what in invariant(run):
            yield f"{invariant.__name__}: {what}"
