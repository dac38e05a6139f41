"""A job on a spot market with the real coordinator and nodes, on virtual time.

Members are simulated: how long they take is the profile's word. All that decides and accounts is
the real thing, and the dollars are those of its ledgers.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from spotlight.actors.protocol.users import (
    CancelJob,
    GetStatus,
    JobAccepted,
    JobList,
    JobRefused,
    JobStatus,
    ListJobs,
    SubmitJob,
)
from spotlight.errors import ActorError, UserError
from spotlight.jobs import JobSpec
from spotlight.permissions import Permissions
from spotlight.policies.money.prices import PriceList, PriceRow
from spotlight.policies.money.prices import Prices as FleetPrices
from spotlight.record.ledger import NodeBill
from spotlight.record.run_metrics import IterationMetrics, decode_metrics
from spotlight.store.ledger_file import NAME, read_ledger
from spotlight_simulation.chaos import scratch_folder, silence
from spotlight_simulation.cluster_watch import ClusterWatch
from spotlight_simulation.freezing import FreezableLoop
from spotlight_simulation.invariants import check
from spotlight_simulation.job_life import Run, Scenario
from spotlight_simulation.market.batch_model import BOOT_S
from spotlight_simulation.market.market_fleet import Crash, MarketFleet, nodes_of
from spotlight_simulation.market.outcome import Outcome, shares_of_nodes
from spotlight_simulation.market.schedule import Prices, Schedule
from spotlight_simulation.memory_cluster import Cluster
from spotlight_simulation.numerics import Batch, Fingerprints, Update
from spotlight_simulation.profile import Profile

_POLL_S = 10.0
_BETWEEN_S = 1.0
_CANCELLED_AFTER_S = 300.0
"""A job that was cancelled has ended so long after that, whoever was killed meanwhile. [s]"""
_SETTLES_S = 15.0
"""The ledger of a job has all of its time so long after its end. [s]"""
_UNPRODUCTIVE = ("starting", "loading", "draining", "lost")
"""The states in which a worker is paid for and cannot work."""


class JobNotDone(UserError):
    """A job ended before it was done; says why."""

    exit_code = 1


class CalmWeights(Fingerprints):
    """Weights never move too far for previews to be trained on."""

    def trained(self, batch: Batch) -> Update:
        """See `Numerics`."""
        return Update(batch.name, {"loss": 0.5, "drift": 0.0})


def replay_with_actors(
    schedule: Schedule,
    prices: Prices,
    profile: Profile,
    job: JobSpec,
    *,
    boot_s: float = BOOT_S,
    crashes: Sequence[Crash] = (),
) -> Outcome:
    """Run the job until it is done or the schedule ends, and say what it came to.

    Args:
        schedule: the spot nodes, each with as many workers as a spot node of the job.
        profile: how long the job's work takes.
        job: it has its reserved nodes all the time.
        boot_s: from the start of a machine until it runs a program.
        crashes: what ends besides; it is started again.

    Raises `JobNotDone` if the job fails, and `UserError` if it is refused.
    """

    async def simulate(folder: Path) -> tuple[Run, float]:
        cluster = Cluster(
            job.seed,
            folder,
            nodes_of(job, schedule),
            times=profile.times(job),
            numerics=CalmWeights(),
            permissions=Permissions.of(job),
            prices=_fleet_prices(prices),
        )
        run = Run(Scenario(_uncut(job), cluster.nodes, (), True), cluster, folder)
        fleet = MarketFleet(cluster, schedule, boot_s=boot_s, crashes=crashes)
        async with cluster, fleet.there():
            ended_s = await _User(run, schedule.seconds).has_it_done()
            await asyncio.sleep(_SETTLES_S)
        return run, ended_s

    with (
        scratch_folder() as folder,
        silence(),
        asyncio.Runner(loop_factory=FreezableLoop) as runner,
    ):
        run, ended_s = runner.run(simulate(folder))
        check(run)
        return _outcome(run, ended_s, schedule, prices, boot_s)


def _uncut(job: JobSpec) -> JobSpec:
    """The same with advantages that are cut for no sample, which takes no time: so it can be told
    of every advantage where it comes from."""
    training = msgspec.structs.replace(
        job.training, advantage_clip=float(job.samples_per_iteration)
    )
    return msgspec.structs.replace(job, training=training)


def _fleet_prices(prices: Prices) -> FleetPrices:
    row = PriceRow(prices.reserved_per_gpu_hour, prices.spot_per_gpu_hour, source=prices.name)
    return FleetPrices(PriceList((row,), prices.currency), currency=prices.currency)


@dataclass
class _User:
    """Who submits the job, looks at it, and ends it when the market is over."""

    run: Run
    until_s: float
    _is_accepted: bool = False

    async def has_it_done(self) -> float:
        """Returns when it was done, or the market over. [s]"""
        loop, watch = asyncio.get_running_loop(), ClusterWatch(self.run.cluster)
        while loop.time() < self.until_s:
            status = await self._look()
            watch.look()
            if status is not None and status.outcome == "finished":
                self.run.outcomes.append(("finished", ""))
                return min(await self._ended_s(), self.until_s)
            if status is not None and status.outcome:
                raise JobNotDone(f"{status.job}: {status.outcome}: {status.reason}")
            await asyncio.sleep(min(_POLL_S, max(0.0, self.until_s - loop.time())))
        while loop.time() < self.until_s + _CANCELLED_AFTER_S:
            await self._ask(CancelJob())
            if (ended_s := await self._ended_s()) < math.inf:
                return min(ended_s, self.until_s)
            await asyncio.sleep(_BETWEEN_S)
        raise JobNotDone(f"{self.run.scenario.job.name}: cannot be cancelled")

    async def _ended_s(self) -> float:
        """When the job ended; infinite if it has not, or nobody answers."""
        answer = await self._ask(ListJobs())
        ends = [each.ended_at for each in answer.jobs] if isinstance(answer, JobList) else []
        return ends[0] if ends and ends[0] is not None else math.inf

    async def _look(self) -> JobStatus | None:
        if not self._is_accepted:
            job = self.run.scenario.job
            answer = await self._ask(SubmitJob(job, str(self.run.run_folder), False))
            if isinstance(answer, JobRefused):
                raise UserError(f"{job.name}: refused: {answer.reason}")
            self._is_accepted = isinstance(answer, JobAccepted)
        answer = await self._ask(GetStatus())
        return answer if isinstance(answer, JobStatus) and answer.job else None

    async def _ask(self, message: SubmitJob | GetStatus | ListJobs | CancelJob) -> object:
        cluster = self.run.cluster
        try:
            return await cluster.user().ask(cluster.coordinator_actor(), message, timeout_s=5.0)
        except ActorError:
            return None


# --- what came of it ---


def _outcome(
    run: Run, ended_s: float, schedule: Schedule, prices: Prices, boot_s: float
) -> Outcome:
    job, iterations = run.scenario.job, _iterations(run.run_folder)
    samples = sum(each.samples for each in iterations)
    previews = sum(each.previews for each in iterations)
    workers = job.pools.spot.workers
    unseen = {  # they have not booted by then, so no ledger has their time
        stay.node: max(0.0, min(stay.until_s, ended_s) - stay.from_s)
        for stay in schedule.stays
        if min(stay.until_s, ended_s) <= stay.from_s + boot_s
    }
    unseen_s = workers * sum(unseen.values())
    bills = [
        (bill, _share_before(ended_s, bill))
        for bill in _bills(run.folder / "runs")
        if bill.node not in unseen
    ]
    states_ms = sum(
        time_ms * share
        for bill, share in bills
        if bill.pool == "spot"
        for times in bill.times.values()
        for state, time_ms in times.items()
        if state in _UNPRODUCTIVE
    )
    money = (
        sum(_money(bill) * share for bill, share in bills)
        + unseen_s / 3600 * prices.spot_per_gpu_hour
    )
    return Outcome(
        iterations=len(iterations),
        is_finished=len(iterations) == job.iterations,
        hours=ended_s / 3600,
        money=money,
        currency=prices.currency,
        previews_per_sample=previews / samples if samples else 0.0,
        nodes_share=shares_of_nodes(schedule, ended_s),
        lost_s=states_ms / 1000 + unseen_s,
        losses=sum(stay.is_taken and stay.until_s <= ended_s for stay in schedule.stays),
        violations=tuple(run.history.violations),
    )


def _iterations(folder: Path) -> list[IterationMetrics]:
    path = folder / "metrics.jsonl"
    lines = path.read_bytes().splitlines() if path.exists() else []
    records = (decode_metrics(line) for line in lines)
    return [record for record in records if isinstance(record, IterationMetrics)]


def _bills(runs: Path) -> Iterator[NodeBill]:
    for path in runs.rglob(NAME):
        yield from read_ledger(path.parent).bills


def _share_before(ended_s: float, bill: NodeBill) -> float:
    """Of a bill of the job it is all; nodes that worked for no job are billed on after its end."""
    if bill.job:
        return 1.0
    billed_s = bill.to_at - bill.from_at
    return min(1.0, max(0.0, ended_s - bill.from_at) / billed_s) if billed_s else 0.0


def _money(bill: NodeBill) -> float:
    assert bill.price is not None, "both pools have a price"
    time_ms = sum(sum(times.values()) for times in bill.times.values())
    return time_ms / 3_600_000 * bill.price.usd_per_gpu_hour
