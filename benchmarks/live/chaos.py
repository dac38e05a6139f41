"""Seeded faults against real processes, in the middle of a real job: `run_live`.

The job must end by itself, and like an undisturbed run of it, bit by bit. All runs are those of one
process of its own, in a network namespace of its own where the machine has them
(`python -m benchmarks.live.chaos`).
"""

from __future__ import annotations

import asyncio
import logging
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from benchmarks.live.cluster import LiveCluster, one_reserved
from benchmarks.live.network import (
    LiveNetwork,
    Loopback,
    Namespaces,
    namespace_command,
)
from benchmarks.live.run import LiveRun, until_all_there
from benchmarks.live.run_comparison import differences
from benchmarks.live.strikes import WORKER_ONLY, draw_live_faults, effect_of
from benchmarks.live.tiny_jobs import job_data
from spotlight.actors.runtime.logs import log_as_json_lines
from spotlight.actors.runtime.loop import run
from spotlight.errors import ActorError, RequestRefused
from spotlight.jobs import JobSpec, job_from_data
from spotlight.record.run_events import NodeJoined, NodeLost, PhaseBegan, RunEvent
from spotlight.running.client import CoordinatorClient, connect
from spotlight.store.memory_folder import remove_leftovers
from spotlight_simulation.faults import Fault

_LIVENESS_S = 180.0
"""A job ends within this time of the last fault, or of its begin."""
_UNTIL_S = 25.0
"""Faults strike within this time of the first rollout."""
POOL, QUICK_POOL = 4, 2
"""Spot nodes that are lost at once."""


class LiveCase(msgspec.Struct, frozen=True):
    """What is run: a seed's faults, or the loss of the whole spot pool."""

    seed: int | None
    """None: all spot nodes are killed at once and started again."""
    pool: int = POOL
    """How many spot nodes there are then."""

    def __str__(self) -> str:
        return "pool loss" if self.seed is None else f"seed {self.seed}"


class LiveOutcome(msgspec.Struct, frozen=True):
    """What came of a case."""

    case: LiveCase
    seconds: float
    violations: tuple[str, ...]
    effective: dict[str, int]
    """Faults that struck the running job, by kind."""
    partitions: str
    """`namespaces`, or `not possible: ` and why."""
    back_within_iteration: bool
    """All spot nodes were lost and back within one iteration."""
    kept: str
    """The folder with all logs, kept if something was violated."""


@dataclass
class _Running(LiveRun):
    """A case while it runs."""

    cluster: LiveCluster = field(kw_only=True)
    effective: Counter[str] = field(default_factory=Counter)


