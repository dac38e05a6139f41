"""Three jobs of two users on a simulated cluster whose spot nodes are lost: what each gets of them,
and what it makes of it. The real coordinator, nodes and workers run on virtual time.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from pathlib import Path
from typing import NamedTuple

from spotlight.actors.protocol.users import JobAccepted, JobList, ListJobs, SubmitJob
from spotlight.actors.runtime import ActorSystem
from spotlight.jobs import JobSpec
from spotlight.timings import CoordinatorTimings, Timings
from spotlight_simulation.chaos import scratch_folder, silence, undisturbed_weights
from spotlight_simulation.fake_hardware import HardwareTimes
from spotlight_simulation.fault_injector import disturbed
from spotlight_simulation.faults import Fault, FaultKind
from spotlight_simulation.freezing import FreezableLoop
from spotlight_simulation.job_life import Scenario, chaos_job
from spotlight_simulation.memory_cluster import Cluster
from spotlight_simulation.processes import NodeSpec
from spotlight_simulation.shared_chaos import (
    SharedRun,
    SharedScenario,
    check_shared,
    simulate_shared,
)

LOSSES_PER_HOUR = 0.5
AWAY_S = 300.0
LOAD_S = 60.0
LOOK_S = 20.0
"""What each job has is asked so often."""
_TIMINGS = Timings(coordinator=CoordinatorTimings(status_period_s=0.9))
"""Nobody looks at the status of the jobs, which takes most of the time."""
SETTLED_S = 120.0
"""What the nodes do before does not count: they join, and all three jobs begin."""


class Done(NamedTuple):
    """What came of jobs that end."""

    iterations: int
    """How many the jobs have trained, all together."""
    equal: int
    """How many of these left the weights that they leave in a job that is alone and undisturbed."""
    requests_lost: int
    """Samples that were to be trained on, and were not."""
    violations: int


class Shares(NamedTuple):
    """What came of hours of three jobs."""

    share_error: float
    """This is by how much of its share a job had too little or too much, at most."""
    moves_per_hour: float
    lost_to_moves: float
    """The part of the nodes' time."""


def hours_of(weights: tuple[int, ...], nodes: int, hours: float, seed: int) -> Shares:
    """Jobs that never end share spot nodes; each trains on a reserved one."""
    with (
        scratch_folder() as folder,
        silence(),
        asyncio.Runner(loop_factory=FreezableLoop) as runner,
    ):
        return runner.run(_hours_of(weights, nodes, hours, seed, folder))


def _losses(rng: random.Random, nodes: list[str], seconds: float) -> tuple[Fault, ...]:
    """Every node is lost twice in four hours, with a notice or without."""
    faults = []
    for node in nodes:
        at_s = rng.expovariate(LOSSES_PER_HOUR / 3600)
        while at_s < seconds:
            kind: FaultKind = rng.choice(["kill_node", "notice_then_kill"])
            lead_s = 25.0 if kind == "notice_then_kill" else 0.0
            faults.append(Fault(round(at_s, 3), kind, node, lasts_s=AWAY_S, amount=lead_s))
            at_s += AWAY_S + rng.expovariate(LOSSES_PER_HOUR / 3600)
    return tuple(faults)


