"""A job on a spot market by the batch-level model, in the words of the deep replay."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from spotlight.jobs import JobSpec
from spotlight_simulation.market.batch_model import (
    BOOT_S,
    Market,
    Pace,
    Recovery,
    System,
    course,
    job_paces,
)
from spotlight_simulation.market.outcome import Outcome, shares_of_nodes
from spotlight_simulation.market.schedule import Prices, Schedule
from spotlight_simulation.profile import Profile


def replay_by_model(
    schedule: Schedule, prices: Prices, profile: Profile, job: JobSpec, *, boot_s: float = BOOT_S
) -> Outcome:
    """What `replay_with_actors` would come to, by formulas."""
    ready_s = boot_s + profile.load_s
    system = System(
        name=job.name,
        reserved_gpus=job.pools.reserved.nodes * job.pools.reserved.workers,
        paces=job_paces(job, profile, schedule.pool),
        recovery=Recovery(ready_s=ready_s),
        gpus_of_node=job.pools.spot.workers,
    )
    market = Market(schedule)
    run = course(system, market, until=job.iterations)
    done_s = run.seconds_to(job.iterations)
    ended_s = schedule.seconds if done_s is None else done_s
    spans = list(_spans(system.paces, market.changes(system.recovery), ended_s))
    iterations = sum(pace.rate * seconds for pace, seconds in spans)
    previews = sum(pace.rate * seconds * pace.previews for pace, seconds in spans)
    idle_s = sum(
        min(ready_s, min(stay.until_s, ended_s) - stay.from_s)
        for stay in schedule.stays
        if stay.from_s < ended_s
    )
    return Outcome(
        iterations=iterations,
        is_finished=done_s is not None,
        hours=ended_s / 3600,
        money=run.cost(ended_s, prices),
        currency=prices.currency,
        previews_per_sample=previews / iterations,
        nodes_share=shares_of_nodes(schedule, ended_s),
        lost_s=idle_s * system.gpus_of_node,
        losses=sum(stay.is_taken and stay.until_s <= ended_s for stay in schedule.stays),
    )


def _spans(
    paces: Sequence[Pace], changes: Sequence[tuple[float, int]], until_s: float
) -> Iterator[tuple[Pace, float]]:
    """The pace of each span of time with the same nodes, and how long it lasts."""
    nodes, before_s = 0, 0.0
    for at_s, by in [*changes, (until_s, 0)]:
        end_s = min(at_s, until_s)
        yield paces[nodes], end_s - before_s
        nodes, before_s = nodes + by, end_s
