"""What a preemption costs: `python -m benchmarks.preemption --json`.

Three nodes with one real worker process each denoise batches of the tiny model under a real
dispatcher, journal and store. In each round one worker that holds work is killed (SIGKILL, no
notice), or its node is given notice. Every denoising step of every process is written down, and
those that were lost are held against the most that a loss can cost (`benchmarks.preemption_bound`);
every image, latent, state and log-probability is compared bit by bit with those of an undisturbed
run.
Commit overhead is the throughput with the commit interval that the policy chose against that
without commits, in alternating rounds.
"""

from __future__ import annotations

import asyncio
import logging
import random
import statistics
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from msgspec.structs import replace

from benchmarks.preemption_bound import Record, loss, most_lost
from benchmarks.preemption_site import EXAMPLE, Site, make_requests, opened
from benchmarks.report import Report, quantile
from spotlight.actors.coordinator.tenant.request_plans import rollout_settings
from spotlight.actors.runtime.logs import log_as_json_lines
from spotlight.actors.runtime.loop import run
from spotlight.diffusion.checkpoints import load_model
from spotlight.jobs import load_job
from spotlight.policies.requests.rows import Lease
from spotlight.types import Request, SamplingSettings

NODES = 3
BATCHES = 2
STEPS, QUICK_STEPS = 240, 120
NOTICE_S = 10.0
RESTART_PAUSE_S = 12.0
"""The pause between two kills, so that no node's worker ends more often than a node allows."""


@dataclass(frozen=True)
class _Extent:
    """How much is done."""

    losses: int
    """The number of kills, and of notices."""
    rounds: int
    """The number of pairs of rounds with commits and without."""
    batches: int
    """The batches of such a round."""
    steps: int
    """The denoising steps of a request."""
    pause_s: float


class _Trials:
    """One site, round after round."""

    def __init__(self, at: Site, settings: SamplingSettings, pause_s: float) -> None:
        self.at = at
        self.settings = settings
        self._pause_s = pause_s
        self.rng = random.Random(1)
        self.number = 0
        self.kills: Counter[str] = Counter()
        self.batch_s = 1.0
        self.submitted = 0
        self.undisturbed: dict[int, str] = {}
        self.equal: list[bool] = []
        self.intervals: list[int] = []
        """The intervals of the leases that were lost to a kill."""
        self.repeated: list[int] = []
        self.over_bound = 0
        self.on_the_way: list[int] = []
        self.repeated_after_notice: list[int] = []
        self.commit_ms: list[float] = []
        self.leave_ms: list[float] = []
        self.requeue_ms: list[float] = []
        self.reissue_ms: list[float] = []

    def begin(self, batches: int, *, images: bool = True) -> tuple[tuple[Request, ...], int]:
        """Submit a round; returns its requests and where its steps begin in the trace."""
        self.number += 1
        requests = make_requests(self.settings, self.number, batches * self.settings.micro_batch)
        if images:
            requests = tuple(replace(r, image_key=f"images/{r.id}.png") for r in requests)
        offset = self.at.trace.stat().st_size
        self.submitted += len(requests)
        self.at.submit(requests)
        return requests, offset

    async def end(self, requests: tuple[Request, ...]) -> dict[int, str]:
        """Wait for all of a round."""
        await self.at.until(lambda: all(self.at.finished[r.id] for r in requests))
        return await self.at.fingerprints(requests)

    async def learn(self) -> None:
        """The undisturbed run, twice: the first warms up."""
        for _ in range(2):
            requests, _ = self.begin(BATCHES)
            started = await self.at.until(lambda: bool(self.at.denoising()))
            self.undisturbed = await self.end(requests)
            self.batch_s = asyncio.get_running_loop().time() - started

    async def disturb(self, *, notice: bool) -> None:
        """One round with a kill or a notice somewhere in it."""
        requests, offset = self.begin(BATCHES)
        await self.at.until(lambda: len(self.at.denoising()) >= BATCHES)
        await asyncio.sleep(self.rng.uniform(0.1, 0.8) * self.batch_s)
        held = self.at.denoising()
        if not held:  # batches take less than they did: again, and earlier
            self.compare(await self.end(requests))
            self.batch_s /= 2
            await self.disturb(notice=notice)
            return
        # A node gives up a worker that ends too often, so the kills go round.
        worker = min(sorted(held), key=lambda name: self.kills[name])
        leases, pid = held[worker], self.at.launcher.processes[worker].pid
        if notice:
            await self.give_notice(worker, leases)
        else:
            await self.kill(worker, leases)
        self.compare(await self.end(requests))
        self.count_steps(leases, pid, self.at.traced_since(offset), notice=notice)
        if notice:
            self.at.left.clear()
            self.at.notice(worker.partition("/")[0], 0.0, cancel=True)
        await self.at.until(self.at.up)

    def count_steps(
        self, leases: list[Lease], pid: int, trace: Sequence[Record], *, notice: bool
    ) -> None:
        """How often each step of the requests that the process had was taken, by whomever."""
        of_process = [record for record in trace if record["pid"] == pid]
        for lease in leases:
            every = self.at.pace.every[lease.number]
            for request in (row.request for row in lease.rows):
                taken = Counter(
                    record["step"]
                    for record in trace
                    if "step" in record and request.seed in record["seeds"]
                )
                again = taken.total() - len(taken)
                if notice:
                    self.repeated_after_notice.append(again)
                    continue
                saved = self.at.table.saved[request.id]
                it = loss(request.seed, lease.number, of_process, saved)
                self.intervals.append(every)
                self.repeated.append(again)
                self.on_the_way.append(it.on_the_way)
                self.over_bound += again > most_lost(
                    every or self.settings.steps, it.before, it.on_the_way
                )

    def compare(self, found: dict[int, str]) -> None:
        """With the undisturbed run."""
        self.equal += [found.get(seed) == digest for seed, digest in self.undisturbed.items()]

    async def kill(self, worker: str, leases: list[Lease]) -> None:
        """And see when others have its work."""
        table = self.at.table
        numbers = {lease.number for lease in leases}
        ids = {request_id for lease in leases for request_id in lease.ids}

        def taken_on() -> set[str]:
            leased = {request_id for lease in table.leases() for request_id in lease.ids}
            return leased | {request_id for request_id in ids if self.at.finished[request_id]}

        now = asyncio.get_running_loop().time()
        self.at.kill(worker)
        self.kills[worker] += 1
        gone = await self.at.until(lambda: not numbers & {it.number for it in table.leases()})
        self.requeue_ms.append(1000 * (gone - now))
        again = await self.at.until(lambda: ids <= taken_on())
        self.reissue_ms.append(1000 * (again - now))
        await asyncio.sleep(self._pause_s)

    async def give_notice(self, worker: str, leases: list[Lease]) -> None:
        """And see when nothing can be lost any more."""
        table = self.at.table
        node = worker.partition("/")[0]
        before = {it: table.steps_done(it) for lease in leases for it in lease.ids}
        numbers = {lease.number for lease in leases}

        def is_safe() -> bool:
            mine = [lease for lease in table.leases() if lease.number in numbers]
            return all(table.steps_done(it) > before[it] for lease in mine for it in lease.ids)

        now = asyncio.get_running_loop().time()
        self.at.notice(node, NOTICE_S)
        self.commit_ms.append(1000 * (await self.at.until(is_safe) - now))
        left = await self.at.until(lambda: node in self.at.left)
        self.leave_ms.append(1000 * (left - now))


