"""Whether the ledger is a bill: every second of every worker is on it, once, whatever happens.

    python -m benchmarks.ledger --json [--quick]

Three parts. Many jobs and sessions on simulated clusters, each disturbed by faults that follow from
its seed: coordinators, nodes and workers are killed, nodes have notice, move between jobs and come
back under their names. What the ledgers say is held against the time that passed there
(`spotlight_simulation.ledger_watch`). Then a job with real processes, whose coordinator is killed
three times: what nodes are billed for, against how long the kernel says that they were there. And
the roll-ups on disk of a run of 1,000 workers, no two of them alike, and 10,000 iterations.

- `schedules`: how many were simulated; `violations`: how many of them had a second that is on no
  bill, on two, or on that of another job, a bill that shrank, or lines that do not add up to their
  ledger.
- `coordinator_kills`, `node_kills`, `notices`, `virtual_hours`: what happened in all of them.
- `billed_error`: the share by which the bill of a real node is wrong, of that where it is most.
  `billed_s` and `wall_s` are the sums of all workers, `kills` those of the coordinator.
- `rollup_mb`: the roll-ups of the large run; `rollup_line_ms`: how long a line takes to write.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import psutil

from benchmarks.large_run import rollup_lines
from benchmarks.large_run_world import SIZES, Size, World
from benchmarks.live.cluster import LiveCluster, LiveProcess, one_reserved
from benchmarks.live.network import Loopback
from benchmarks.live.run import POLL_S, LiveRun, until_all_there
from benchmarks.live.tiny_jobs import job_data
from benchmarks.report import Figure, Report, quantile
from spotlight.actors.runtime.logs import log_as_json_lines
from spotlight.actors.runtime.loop import run
from spotlight.jobs import job_from_data
from spotlight.record.ledger import RollupLine
from spotlight.record.run_events import PhaseBegan
from spotlight.running.client import CoordinatorClient, connect
from spotlight.store.ledger_file import NAME, read_ledger
from spotlight.store.memory_folder import remove_leftovers
from spotlight.store.rollups import Rollups
from spotlight_simulation.chaos import run_seeds, scratch_folder
from spotlight_simulation.ledger_watch import MARK

SCHEDULES, QUICK_SCHEDULES = 1000, 8
KILLS, QUICK_KILLS = 3, 1
_ITERATIONS, _QUICK_ITERATIONS = 60, 3
_LIMIT_S = 600.0
_AWAY_S = (0.0, 2.0, 5.0)
"""The coordinator is away for so long after each kill."""


def main() -> None:
    """Do all three parts and print what came of them."""
    report = Report("ledger", __doc__, minutes=15)
    given = report.begin()
    report.add(_simulated(report))
    report.add(_real(report, quick=given.quick))
    quick = msgspec.structs.replace(SIZES["wide"], hours=0.5, iterations=90)
    report.add(_rolled_up(quick if given.quick else SIZES["wide"]))
    report.finish()


# --- simulated ---


def _simulated(report: Report) -> dict[str, Figure]:
    effects: Counter[str] = Counter()
    amiss, virtual_s = [], 0.0
    count = report.times(SCHEDULES, quick=QUICK_SCHEDULES)
    for outcome in run_seeds(range(count)):
        effects.update(outcome.effective)
        virtual_s += outcome.virtual_s
        ours = [what for what in outcome.violations if MARK in what]
        if ours:
            amiss.append(outcome.seed)
            report.note(f"{ours[0]}; replay with: spotlight chaos --seed {outcome.seed}")
        elif outcome.violations:
            report.note(f"seed {outcome.seed}, not of the ledger: {outcome.violations[0]}")
    return {
        "schedules": count,
        "violations": len(amiss),
        "coordinator_kills": effects["coordinator_kill"] + effects["lose_coordinator"],
        "node_kills": effects["kill_node"] + effects["flapping_node"] + effects["pool_loss"],
        "notices": effects["notice_then_kill"] + effects["notice_no_kill"],
        "virtual_hours": round(virtual_s / 3600, 1),
    }


# --- real processes ---


@dataclass
class _Life:
    """Of a node's process, by the kernel's clock."""

    node: str
    workers: int
    seconds: float = 0.0


@dataclass
class _Lives:
    """Those of all nodes of a cluster, from their start to their end."""

    lives: list[_Life] = field(default_factory=list)
    _watching: list[asyncio.Task[None]] = field(default_factory=list)

    def watch(self, node: LiveProcess) -> None:
        """The process that a node is now."""
        life = _Life(node.name, node.workers)
        self.lives.append(life)
        self._watching.append(asyncio.create_task(self._see_the_end(life, node)))

    async def ended(self) -> None:
        """All have ended."""
        await asyncio.gather(*self._watching)

    @staticmethod
    async def _see_the_end(life: _Life, node: LiveProcess) -> None:
        handle = node.handle
        assert handle is not None
        began_s = psutil.Process(handle.pid).create_time() - psutil.boot_time()
        await handle.wait()
        life.seconds = time.clock_gettime(time.CLOCK_BOOTTIME) - began_s


def _real(report: Report, *, quick: bool) -> dict[str, Any]:
    log_as_json_lines(logging.CRITICAL)
    base = Path(tempfile.mkdtemp(prefix="ledger-")).resolve()
    lives, problems = run(_run_with_kills(base, quick=quick))
    remove_leftovers()
    billed = _billed_s(base / "cluster")
    for life in lives:
        wall_s = life.seconds * life.workers
        report.note(f"{life.node}: billed {billed[life.node]:.3f} of {wall_s:.3f} s")
    errors = [abs(billed[one.node] / (one.seconds * one.workers) - 1) for one in lives]
    if problems:
        report.note(f"see {base}: {problems}")
    else:
        shutil.rmtree(base)
    return {
        "kills": QUICK_KILLS if quick else KILLS,
        "billed_s": round(sum(billed.values()), 3),
        "wall_s": round(sum(life.seconds * life.workers for life in lives), 3),
        "billed_error": round(max(errors), 5),
        "problems": problems,
    }


async def _run_with_kills(base: Path, *, quick: bool) -> tuple[list[_Life], list[str]]:
    iterations = _QUICK_ITERATIONS if quick else _ITERATIONS
    job = job_from_data(job_data(base, "ledger", iterations=iterations))
    folder, lives = base / "cluster", _Lives()
    cluster = LiveCluster(folder, Loopback(), one_reserved(1, [1]))
    running = LiveRun(folder / "run")
    async with cluster, connect(cluster.join) as client:
        await until_all_there(client, 2, _LIMIT_S)
        for node in cluster.nodes.values():
            lives.watch(node)
        kills = QUICK_KILLS if quick else KILLS
        await _follow(running, cluster, client, job, iterations, kills)
    await lives.ended()
    return lives.lives, [*running.problems, *cluster.problems]


async def _follow(
    running: LiveRun,
    cluster: LiveCluster,
    client: CoordinatorClient,
    job: Any,
    iterations: int,
    kills: int,
) -> None:
    """Have the job done, and kill the coordinator at equal distances meanwhile."""
    await client.submit(job, str(running.folder), resume=False)
    killing = asyncio.create_task(_kill(running, cluster, iterations, kills))
    try:
        await running.follow(client, _LIMIT_S)
    finally:
        killing.cancel()
        await asyncio.wait((killing,))
    if killing.cancelled():
        running.problems.append("the coordinator was not killed often enough")


async def _kill(running: LiveRun, cluster: LiveCluster, iterations: int, kills: int) -> None:
    for number in range(kills):
        due = iterations * (number + 1) // (kills + 1)
        while not any(  # noqa: ASYNC110 - a file says so
            event.iteration >= due for event in running.events if isinstance(event, PhaseBegan)
        ):
            await asyncio.sleep(POLL_S)
        cluster.kill(cluster.coordinator, _AWAY_S[number])


def _billed_s(runs: Path) -> dict[str, float]:
    """What each node is billed for, of all jobs and of none."""
    billed_ms: Counter[str] = Counter()
    for path in runs.rglob(NAME):
        for bill in read_ledger(path.parent).bills:
            billed_ms[bill.node] += sum(sum(times.values()) for times in bill.times.values())
    return {node: time_ms / 1000 for node, time_ms in billed_ms.items()}


# --- a large run ---


def _rolled_up(size: Size) -> dict[str, Figure]:
    took = []
    with scratch_folder() as folder:
        rollups = Rollups(folder / "rollups")
        for line in _uneven(rollup_lines(World(size))):
            began = time.perf_counter()
            rollups.append(line)
            took.append(1000 * (time.perf_counter() - began))
        rollups.close()
        nbytes = sum(path.stat().st_size for path in (folder / "rollups").iterdir())
    return {
        "rollup_workers": size.all_workers,
        "rollup_iterations": size.iterations,
        "rollup_mb": round(nbytes / 1e6, 2),
        "rollup_line_ms": round(quantile(took, 0.5), 2),
    }


def _uneven(lines: Iterator[RollupLine]) -> Iterator[RollupLine]:
    """No worker does the same as another: each is idle for up to a second more than it was."""
    rng = np.random.default_rng(0)
    for line in lines:
        more = iter(rng.integers(0, 1000, len(line.times)).tolist())
        for worker, times in line.times.items():
            state = max(times, key=times.__getitem__)
            idle_ms = min(next(more), times[state] - 1)
            line.times[worker] = {**times, state: times[state] - idle_ms}
            line.times[worker]["idle"] = line.times[worker].get("idle", 0) + idle_ms
        yield line


if __name__ == "__main__":
    main()
