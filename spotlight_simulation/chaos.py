"""One job on a cluster with a schedule of faults, all from one seed; and many of them."""

from __future__ import annotations

import asyncio
import random
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import NoReturn

import msgspec
import structlog

from spotlight.jobs import ExplorationSpec, JobSpec
from spotlight.permissions import Permissions
from spotlight_simulation.aims import all_faults, needs_a_spare
from spotlight_simulation.cluster_watch import ClusterWatch
from spotlight_simulation.fault_injector import disturbed
from spotlight_simulation.faults import KINDS, SESSION_KINDS, FaultKind
from spotlight_simulation.freezing import FreezableLoop
from spotlight_simulation.history import SITUATIONS, History
from spotlight_simulation.invariants import check, workers_are_free_again
from spotlight_simulation.job_life import (
    Run,
    Scenario,
    chaos_job,
    finishes_seeds,
    have_it_done,
    last_fault_s,
)
from spotlight_simulation.logging_for_now import logging_by
from spotlight_simulation.memory_cluster import Cluster
from spotlight_simulation.processes import NodeSpec
from spotlight_simulation.session_chaos import SessionRun, session_scenario, simulate_session
from spotlight_simulation.session_invariants import check_session
from spotlight_simulation.shared_chaos import (
    SharedRun,
    check_shared,
    shared_scenario,
    simulate_shared,
)
from spotlight_simulation.simulated_user import look

_SHARED_MEMORY = Path("/dev/shm")
_SETTLE_S = 30.0
_POOLED = {"mode": "bandit", "prompt_pool": 2}
_DEGREES: tuple[int | str, ...] = ("auto", "auto", 2, 4)


class Outcome(msgspec.Struct, frozen=True):
    """What came of a seed."""

    seed: int
    digest: str
    """The digest of the history."""
    effective: dict[str, int]
    """Faults that changed something, by kind."""
    violations: tuple[str, ...]
    virtual_s: float
    steps: int
    """Denoising steps of single requests."""
    needed_steps: int
    """Those of them that an undisturbed job takes; 0 of a session."""
    drove_session: bool = False
    """It was a program's session, not a job."""
    jobs: int = 1
    """How many jobs there were at once."""
    situations: dict[str, int] = {}
    """How often each came about of those that promises are about."""


def drives_session(seed: int) -> bool:
    """Whether a program with a loop of its own is run for a seed, instead of a job."""
    return seed % 4 == 3


def shares_cluster(seed: int) -> bool:
    """Whether several jobs are run for a seed."""
    return seed % 8 == 4


def scenario(seed: int, folder: Path, kinds: Sequence[FaultKind] = KINDS) -> Scenario:
    """The job, the cluster and the faults of a seed. Prompts are written into the folder."""
    rng = random.Random(f"{seed} scenario")
    workers = rng.choice([1, 1, 1, 2, 3, 4])
    spot = {1: rng.randint(2, 4), 4: 1}.get(workers, rng.randint(1, 2))
    ranks = rng.choice([1, 1, 2])
    layout = rng.choice(["together", "apart", "spare"])
    reserved = _reserved_nodes("spare" if needs_a_spare(seed) else layout, ranks)
    nodes = (
        *reserved,
        *(NodeSpec(f"spot-{number}", "spot", workers) for number in range(1, spot + 1)),
    )
    budget = rng.choice(["fixed", "window"])
    reuses = seed % 3 == 1
    degrees = _DEGREES if budget == "window" else _DEGREES[2:]  # there `auto` is 1
    finishes = seed % 6 == 2
    job = chaos_job(
        folder,
        iterations=4 if finishes else 3,  # of which the last may be what probes have told
        exploration={
            "candidates": 2,
            "budget": budget,
            "reuse": reuses,
            **(finishes_seeds(random.Random(f"{seed} finish")) if finishes else {}),
            **(_POOLED if seed % 5 == 2 else {}),
        },
        checkpoint_every=rng.choice([1, 2]),
        degree=rng.choice(degrees),
        ranks=ranks,
        sharded=ranks > 1 and seed % 2 == 0,
        updates=2 if reuses and budget == "window" else 1,  # such jobs train in two parts
        slices=4 if seed % 2 or (finishes and ranks == 1) else 1,
    )
    faults = all_faults(
        seed,
        reserved=[node.name for node in reserved],
        spot=[node.name for node in nodes[len(reserved) :]],
        kinds=[kind for kind in kinds if kind not in SESSION_KINDS],
    )
    # Another plan after a rewind is told from the same one by its weights.
    exact = budget == "fixed" and rng.random() < 0.5
    return Scenario(job, nodes, faults, exact)


def _reserved_nodes(layout: str, ranks: int) -> tuple[NodeSpec, ...]:
    """Trainers on one node, each on a node of its own, or with a worker to spare on another."""
    if layout == "apart":
        return tuple(NodeSpec(f"reserved-{rank}", "reserved", 1) for rank in range(ranks))
    spare = (NodeSpec("spare", "reserved", 1),) if layout == "spare" else ()
    return (NodeSpec("reserved", "reserved", ranks), *spare)


