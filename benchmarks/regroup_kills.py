"""How long an SP group takes to denoise on after it loses members, or gets one back; for
`benchmarks.regroup`.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise

from benchmarks.regroup_site import WORKERS, GroupSite, Record
from benchmarks.report import Report


@dataclass(frozen=True)
class Regrouping:
    """Milliseconds from the loss of a member, or from the node's knowing that one is ready, to the
    first step that the new group completed, and the parts of them.
    """

    total: float
    detect: float
    """Seconds until the node knows."""
    regroup: float
    """Seconds until rank 0 of the new group can denoise."""
    meet: float
    """Seconds of these that rank 0 takes to connect."""
    weights: float
    """Copying weights into the model of rank 0."""
    first_step: float
    """Seconds from the formed group to its first step, loading of weights included."""
    held_up: float
    """The longest time that the loop of the node and the dispatcher did not turn meanwhile."""


class Trials:
    """Losses, one after the other, and what came after each; by case."""

    def __init__(self, site: GroupSite, rng: random.Random, report: Report) -> None:
        self.site = site
        self.seen: defaultdict[str, list[Regrouping]] = defaultdict(list)
        self.step_s: defaultdict[int, list[float]] = defaultdict(list)
        """Seconds of undisturbed steps, by the members that take them together."""
        self._rng = rng
        self._report = report

    async def kill(self, case: str, victims: Sequence[str], left: int) -> None:
        """SIGKILL members of a group in the middle of its steps; the new group has `left`. Waits
        until all are back.
        """
        site, before = self.site, self.site.epoch
        at = time.monotonic()
        for victim in victims:
            site.kill(victim)
        step = await site.first_step(left, before)
        known = [await site.hear("ended", victim, at) for victim in victims]
        self._note(case, at, known, step)
        await self._come_back("3->4", "ready", victims, at)

    async def stop(self, victim: str, left: int) -> None:
        """SIGSTOP a member, and resume it once the others denoise without it."""
        site, before = self.site, self.site.epoch
        at = time.monotonic()
        site.stop(victim)
        try:
            step = await site.first_step(left, before)
        finally:
            resumed = time.monotonic()
            site.resume(victim)
        self._note("stop", at, [await site.hear("silent", victim, at)], step)
        await self._come_back("resumed", "answers", [victim], resumed)

    async def _come_back(self, case: str, kind: str, victims: Sequence[str], since: float) -> None:
        times = [await self.site.hear(kind, victim, since) for victim in victims]
        at = max(times)
        if self.site.wished == WORKERS:
            epoch = max(record["formed"] for record in self.site.look("formed") if record["t"] < at)
            step = await self.site.first_step(WORKERS, epoch)
            self._note(case, at, [at], step)

    async def settle(self) -> list[tuple[str, ...]]:
        """Wait for whole groups in the middle of their steps."""
        groups = await self.site.settle()
        await asyncio.sleep(self._rng.uniform(0.1, 0.4))
        steps: defaultdict[tuple[int, int], list[float]] = defaultdict(list)
        for record in self.site.look("step"):
            steps[record["members"], record["epoch"]].append(record["t"])
        for (members, _), times in steps.items():
            for before, after in pairwise(times):
                self.step_s[members].append(after - before)
        return groups

    def _note(self, case: str, at: float, known: Sequence[float], step: Record) -> None:
        def of_rank_0(kind: str) -> list[Record]:
            return [it for it in self.site.look(kind) if it["pid"] == step["pid"]]

        formed = next(it for it in of_rank_0("formed") if it["formed"] == step["epoch"])
        met = [it["seconds"] for it in of_rank_0("met") if it["met"] == step["epoch"]]
        loads = [it["loaded_s"] for it in of_rank_0("loaded_s") if at <= it["t"] <= step["t"]]
        # Of two that were killed at once, the first may be enough to know.
        knows = max(t for t in known if t <= formed["t"])
        seconds = (
            step["t"] - at,
            knows - at,
            formed["t"] - knows,
            sum(met),
            sum(loads),
            step["t"] - formed["t"],
            self.site.longest_pause_s(at, step["t"]),
        )
        regrouping = Regrouping(*(1000 * each for each in seconds))
        self.seen[case].append(regrouping)
        self._report.note(f"{case}, number {len(self.seen[case])}: {regrouping.total:.0f} ms")


async def measure(trials: Trials, kills: int, stops: int) -> None:
    """All cases, so often each: any rank is a victim."""
    site = trials.site
    pairs = list(combinations(range(WORKERS), 2))
    site.wish(2)
    for number in range(kills):
        groups = await trials.settle()
        await trials.kill("2->1", [groups[number % 2][number // 2 % 2]], 1)
    site.wish(WORKERS)
    for number in range(kills):
        group = (await trials.settle())[0]
        await trials.kill("4->3", [group[number % WORKERS]], 2)
    for number in range(kills):
        group = (await trials.settle())[0]
        await trials.kill("4->2", [group[rank] for rank in pairs[number % len(pairs)]], 2)
    for number in range(stops):
        group = (await trials.settle())[0]
        await trials.stop(group[number % WORKERS], 2)