def run_live(cases: Sequence[LiveCase]) -> Iterator[LiveOutcome]:
    """Run the cases one after another, in a process of its own."""
    prefix, problem = namespace_command()
    command = [*prefix, sys.executable, "-m", "benchmarks.live.chaos"]
    base = Path(tempfile.mkdtemp(prefix="live-chaos-")).resolve()
    is_evidence = False
    driver = subprocess.Popen(
        [*command, msgspec.json.encode(list(cases)).decode(), str(base), problem],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert driver.stdout is not None
    try:
        for line in driver.stdout:
            outcome = msgspec.json.decode(line, type=LiveOutcome)
            is_evidence = is_evidence or bool(outcome.violations)
            yield outcome
        code = driver.wait()
        is_evidence = is_evidence or code != 0
    finally:
        driver.kill()  # its daemons end with it
        driver.wait()
        driver.stdout.close()
        remove_leftovers()
        if not is_evidence:
            shutil.rmtree(base, ignore_errors=True)
    if code:
        raise RuntimeError(f"the live runs broke off with {code}, as said above; see {base}")


def main() -> None:
    """Print an outcome as JSON for each case of the first argument; work in the folder of the
    second. The third says why there are no namespaces.
    """
    log_as_json_lines(logging.ERROR)
    cases = msgspec.json.decode(sys.argv[1], type=list[LiveCase])
    base, problem = Path(sys.argv[2]), sys.argv[3]
    network = Loopback() if problem else Namespaces()
    partitions = f"not possible: {problem}" if problem else "namespaces"
    run(_run_cases(cases, base, network, partitions))


async def _run_cases(
    cases: Sequence[LiveCase], base: Path, network: LiveNetwork, partitions: str
) -> None:
    loop = asyncio.get_running_loop()
    undisturbed: dict[str, Path] = {}
    for number, case in enumerate(cases):
        begun = loop.time()
        job = _job(base, case)
        folder = base / f"{number}-{case}".replace(" ", "-")
        faults, spot = _faults(case, network)
        ran = await _run_on_cluster(job, folder, network, faults, spot, undisturbed)
        if ran.outcome == "finished":
            ran.problems += differences(undisturbed[job.name], ran.folder, job.iterations)
        outcome = LiveOutcome(
            case,
            round(loop.time() - begun, 1),
            tuple(ran.problems),
            dict(sorted(ran.effective.items())),
            partitions,
            _back_within_iteration(ran.events),
            str(folder) if ran.problems else "",
        )
        if undisturbed[job.name].parent == folder:
            kept = base / f"undisturbed-{job.name}"
            undisturbed[job.name] = Path(shutil.move(undisturbed[job.name], kept))
        if not ran.problems:
            shutil.rmtree(folder)
        sys.stdout.write(msgspec.json.encode(outcome).decode() + "\n")
        sys.stdout.flush()


def _faults(case: LiveCase, network: LiveNetwork) -> tuple[tuple[Fault, ...], list[int]]:
    """And the workers of each spot node."""
    if case.seed is None:
        return (Fault(0.5, "pool_loss"),), [1] * case.pool
    spot = [1 + (case.seed + number) % 2 for number in range(2 + case.seed % 3)]
    names = [f"spot-{number}" for number in range(1, len(spot) + 1)]
    partitions = network.partitions
    return draw_live_faults(case.seed, spot=names, until_s=_UNTIL_S, partitions=partitions), spot


def _job(base: Path, case: LiveCase) -> JobSpec:
    """Half a minute; when the pool is lost, iterations are long enough for it to come back."""
    if case.seed is not None:
        return job_from_data(job_data(base, "chaos", iterations=12))
    data = job_data(base, "pool", iterations=2, group_size=6 * case.pool)
    data["sampler"]["steps"] = 96
    return job_from_data(data)


async def _run_on_cluster(
    job: JobSpec,
    folder: Path,
    network: LiveNetwork,
    faults: Sequence[Fault],
    spot: Sequence[int],
    undisturbed: dict[str, Path],
) -> _Running:
    """Of the job that faults strike; before it, the same is run in peace, unless `undisturbed` has
    its run folder."""
    cluster = LiveCluster(folder, network, one_reserved(1, spot))
    async with cluster, connect(cluster.join) as client:
        await until_all_there(client, 1 + sum(spot), _LIVENESS_S)
        if job.name not in undisturbed:
            calm = folder / "undisturbed"
            ran = await _run_job(job, calm, cluster, client, faults=())
            if ran.problems:
                raise RuntimeError(f"the undisturbed run failed: {ran.problems}; see {folder}")
            undisturbed[job.name] = calm
        running = await _run_job(job, folder / "run", cluster, client, faults)
    running.problems += cluster.problems
    return running


async def _run_job(
    job: JobSpec,
    folder: Path,
    cluster: LiveCluster,
    client: CoordinatorClient,
    faults: Sequence[Fault],
) -> _Running:
    running = _Running(folder, cluster=cluster)
    await client.submit(job, str(folder), resume=False)
    disturbing = asyncio.create_task(_disturb(running, client, faults))
    try:
        last = max((fault.at_s + fault.lasts_s for fault in faults), default=0.0)
        await running.follow(client, last + _LIVENESS_S)
    finally:
        disturbing.cancel()
        await asyncio.wait((disturbing,))
    if not disturbing.cancelled() and disturbing.exception() is not None:
        running.problems.append(f"the faults failed: {disturbing.exception()!r}")
    return running


async def _disturb(running: _Running, client: CoordinatorClient, faults: Sequence[Fault]) -> None:
    """Let every fault strike at its time after the begin of the first rollout."""
    await running.until_begun()
    async with asyncio.TaskGroup() as group:
        for fault in faults:
            group.create_task(_strike(running, client, fault))


async def _strike(running: _Running, client: CoordinatorClient, fault: Fault) -> None:
    await asyncio.sleep(fault.at_s)
    cluster = running.cluster
    node = cluster.nodes.get(fault.node)
    members = {worker.node for worker in running.status.workers} if running.status else set()
    if running.outcome:
        return
    match fault.kind:
        case "coordinator_kill":
            struck = cluster.kill(cluster.coordinator, fault.lasts_s)
        case "pool_loss":
            killed = [cluster.kill(spot, fault.lasts_s) for spot in cluster.spot]
            struck = all(killed)
        case _:
            assert node is not None
            struck = await _strike_node(cluster, client, node.name, fault)
            struck = struck and node.name in members
    running.effective[effect_of(fault)] += struck


async def _strike_node(
    cluster: LiveCluster, client: CoordinatorClient, name: str, fault: Fault
) -> bool:
    node = cluster.nodes[name]
    match fault.kind:
        case "kill_node":
            return cluster.kill(node, fault.lasts_s)
        case "kill_worker":
            return cluster.kill_worker(node)
        case "pause_node":
            own = node.processes()[1 if fault.amount == WORKER_ONLY else 0 :]
            return await cluster.pause([process.pid for process in own], fault.lasts_s)
        case "notice_then_kill":
            given = await _notice(client, name, fault.amount)
            await asyncio.sleep(fault.amount)
            return cluster.kill(node, fault.lasts_s) and given
        case "notice_no_kill":
            given = await _notice(client, name, fault.amount)
            await asyncio.sleep(fault.lasts_s)
            await _notice(client, name, fault.amount, cancel=True)
            return given
        case "one_way_partition":
            return await cluster.cut_off(
                node, fault.lasts_s, inwards=fault.inwards, outwards=not fault.inwards
            )
        case _:
            return await cluster.cut_off(node, fault.lasts_s, inwards=True, outwards=True)


async def _notice(
    client: CoordinatorClient, node: str, notice_s: float, *, cancel: bool = False
) -> bool:
    """A user's word; the coordinator may be away, or not know the node."""
    try:
        await client.preempt(node, notice_s, cancel=cancel, yes=True)
    except (ActorError, RequestRefused):
        return False
    return True


def _back_within_iteration(events: Sequence[RunEvent]) -> bool:
    """Whether all spot nodes were lost, and then were there again, between two changes of the
    iteration.
    """
    spot: set[str] = set()
    there: set[str] = set()
    lost_in, iteration = -1, 0
    for event in events:
        match event:
            case PhaseBegan():
                iteration = event.iteration
            case NodeJoined(node=node, pool="spot"):
                spot.add(node)
                there.add(node)
                if there == spot and lost_in == iteration:
                    return True
            case NodeLost(node=node):
                there.discard(node)
                if spot and not there:
                    lost_in = iteration
    return False


if __name__ == "__main__":
    main()