def run_seed(seed: int, kinds: Sequence[FaultKind] = KINDS) -> tuple[Outcome, History]:
    """Run one seed to its end and check everything."""
    run: Run | SessionRun | SharedRun
    with (
        scratch_folder() as folder,
        silence(),
        asyncio.Runner(loop_factory=FreezableLoop) as runner,
    ):
        if drives_session(seed):
            follower = chaos_job(folder, iterations=1, validation={"seeds": 1, "every": 1})
            planned = session_scenario(seed, follower, kinds)
            run, needed = runner.run(simulate_session(seed, planned, folder)), 0
            check_session(run)
        elif shares_cluster(seed):
            several = shared_scenario(seed, folder, kinds)
            run = runner.run(simulate_shared(seed, several, folder))
            needed = sum(needed_steps(job.job) for job in several.jobs)
            for its in run.runs if several.jobs[0].exact_training else ():
                its.undisturbed = undisturbed_weights(its.scenario.job)
            check_shared(run)
        else:
            made = scenario(seed, folder, kinds)
            run, needed = runner.run(simulate(seed, made, folder)), needed_steps(made.job)
            if made.exact_training:
                run.undisturbed = undisturbed_weights(made.job)
            check(run)
    history = run.history
    outcome = Outcome(
        seed,
        history.digest(),
        dict(sorted(history.effective.items())),
        tuple(history.violations),
        round(history.happenings[-1].time_s, 3),
        run.cluster.hardware.steps,
        needed,
        drives_session(seed),
        len(run.runs) if isinstance(run, SharedRun) else 1,
        dict(sorted(history.situations.items())),
    )
    return outcome, history


def undisturbed_weights(job: JobSpec) -> tuple[str, ...]:
    """What every iteration of a job with exact training leaves when nothing happens to it; it is
    the same on every cluster, and for every job that explores so and begins with the same
    weights."""
    return _undisturbed_weights(job.exploration, job.seed, job.iterations)


@cache
def _undisturbed_weights(
    exploration: ExplorationSpec, seed: int, iterations: int
) -> tuple[str, ...]:
    with (
        scratch_folder() as folder,
        silence(),
        asyncio.Runner(loop_factory=FreezableLoop) as runner,
    ):
        nodes = (NodeSpec("reserved", "reserved", 1), NodeSpec("spot", "spot", 1))
        plain = chaos_job(folder, seed=seed, iterations=iterations)
        job = msgspec.structs.replace(plain, exploration=exploration)
        made = Scenario(job, nodes, (), True)
        run = runner.run(simulate(0, made, folder))
    return tuple(str(train["after"]) for train in run.history.all("train"))


def needed_steps(job: JobSpec) -> int:
    """Denoising steps of the rollouts of an undisturbed run."""
    return job.iterations * job.samples_per_iteration * job.sampler.steps


def run_seeds(seeds: Sequence[int], processes: int = 2) -> Iterator[Outcome]:
    """Run many, each in one of some processes; in the order of the seeds."""
    with ProcessPoolExecutor(processes) as pool:
        for encoded in pool.map(_run_encoded, seeds, chunksize=8):
            yield msgspec.json.decode(encoded, type=Outcome)


def total_effects(outcomes: Sequence[Outcome]) -> dict[str, int]:
    """Effective faults by kind; kinds without any included."""
    counts: Counter[str] = Counter()
    for outcome in outcomes:
        counts.update(outcome.effective)
    return {kind: counts[kind] for kind in KINDS}


def total_situations(outcomes: Sequence[Outcome]) -> dict[str, int]:
    """In how many seeds each situation came about; those that never did included."""
    counts = Counter(each for outcome in outcomes for each in outcome.situations)
    return {situation: counts[situation] for situation in SITUATIONS}


def _run_encoded(seed: int) -> bytes:
    return msgspec.json.encode(run_seed(seed)[0])


async def simulate(seed: int, made: Scenario, folder: Path) -> Run:
    """The life of a job; what must not happen is checked afterwards."""
    cluster = Cluster(
        seed,
        folder,
        made.nodes,
        exact_training=made.exact_training,
        permissions=Permissions.of(made.job),
    )
    run = Run(made, cluster, folder)
    async with cluster, disturbed(cluster, made.faults):
        await have_it_done(run, ClusterWatch(cluster))
        if run.status is not None and run.status.outcome == "finished":
            left_s = last_fault_s(run) - cluster.loop.time()
            await asyncio.sleep(max(0.0, left_s) + _SETTLE_S)
            status = await look(cluster)
            joined = {worker.node for worker in status.workers} if status else set()
            for what in workers_are_free_again(cluster, joined):
                cluster.history.violation(what)
    cluster.history.add("end", outcomes=tuple(run.outcomes))
    return run


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """One that is gone afterwards; in memory where that is possible, since every journal entry is
    synced."""
    base = _SHARED_MEMORY if _SHARED_MEMORY.is_dir() else None
    folder = Path(tempfile.mkdtemp(prefix="chaos-", dir=base)).resolve()
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def silence() -> Iterator[None]:
    """Faults make the actors say much that nobody needs to hear."""
    with logging_by([_drop], "critical"):
        yield


def _drop(*_: object) -> NoReturn:
    raise structlog.DropEvent
