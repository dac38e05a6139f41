"""Whether a healthy job ends: `python -m benchmarks.faults --json`.

A job of fixed budget runs with real processes - a coordinator, a reserved node and two spot nodes
of two workers each - while processes are stopped for 1 to 30 s, connections between each two
machines (and inside a node) stall or are cut for 3 to 30 s, and each process is killed; at last
forty of these strike one job at random. Killed daemons are started again, as a service manager
does. Every job must end by itself, with the checkpoint, the export and the figures of an
undisturbed one, bit by bit, and nothing may be left behind.

Connections need network namespaces (`unshare`, `ip`, `ss`, `tc`); without them these cases are left
out, and `partitions` says why. A case that failed keeps its run folder and logs, named in
`problems`. `--only WORDS` takes the cases whose names hold these words.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import shutil
import signal
import sys
import tempfile
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.faults_cases import (
    COORDINATOR,
    OTHER_SPOT,
    RESERVED,
    SPOT,
    TRAINER,
    Case,
    Strike,
    cases,
)
from benchmarks.live.cluster import LiveCluster, one_reserved
from benchmarks.live.network import LiveNetwork, Loopback, Namespaces, namespace_command
from benchmarks.live.run import LiveRun, until_all_there
from benchmarks.live.run_comparison import differences
from benchmarks.live.tiny_jobs import job_data
from benchmarks.report import Report
from spotlight.actors.runtime.logs import log_as_json_lines
from spotlight.actors.runtime.loop import run
from spotlight.errors import ActorError, RequestRefused
from spotlight.jobs import JobSpec, job_from_data
from spotlight.running.client import CoordinatorClient, connect

WORKERS = 2
"""Workers of each node."""
NODES = (RESERVED, SPOT, OTHER_SPOT)
START_LIMIT_S = 180.0
END_LIMIT_S = 300.0
"""A job ends within this time of the last strike."""
CASES_PER_CLUSTER = 8
_INSIDE = "SPOTLIGHT_FAULTS_NAMESPACE"
"""Environment variable: why there is no namespace; empty inside one."""


@dataclass
class Outcome:
    """What came of a case."""

    name: str
    seconds: float
    struck: int
    """Strikes that found what they were for."""
    finished: bool
    by_hand: int
    """How often somebody had to resume it."""
    bit_equal: bool
    problems: list[str]


@dataclass
class Site:
    """A cluster that runs one case after another."""

    cluster: LiveCluster
    client: CoordinatorClient
    base: Path
    runs: Path
    """The folder that the coordinator keeps its runs in."""
    undisturbed: dict[int, Path] = field(default_factory=dict)
    """Run folders, by the number of iterations."""


def main() -> None:
    """Run all cases, in a network namespace where that is possible, and print what came of them."""
    report = Report("faults", __doc__, minutes=15)
    report.options.add_argument("--only", default="", help="cases whose names hold these words")
    report.options.add_argument("--seed", type=int, default=0, help="of the times and of the storm")
    if _INSIDE not in os.environ:
        prefix, problem = namespace_command()
        os.environ[_INSIDE] = problem
        os.execvp(
            [*prefix, sys.executable][0],
            [*prefix, sys.executable, "-m", "benchmarks.faults", *sys.argv[1:]],
        )
    given = report.begin()
    problem = os.environ[_INSIDE]
    log_as_json_lines(logging.CRITICAL)
    chosen = [
        case
        for case in cases(random.Random(given.seed), partitions=not problem, quick=given.quick)
        if given.only in case.name
    ]
    base = Path(tempfile.mkdtemp(prefix="faults-")).resolve()
    network = Loopback() if problem else Namespaces()
    outcomes, left = run(_run_all(chosen, base, network, report))
    bad = [outcome for outcome in outcomes if outcome.problems]
    if not (bad or left):
        shutil.rmtree(base)
    report.add(_figures(outcomes, left, problem, base))
    report.finish()


def _figures(outcomes: list[Outcome], left: list[str], problem: str, base: Path) -> dict[str, Any]:
    count = len(outcomes)
    problems = [f"{outcome.name}: {what}" for outcome in outcomes for what in outcome.problems]
    return {
        "cases": count,
        "strikes": sum(outcome.struck for outcome in outcomes),
        "finished_fraction": sum(outcome.finished for outcome in outcomes) / max(1, count),
        "bit_equal_fraction": sum(outcome.bit_equal for outcome in outcomes) / max(1, count),
        "by_hand": sum(outcome.by_hand for outcome in outcomes),
        "left_behind": len(left),
        "partitions": f"not possible: {problem}" if problem else "namespaces",
        "seconds": round(sum(outcome.seconds for outcome in outcomes), 1),
        "slowest": max(((o.seconds, o.name) for o in outcomes), default=(0.0, ""))[1],
        "problems": [*problems, *left, *([f"see {base}"] if problems or left else [])],
    }


async def _run_all(
    chosen: list[Case], base: Path, network: LiveNetwork, report: Report
) -> tuple[list[Outcome], list[str]]:
    """And what was left behind."""
    outcomes: list[Outcome] = []
    left: list[str] = []
    undisturbed: dict[int, Path] = {}
    while len(outcomes) < len(chosen):
        folder = base / f"cluster-{len(outcomes)}"
        nodes = one_reserved(WORKERS, [WORKERS] * (len(NODES) - 1))
        cluster = LiveCluster(folder, network, nodes)
        async with cluster, connect(cluster.join) as client:
            site = Site(cluster, client, base, folder, undisturbed)
            for case in chosen[len(outcomes) :][:CASES_PER_CLUSTER]:
                outcome = await _run_case(site, case, len(outcomes))
                outcomes.append(outcome)
                report.note(f"{case.name}: {outcome.seconds:.0f} s {outcome.problems or ''}")
                if outcome.problems:
                    break  # what follows should find a cluster that is well
                if report.is_time_up():
                    chosen = chosen[: len(outcomes)]
                    break
        left += cluster.problems
    return outcomes, left


async def _run_case(site: Site, case: Case, number: int) -> Outcome:
    loop = asyncio.get_running_loop()
    job = job_from_data(job_data(site.base, "faults", iterations=case.iterations))
    if case.iterations not in site.undisturbed:
        calm = await _run_job(site, job, site.runs / f"undisturbed-{case.iterations}", None)
        if calm.live.problems:
            raise RuntimeError(f"the undisturbed run failed: {calm.live.problems}; see {site.base}")
        site.undisturbed[case.iterations] = calm.live.folder
    began = loop.time()
    ran = await _run_job(site, job, site.runs / f"{number:03d}-{case.name.replace(' ', '-')}", case)
    unlike = ["it did not finish"]
    if ran.live.outcome == "finished":
        unlike = differences(site.undisturbed[case.iterations], ran.live.folder, job.iterations)[:3]
    finished = not ran.live.problems
    problems = [*ran.live.problems, *unlike]
    if not problems:
        shutil.rmtree(ran.live.folder)
    seconds = loop.time() - began
    return Outcome(case.name, seconds, ran.struck, finished, ran.by_hand, not unlike, problems)


@dataclass
class _Ran:
    live: LiveRun
    struck: int = 0
    by_hand: int = 0


async def _run_job(site: Site, job: JobSpec, folder: Path, case: Case | None) -> _Ran:
    await until_all_there(site.client, WORKERS * len(NODES), START_LIMIT_S)
    ran = _Ran(LiveRun(folder))
    await site.client.submit(job, str(folder), resume=False)
    strikes = case.strikes if case is not None else ()
    striking = asyncio.create_task(_strike_all(site, ran, strikes))
    last = max((at_s + strike.seconds for at_s, strike in strikes), default=0.0)
    try:
        await ran.live.follow(site.client, last + END_LIMIT_S)
    finally:
        if ran.live.outcome:  # what has begun goes on to its end: nothing stays stopped or cut
            with suppress(TimeoutError):
                async with asyncio.timeout(last + END_LIMIT_S):
                    await striking
        striking.cancel()
        await asyncio.wait((striking,))
    if not striking.cancelled() and striking.exception() is not None:
        ran.live.problems.append(f"a strike failed: {striking.exception()!r}")
    if ran.live.outcome.startswith("failed"):
        await _resume_by_hand(site, job, ran)
    return ran


async def _resume_by_hand(site: Site, job: JobSpec, ran: _Ran) -> None:
    """As a user would; it counts as one that did not finish."""
    ran.by_hand += 1
    with suppress(ActorError, RequestRefused):
        await site.client.submit(job, str(ran.live.folder), resume=True)
        await ran.live.follow(site.client, END_LIMIT_S)


async def _strike_all(site: Site, ran: _Ran, strikes: tuple[tuple[float, Strike], ...]) -> None:
    """Each at its time after the begin of the first rollout, unless the job is over by then."""
    await ran.live.until_begun()

    async def later(at_s: float, strike: Strike) -> None:
        await asyncio.sleep(at_s)
        if not ran.live.outcome:
            found = await _strike(site, ran, strike)
            ran.struck += found  # after the wait: others add to it meanwhile

    async with asyncio.TaskGroup() as group:
        for at_s, strike in strikes:
            group.create_task(later(at_s, strike))


async def _strike(site: Site, ran: _Ran, strike: Strike) -> bool:
    """Whether it found what it is for."""
    cluster = site.cluster
    if strike.kind in ("stall", "cut"):
        one, other = strike.who
        return await cluster.part((one, other), strike.seconds, reset=strike.kind == "cut")
    (who,) = strike.who
    daemon = cluster.coordinator if who == COORDINATOR else cluster.nodes.get(who)
    if daemon is not None and strike.kind == "kill":
        return cluster.kill(daemon, strike.seconds)
    if daemon is not None:
        processes = daemon.processes()[:1]
        return await cluster.pause([process.pid for process in processes], strike.seconds)
    pid = _worker(site, ran, who)
    if pid is None:
        return False
    if strike.kind == "stop":
        return await cluster.pause([pid], strike.seconds)
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
        return True
    return False


def _worker(site: Site, ran: _Ran, who: str) -> int | None:
    """The process of a worker, if it is there now."""
    trains = ran.live.trainer or f"{RESERVED}/0"
    if who == TRAINER:
        node, _, index = trains.partition("/")
    elif who.startswith(RESERVED):
        node, index = RESERVED, str(1 - int(trains.partition("/")[2]))
    else:
        node, index = SPOT, "0"
    process = site.cluster.nodes[node].worker(int(index))
    return process.pid if process is not None else None


if __name__ == "__main__":
    main()
