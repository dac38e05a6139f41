"""Small jobs on stretches of real markets, in which coordinators and nodes crash besides, each from
one seed: all that must always hold is checked, and every second must be on the bill once."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import msgspec

from spotlight.jobs import JobSpec
from spotlight_simulation.chaos import scratch_folder, silence, undisturbed_weights
from spotlight_simulation.cluster_watch import ClusterWatch
from spotlight_simulation.freezing import FreezableLoop
from spotlight_simulation.invariants import check
from spotlight_simulation.job_life import Run, Scenario, chaos_job, have_it_done
from spotlight_simulation.market.market_fleet import Crash, MarketFleet, nodes_of
from spotlight_simulation.market.readers import read_trace
from spotlight_simulation.market.schedule import Schedule
from spotlight_simulation.memory_cluster import COORDINATOR, Cluster

_TRACES = (
    "bamboo/p3-trace.csv",
    "bamboo/g4dn-trace.csv",
    "bamboo/gcp-a100x1-us-east1b.csv",
    "bamboo/gcp-v100x1-us-east1c.csv",
)
_FASTER = 240.0
"""A market goes by so many times as fast, as these jobs are done in minutes."""
_LASTS_S = 90.0
_BOOT_S = 3.0
_NOTICES_S = (0.0, 0.0, 2.0, 5.0, 25.0)
_CRASHES_UNTIL_S = 60.0
_MOST_COORDINATOR_KILLS, _MOST_NODE_KILLS = 2, 4


class CrashedMarket(msgspec.Struct, frozen=True, kw_only=True):
    """What came of a seed."""

    seed: int
    """The seed of the market, the job and the crashes."""
    market: str
    """The trace that the schedule is from."""
    taken: int
    """How many nodes the market took while the job was there."""
    coordinator_kills: int
    """How often the coordinator was killed."""
    node_kills: int
    """How often a node was killed that the market left alone."""
    virtual_s: float
    """How long it took. [s]"""
    violations: tuple[str, ...]
    """What must not happen, and did."""


def run_market(seed: int) -> CrashedMarket:
    """Run one seed to its end and check everything."""
    with (
        scratch_folder() as folder,
        silence(),
        asyncio.Runner(loop_factory=FreezableLoop) as runner,
    ):
        rng = random.Random(f"{seed} market")
        schedule = _schedule(rng)
        job = _job(folder, rng, schedule.pool)
        crashes = _crashes(rng, schedule)
        run, struck = runner.run(_simulate(seed, folder, schedule, job, crashes))
        if job.exploration.budget == "fixed":
            run.undisturbed = undisturbed_weights(job)
        check(run)
    ended_s = run.history.happenings[-1].time_s
    return CrashedMarket(
        seed=seed,
        market=schedule.market,
        taken=sum(stay.is_taken and stay.until_s <= ended_s for stay in schedule.stays),
        coordinator_kills=struck.count(COORDINATOR),
        node_kills=len(struck) - struck.count(COORDINATOR),
        virtual_s=round(ended_s, 3),
        violations=tuple(run.history.violations),
    )


def run_markets(seeds: Sequence[int], processes: int = 2) -> Iterator[CrashedMarket]:
    """Run many, each in one of some processes; in the order of the seeds."""
    with ProcessPoolExecutor(processes) as pool:
        for encoded in pool.map(_run_encoded, seeds, chunksize=4):
            yield msgspec.json.decode(encoded, type=CrashedMarket)


def _run_encoded(seed: int) -> bytes:
    return msgspec.json.encode(run_market(seed))


async def _simulate(
    seed: int, folder: Path, schedule: Schedule, job: JobSpec, crashes: Sequence[Crash]
) -> tuple[Run, list[str]]:
    cluster = Cluster(seed, folder, nodes_of(job, schedule))
    run = Run(Scenario(job, cluster.nodes, (), True), cluster, folder)
    fleet = MarketFleet(cluster, schedule, boot_s=_BOOT_S, crashes=crashes)
    async with cluster, fleet.there():
        await have_it_done(run, ClusterWatch(cluster))
    return run, fleet.struck


def _schedule(rng: random.Random) -> Schedule:
    """A stretch of a market that goes by faster."""
    trace, seconds = read_trace(rng.choice(_TRACES)), _LASTS_S * _FASTER
    slow = trace.schedule(
        pool=rng.randint(2, 4),
        generator=rng,
        start_s=rng.uniform(0.0, trace.seconds - seconds),
        seconds=seconds,
    )
    stays = tuple(
        msgspec.structs.replace(
            stay,
            from_s=stay.from_s / _FASTER,
            until_s=stay.until_s / _FASTER,
            notice_s=rng.choice(_NOTICES_S) if stay.is_taken else 0.0,
        )
        for stay in slow.stays
    )
    return msgspec.structs.replace(slow, seconds=_LASTS_S, stays=stays)


def _job(folder: Path, rng: random.Random, nodes: int) -> JobSpec:
    budget, ranks = rng.choice(["fixed", "window"]), rng.choice([1, 1, 2])
    degrees: list[int | str] = ["auto", 2] if budget == "window" else [2]  # there `auto` is 1
    return chaos_job(
        folder,
        ranks=ranks,
        degree=rng.choice(degrees),
        exploration={"candidates": 2, "budget": budget, "reuse": rng.random() < 0.5},
        pools={
            "reserved": {"nodes": 1, "workers": ranks},
            "spot": {"nodes": nodes, "workers": rng.choice([1, 1, 2])},
        },
    )


def _crashes(rng: random.Random, schedule: Schedule) -> list[Crash]:
    nodes = ["reserved-0", *(stay.node for stay in schedule.stays)]
    kills = [COORDINATOR] * rng.randint(0, _MOST_COORDINATOR_KILLS)
    kills += rng.choices(nodes, k=rng.randint(0, _MOST_NODE_KILLS))
    return [Crash(rng.uniform(1.0, _CRASHES_UNTIL_S), process) for process in kills]
