"""Three jobs at once on four nodes, as real processes: `python -m benchmarks.live_jobs --json`.

Each job is first run alone and in quiet, with all nodes. Then all three are submitted at once, time
after time until the minutes are over, while a seeded schedule kills workers, nodes and the
coordinator. Whatever was killed is started again, as its provider would. Every job must end by
itself with the checkpoint, export and figures of its quiet run, bit by bit, and nothing may be left
behind.

- `jobs`: how many of them were run under kills, in `rounds` of three.
- `finished_fraction`, `bit_equal_fraction`: which part of them finished, and with the bits of the
  quiet run.
- `most_at_once`: how many of the jobs ran at the same time, at most.
- `kills`: how many struck, by kind.
- `problems`: what was not as it should be, in words.
"""

from __future__ import annotations

import asyncio
import logging
import random
import shutil
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

from benchmarks.live.cluster import COORDINATOR, LiveCluster
from benchmarks.live.network import Loopback
from benchmarks.live.run import POLL_S, LiveRun, until_all_there
from benchmarks.live.run_comparison import differences
from benchmarks.live.tiny_jobs import job_data
from benchmarks.report import Report
from spotlight.actors.runtime.logs import log_as_json_lines
from spotlight.actors.runtime.loop import run
from spotlight.jobs import JobSpec, job_from_data
from spotlight.running.client import CoordinatorClient, connect
from spotlight.store.memory_folder import remove_leftovers
from spotlight_simulation.processes import NodeSpec

NODES = (
    *(NodeSpec(f"reserved-{n}", "reserved", 1) for n in (1, 2, 3)),
    NodeSpec("spot", "spot", 1),
)
JOBS = ("one", "two", "three")
_START_LIMIT_S = 120.0
_END_LIMIT_S = 300.0
"""A job ends within this time of its submission."""

KillKind = Literal["worker", "node", "coordinator"]


class Kill(NamedTuple):
    """Something that a schedule kills."""

    at_s: float
    """Seconds after the jobs were submitted."""
    kind: KillKind
    name: str
    """The node, or the one whose worker it is; the coordinator's name for that."""
    away_s: float
    """How long it is away."""


def draw_kills(rng: random.Random, count: int, until_s: float) -> tuple[Kill, ...]:
    """So many within this time, in their order. A reserved node is struck once at most: a job whose
    trainers are lost again and again before they have trained is given up on purpose."""
    reserved = [node.name for node in NODES if node.pool == "reserved"]
    rng.shuffle(reserved)
    drawn = []
    for number in range(count):
        kind: KillKind = ("coordinator", "worker", "node")[number % 3]
        name = COORDINATOR
        if kind != "coordinator":
            name = reserved.pop() if reserved and rng.random() < 0.6 else "spot"
        drawn.append(Kill(rng.uniform(0.5, until_s), kind, name, rng.uniform(0.0, 1.5)))
    return tuple(sorted(drawn))


@dataclass
class Rounds:
    """What came of the jobs so far."""

    rounds: int = 0
    jobs: int = 0
    finished: int = 0
    bit_equal: int = 0
    most_at_once: int = 0
    kills: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)


def main() -> None:
    """Run the jobs and print what came of them."""
    report = Report("live_jobs", __doc__, minutes=10)
    report.options.add_argument("--seed", type=int, default=0, help="of the schedules of kills")
    given = report.begin()
    log_as_json_lines(logging.CRITICAL)
    base = Path(tempfile.mkdtemp(prefix="live-jobs-")).resolve()
    found = run(_all_rounds(report, base, given.seed, quick=given.quick))
    if not found.problems:
        shutil.rmtree(base)
    remove_leftovers()
    report.add(_figures(found, base))
    report.finish()


def _figures(found: Rounds, base: Path) -> dict[str, Any]:
    jobs = max(1, found.jobs)
    return {
        "jobs": found.jobs,
        "rounds": found.rounds,
        "finished_fraction": found.finished / jobs,
        "bit_equal_fraction": found.bit_equal / jobs,
        "most_at_once": found.most_at_once,
        "kills": dict(sorted(found.kills.items())),
        "problems": [*found.problems, *([f"see {base}"] if found.problems else [])],
    }