async def _overhead(trials: _Trials, every: int, rounds: int, batches: int) -> list[float]:
    """Seconds with commits over seconds without, per pair of rounds."""
    ratios = []
    for number in range(rounds):
        seconds = {}
        for commits in (True, False) if number % 2 else (False, True):
            trials.at.pace.fixed = every if commits else 0
            requests, _ = trials.begin(batches, images=False)
            started = asyncio.get_running_loop().time()
            await trials.end(requests)
            seconds[commits] = asyncio.get_running_loop().time() - started
        ratios.append(seconds[True] / seconds[False])
    return ratios


async def _measure(extent: _Extent) -> dict[str, Any]:
    job = load_job(EXAMPLE)
    model = load_model(job.model)
    settings = replace(rollout_settings(job, 0), steps=extent.steps)
    with tempfile.TemporaryDirectory() as folder:
        async with opened(Site(Path(folder)), job, model, NODES) as at:
            trials = _Trials(at, settings, extent.pause_s)
            await trials.learn()
            # The pool's rate as this benchmark makes it, as if it had been watched for an hour.
            at.pace.watched(Counter(spot=1), 3600.0)
            for _ in range(int(3600 / (NODES * RESTART_PAUSE_S))):
                at.pace.lost("spot")
            await trials.learn()
            for _ in range(extent.losses):
                await trials.disturb(notice=False)
            interval = int(statistics.median(trials.intervals))
            for _ in range(extent.losses):
                await trials.disturb(notice=True)
            ratios = await _overhead(trials, interval, extent.rounds, extent.batches)
            finished, twice = at.finished, sum(count > 1 for count in at.finished.values())
            lost = trials.submitted - len(finished)
            saved = [it for every in at.table.saved.values() for it in every]
            commits = {it for it in saved if it.step < extent.steps}
    return {
        "requests": trials.submitted,
        "requests_lost": lost,
        "counted_twice": twice,
        "images_equal_fraction": sum(trials.equal) / len(trials.equal),
        "images_compared": len(trials.equal),
        "commit_interval": interval,
        "steps_per_request": extent.steps,
        "steps_repeated_median": statistics.median(trials.repeated),
        "steps_repeated_max": max(trials.repeated),
        "steps_repeated_over_bound": trials.over_bound,
        "steps_on_the_way_max": max(trials.on_the_way),
        "steps_repeated_after_notice_max": max(trials.repeated_after_notice, default=0),
        "commit_overhead": 1 - 1 / statistics.median(ratios),
        "notice_to_commit_ms_median": statistics.median(trials.commit_ms),
        "notice_to_commit_ms_p99": quantile(trials.commit_ms, 0.99),
        "notice_to_left_ms_median": statistics.median(trials.leave_ms),
        "kill_to_requeue_ms_median": statistics.median(trials.requeue_ms),
        "kill_to_reissue_ms_median": statistics.median(trials.reissue_ms),
        "kill_to_reissue_ms_max": max(trials.reissue_ms),
        "kills": len(trials.reissue_ms),
        "notices": len(trials.commit_ms),
        "commits": len(commits),
        "requests_resumed": at.pace.resumed,
    }


def main() -> None:
    """Print the figures."""
    report = Report("preemption", __doc__, minutes=10)
    quick = report.begin().quick
    torch.set_num_threads(1)
    log_as_json_lines(logging.ERROR)
    extent = _Extent(
        losses=report.times(10, quick=1),
        rounds=report.times(8, quick=1),
        batches=NODES if quick else 2 * NODES,
        steps=QUICK_STEPS if quick else STEPS,
        pause_s=0.0 if quick else RESTART_PAUSE_S,  # one kill is never too many
    )
    report.add(run(_measure(extent)))
    report.finish()


if __name__ == "__main__":
    main()