async def _hours_of(
    weights: tuple[int, ...], nodes: int, hours: float, seed: int, folder: Path
) -> Shares:
    spot = [f"spot-{number}" for number in range(nodes)]
    specs = [NodeSpec(f"reserved-{number}", "reserved", 1) for number in range(len(weights))]
    specs += [NodeSpec(name, "spot", 1) for name in spot]
    times = HardwareTimes(
        step_s=20.0, score_s=10.0, load_s=LOAD_S, train_s=120.0, boot_s=(20.0, 40.0)
    )
    cluster = Cluster(seed, folder, tuple(specs), times, timings=_TIMINGS)
    faults = _losses(random.Random(seed), spot, 3600 * hours)
    async with cluster, disturbed(cluster, faults):
        others = cluster.system_of("other", rng=cluster.rng("other"))
        await asyncio.sleep(SETTLED_S)
        await others.start()
        for number, weight in enumerate(weights):
            job = chaos_job(
                folder, name=f"job-{number}", iterations=10_000, group_size=16, degree=2
            )
            user = others if number == 0 else cluster.user()
            await _submit(cluster, user, job, folder, weight)
        await asyncio.sleep(SETTLED_S)
        had, moves = await _watch(cluster, hours)
        await others.abort()
    total, of_weights = sum(had.values()), sum(weights)
    errors = [
        abs(had[f"job-{number}"] / total * of_weights / weight - 1)
        for number, weight in enumerate(weights)
    ]
    lost_s = moves * (LOAD_S + cluster.timings.sharing.give_back_s)
    return Shares(max(errors), moves / hours, lost_s / total)


async def _submit(
    cluster: Cluster, user: ActorSystem, job: JobSpec, folder: Path, weight: float
) -> None:
    message = SubmitJob(job, str(folder / "runs" / job.name), False, weight)
    answer = await user.ask(cluster.coordinator_actor(), message, timeout_s=60.0)
    assert isinstance(answer, JobAccepted), answer


async def _watch(cluster: Cluster, hours: float) -> tuple[Counter[str], int]:
    """The node-seconds that each job has of spot nodes, and how many of these moved."""
    had: Counter[str] = Counter()
    situations, moved = cluster.history.situations, "a node goes over to another job"
    before = situations[moved]
    for _ in range(round(3600 * hours / LOOK_S)):
        await asyncio.sleep(LOOK_S)
        answer = await cluster.user().ask(cluster.coordinator_actor(), ListJobs(), timeout_s=60.0)
        assert isinstance(answer, JobList)
        for job in answer.jobs:
            had[job.name] += round((job.nodes - 1) * LOOK_S)  # it trains on a reserved one
    return had, situations[moved] - before


def done_by(seed: int) -> Done:
    """Three jobs with fixed budgets are done while nodes are lost and move."""
    with (
        scratch_folder() as folder,
        silence(),
        asyncio.Runner(loop_factory=FreezableLoop) as runner,
    ):
        made = _three_jobs(seed, folder)
        run = runner.run(simulate_shared(seed, made, folder))
        for its in run.runs:
            its.undisturbed = undisturbed_weights(its.scenario.job)
        check_shared(run)
    return _compared(run)


def _three_jobs(seed: int, folder: Path) -> SharedScenario:
    """Every node is lost several times, where chance brings that about twice in four hours: the
    jobs take minutes."""
    spot = [f"spot-{number}" for number in range(4)]
    nodes = [NodeSpec(f"reserved-{number}", "reserved", 1) for number in range(3)]
    nodes += [NodeSpec(name, "spot", 1) for name in spot]
    rng = random.Random(seed)
    faults = tuple(
        Fault(round(rng.uniform(5.0, 100.0), 3), "kill_node", rng.choice(spot), lasts_s=10.0)
        for _ in range(12)
    )
    jobs = tuple(
        Scenario(
            chaos_job(folder, name=f"job-{number}", seed=10 * seed + number, degree=2),
            tuple(nodes),
            faults,
            exact_training=True,
            weight=float(number + 1),
        )
        for number in range(3)
    )
    return SharedScenario(jobs, (0.0, 10.0, 20.0))


def _compared(run: SharedRun) -> Done:
    iterations = equal = lost = 0
    for its in run.runs:
        trained = run.history.of(its.job_id).all("train")
        left = {train["iteration"]: train["after"] for train in trained}
        samples = {train["iteration"]: len(train["samples"]) for train in trained}
        job = its.scenario.job
        iterations += job.iterations
        equal += sum(left.get(n) == after for n, after in enumerate(its.undisturbed))
        lost += job.iterations * job.samples_per_iteration - sum(samples.values())
    return Done(iterations, equal, lost, len(run.history.violations))