async def _all_rounds(report: Report, base: Path, seed: int, *, quick: bool) -> Rounds:
    found, rng = Rounds(), random.Random(f"{seed} live jobs")
    iterations = 2 if quick else 5
    jobs = {
        name: job_from_data(job_data(base, name, iterations=iterations, seed=seed))
        for seed, name in enumerate(JOBS)
    }
    folder = base / "cluster"
    cluster = LiveCluster(folder, Loopback(), NODES)
    async with cluster, connect(cluster.join) as client:
        await until_all_there(client, len(NODES), _START_LIMIT_S)
        for name, job in jobs.items():
            await _quiet(client, job, folder / f"quiet-{name}")
            report.note(f"{name} has run alone")
        while not (found.problems or (found.rounds and (quick or report.is_time_up()))):
            count, until_s = (3, 6.0) if quick else (6, 20.0)
            kills = draw_kills(rng, count, until_s)
            await _round(cluster, client, jobs, kills, found)
            report.note(f"round {found.rounds}: {dict(found.kills)} {found.problems or ''}")
    found.problems += cluster.problems
    return found


async def _quiet(client: CoordinatorClient, job: JobSpec, folder: Path) -> None:
    live = LiveRun(folder)
    await client.submit(job, str(folder), resume=False)
    await live.follow(client, _END_LIMIT_S)
    if live.problems:
        raise RuntimeError(f"the quiet run failed: {live.problems}; see {folder}")


async def _round(
    cluster: LiveCluster,
    client: CoordinatorClient,
    jobs: dict[str, JobSpec],
    kills: tuple[Kill, ...],
    found: Rounds,
) -> None:
    await until_all_there(client, len(NODES), _START_LIMIT_S)
    folder = cluster.folder
    runs = {name: LiveRun(folder / f"{found.rounds}-{name}") for name in jobs}
    for name, job in jobs.items():
        await client.submit(job, str(runs[name].folder), resume=False)
    async with asyncio.TaskGroup() as group:
        striking = [group.create_task(_strike(cluster, kill, found)) for kill in kills]
        counting = group.create_task(_count(runs, found))
        async with asyncio.TaskGroup() as following:
            for live in runs.values():
                following.create_task(live.follow(client, _END_LIMIT_S))
        for task in (counting, *striking):
            task.cancel()
    found.rounds += 1
    for name, live in runs.items():
        _compare(live, folder / f"quiet-{name}", jobs[name], found)


async def _strike(cluster: LiveCluster, kill: Kill, found: Rounds) -> None:
    await asyncio.sleep(kill.at_s)
    if kill.kind == "worker":  # there may be none just now
        while not cluster.kill_worker(cluster.nodes[kill.name]):  # noqa: ASYNC110
            await asyncio.sleep(POLL_S)
        found.kills["worker"] += 1
    else:
        daemon = cluster.nodes.get(kill.name, cluster.coordinator)
        found.kills[kill.kind] += cluster.kill(daemon, kill.away_s)


async def _count(runs: dict[str, LiveRun], found: Rounds) -> None:
    """How many have begun and not ended."""
    while True:
        running = sum(live.began and not live.outcome for live in runs.values())
        found.most_at_once = max(found.most_at_once, running)
        await asyncio.sleep(POLL_S)


def _compare(live: LiveRun, quiet: Path, job: JobSpec, found: Rounds) -> None:
    found.jobs += 1
    problems = list(live.problems)
    if live.outcome == "finished":
        found.finished += 1
        unlike = differences(quiet, live.folder, job.iterations)[:3]
        found.bit_equal += not unlike
        problems += unlike
    found.problems += [f"{live.folder.name}: {problem}" for problem in problems]
    if not problems:
        shutil.rmtree(live.folder)


if __name__ == "__main__":
    main()
