"""A run on a spot market by formulas, one stretch of time with the same nodes after another: how
much is done by when, and what it costs.

Pure. A system has a pace for each number of spot nodes. A node is billed from its start, and works
once it has booted and loaded the model. What a loss or a newcomer costs a system is its `Recovery`.
Nothing else is modelled: a node is as fast as any other, and works from one moment to the next.
"""

from __future__ import annotations

import heapq
import math
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import groupby

import msgspec

from spotlight.errors import JobError
from spotlight.jobs import JobSpec
from spotlight.policies.exploration.choice_worth import EDGES, ENOUGH, ChoiceWorth, Growth
from spotlight.policies.spot_time import GradientWork, SpotWork, plan_spot_time
from spotlight_simulation.market.schedule import Prices, Schedule, Stay
from spotlight_simulation.market.trace import NOTICE_S
from spotlight_simulation.profile import Profile

BOOT_S = 300.0
"""A node runs a program so long after its start; an assumption, since no trace tells it. [s]"""

BESIDE_A_PREVIEW = 1.05
"""A spot worker's time for each preview over the time that denoising takes, with its score and the
way to it: 1.05 in the kept runs of `benchmarks.exploration` with four and eight spot GPUs."""


GAIN_OF_TWO = 1.93
"""How many times as much a sample teaches that is the better of two previews: on the OCR example,
by the rewards of `benchmarks.choice_worth`. What more are worth is what a run expects that has not
seen more."""


class Pace(msgspec.Struct, frozen=True):
    """How fast a system goes with some number of spot nodes."""

    iteration_s: float
    """The time of an iteration. [s]"""
    worth: float = 1.0
    """How much an iteration does, of whatever is counted: of a run with all nodes, 1."""
    previews: float = 0.0
    """How many previews there are for each sample."""

    @property
    def rate(self) -> float:
        """How much is done in a second."""
        return self.worth / self.iteration_s


class Recovery(msgspec.Struct, frozen=True, kw_only=True):
    """What the changes of its nodes cost a system. Changes at the same moment cost as one."""

    ready_s: float
    """A node works so long after its start. [s]"""
    stop_at_loss_s: float = 0.0
    """Nobody works for so long after a loss. [s]"""
    stop_at_join_s: float = 0.0
    """Nobody works for so long after a newcomer is ready. [s]"""
    again_at_loss_s: float = 0.0
    """The work of all that is made again after a loss, at most that since the last change. [s]"""
    again_at_join_s: float = 0.0
    """The work of all that is made again after a newcomer, at most that since the last one. [s]"""
    partners: int = 0
    """How many other nodes start anew as well when one is lost, while the rest goes on."""
    partners_away_s: float = 0.0
    """How long these do not work. [s]"""
    checkpoint_s: float = 0.0
    """How long all stop to write a checkpoint; 0: nothing is written. [s]"""
    checkpoint_every_s: float = math.inf
    """The time between two checkpoints. [s]"""

    @property
    def working_share(self) -> float:
        """The share of the time that is left beside checkpoints."""
        if not self.checkpoint_s:
            return 1.0
        return self.checkpoint_every_s / (self.checkpoint_every_s + self.checkpoint_s)


class System(msgspec.Struct, frozen=True, kw_only=True):
    """A way to train, on reserved GPUs and perhaps on the nodes of a spot market."""

    name: str
    """The name by which results have it."""
    reserved_gpus: int
    """How many GPUs stay all the time, at the reserved price."""
    paces: tuple[Pace, ...]
    """The pace with no spot node, with one, and so on; with more than the last as with that."""
    recovery: Recovery
    """The cost of changes."""
    gpus_of_node: int = 2
    """The number of GPUs that a spot node has."""
    uses_spot: bool = True
    """Whether it has spot nodes at all; without them it neither pays nor waits for any."""


class Market:
    """A schedule that many runs are on: when its nodes work, and how long they have been billed."""

    def __init__(self, schedule: Schedule) -> None:
        """Of any schedule; works it out once for all runs."""
        self.schedule = schedule
        self._billed: list[tuple[float, float, int]] = []
        """Moments, the node-seconds billed until then, and the nodes from then on."""
        self._changes: dict[tuple[float, int, float], list[tuple[float, int]]] = {}
        total = last_s = 0.0
        nodes = 0
        steps = [(stay.from_s, 1) for stay in schedule.stays]
        steps += [(stay.until_s, -1) for stay in schedule.stays]
        for at_s, by in sorted(steps):
            total += nodes * (at_s - last_s)
            nodes, last_s = nodes + by, at_s
            self._billed.append((at_s, total, nodes))

    def node_s(self, seconds: float) -> float:
        """The seconds of all nodes that are billed until then."""
        index = bisect_right(self._billed, (seconds, math.inf))
        if not index:
            return 0.0
        at_s, total, nodes = self._billed[index - 1]
        return total + nodes * (seconds - at_s)

    def changes(self, recovery: Recovery) -> list[tuple[float, int]]:
        """When nodes begin and end to work, and by how many. A
        partner of a lost node is as one that ends and comes back, but nobody else stops for it."""
        key = recovery.ready_s, recovery.partners, recovery.partners_away_s
        if key not in self._changes:
            self._changes[key] = self._worked_out(*key)
        return self._changes[key]

    def _worked_out(self, ready_s: float, partners: int, away_s: float) -> list[tuple[float, int]]:
        found = []
        for stay in self.schedule.stays:
            if stay.from_s + ready_s < stay.until_s:
                found += [(stay.from_s + ready_s, 1), (stay.until_s, -1)]
                if partners and stay.is_taken:
                    found += [(stay.until_s, -partners), (stay.until_s + away_s, partners)]
        return sorted(found)


class Course(msgspec.Struct, frozen=True):
    """How a run went."""

    system: System
    """Whose run it was."""
    market: Market
    """The market that it was on."""
    points: tuple[tuple[float, float], ...]
    """Seconds and what is done by then, with straight lines between them. Work that is lost takes
    some of it back."""

    def seconds_to(self, done: float) -> float | None:
        """When so much is done for the first time; None if it never is. [s]"""
        return self.seconds_to_each([done])[0]

    def seconds_to_each(self, amounts: Sequence[float]) -> list[float | None]:
        """The same for many amounts, in one go."""
        found: list[float | None] = [None] * len(amounts)
        waiting = sorted(range(len(amounts)), key=lambda index: -amounts[index])
        before_s = low = 0.0
        for at_s, done in self.points:
            while waiting and amounts[waiting[-1]] <= done:
                wanted = amounts[waiting[-1]]
                share = (wanted - low) / (done - low) if done > low else 0.0
                found[waiting.pop()] = before_s + (at_s - before_s) * max(0.0, share)
            before_s, low = at_s, done
        return found

    def done_at(self, seconds: float) -> float:
        """How much is done by then, at most what was at the end."""
        index = bisect_right(self.points, (seconds, math.inf))
        if index == len(self.points):
            return self.points[-1][1]
        (before_s, low), (after_s, high) = self.points[index - 1], self.points[index]
        return low + (high - low) * (seconds - before_s) / (after_s - before_s)

    def spot_gpu_s(self, seconds: float) -> float:
        """The seconds of spot GPUs that are billed until then."""
        nodes = self.market.node_s(seconds) if self.system.uses_spot else 0.0
        return nodes * self.system.gpus_of_node

    def cost(self, seconds: float, prices: Prices) -> float:
        """What all GPUs cost until then, in the currency of the prices."""
        reserved = self.system.reserved_gpus * seconds * prices.reserved_per_gpu_hour
        return (reserved + self.spot_gpu_s(seconds) * prices.spot_per_gpu_hour) / 3600

    def seconds_for(self, money: float, prices: Prices) -> float:
        """When so much is paid, or the end of the run. [s]"""
        low, high = 0.0, self.points[-1][0]
        for _ in range(50):
            middle = (low + high) / 2
            low, high = (middle, high) if self.cost(middle, prices) < money else (low, middle)
        return high


def course(system: System, market: Market, *, until: float = math.inf) -> Course:
    """The run of a system on a market, until so much is done or the schedule ends."""
    run = _Run(system)
    changes = market.changes(system.recovery) if system.uses_spot else []
    for at_s, group in groupby(
        [*changes, (market.schedule.seconds, 0)], key=lambda change: change[0]
    ):
        run.goes_on(min(at_s, market.schedule.seconds))
        if run.done >= until or at_s >= market.schedule.seconds:
            break
        run.changes([by for _, by in group])
    return Course(system, market, tuple(run.points))


class _Run:
    """Where a run is."""

    def __init__(self, system: System) -> None:
        self._system = system
        self._recovery = system.recovery
        self._nodes = 0
        self._at_s = self._stopped_until_s = self._changed_at_s = 0.0
        self.done = 0.0
        self.points = [(0.0, 0.0)]

    def goes_on(self, until_s: float) -> None:
        """With the nodes that it has."""
        from_s = max(self._at_s, min(self._stopped_until_s, until_s))
        if from_s > self._at_s:
            self.points.append((from_s, self.done))
        if until_s > from_s:
            self.done += self._rate * (until_s - from_s)
            self.points.append((until_s, self.done))
        self._at_s = until_s

    def changes(self, by: Sequence[int]) -> None:
        """Nodes are lost, or come, at this moment."""
        cost, is_loss = self._recovery, min(by) < 0
        again_s = cost.again_at_loss_s if is_loss else cost.again_at_join_s
        stop_s = cost.stop_at_loss_s if is_loss else cost.stop_at_join_s
        if again_s and self._at_s > 0:
            worked_s = self._at_s - max(self._changed_at_s, 0.0)
            self.done -= self._rate * max(0.0, min(again_s, worked_s))
            self.points.append((self._at_s, self.done))
        if stop_s and self._at_s > 0:
            self._stopped_until_s = max(self._stopped_until_s, self._at_s + stop_s)
        self._changed_at_s = max(self._at_s, self._stopped_until_s)
        self._nodes += sum(by)

    @property
    def _rate(self) -> float:
        paces = self._system.paces
        at_work = max(0, min(self._nodes, len(paces) - 1))
        return paces[at_work].rate * self._recovery.working_share


def unrolled(
    schedule: Schedule, *, start_s: float, seconds: float, notice_s: float = NOTICE_S
) -> Schedule:
    """A stretch that begins at some moment of a schedule, which is repeated as often as is needed.
    Nodes that are there at its beginning start then. Where one round follows the other, nodes that
    nobody took stay, as many as the next one begins with; the others are taken, with this
    notice."""
    stays: list[Stay] = []
    for stay in _endless(schedule, start_s + seconds, notice_s):
        if stay.until_s > start_s and stay.from_s < start_s + seconds:
            until_s = min(stay.until_s - start_s, seconds)
            stays.append(
                msgspec.structs.replace(
                    stay,
                    from_s=max(0.0, stay.from_s - start_s),
                    until_s=until_s,
                    is_taken=stay.is_taken and stay.until_s - start_s < seconds,
                )
            )
    stays.sort(key=lambda stay: stay.from_s)
    return msgspec.structs.replace(schedule, seconds=seconds, stays=tuple(stays))


def _endless(schedule: Schedule, until_s: float, notice_s: float) -> Iterator[Stay]:
    """The stays of as many rounds as it takes, those joined that go on in the next one."""
    staying: list[Stay] = []
    for number in range(math.ceil(until_s / schedule.seconds)):
        begins_s = number * schedule.seconds
        last, staying = staying, []
        for stay in schedule.stays:
            goes_on = not stay.is_taken and stay.until_s >= schedule.seconds
            moved = msgspec.structs.replace(
                stay,
                node=f"{stay.node}-{number}",
                from_s=begins_s + stay.from_s,
                until_s=begins_s + stay.until_s,
            )
            if last and stay.from_s == 0:
                before = last.pop()
                moved = msgspec.structs.replace(moved, node=before.node, from_s=before.from_s)
            if goes_on:
                staying.append(moved)
            else:
                yield moved
        for stay in last:
            yield msgspec.structs.replace(stay, is_taken=True, notice_s=notice_s)
    yield from staying


def job_paces(job: JobSpec, profile: Profile, nodes: int) -> tuple[Pace, ...]:
    """The paces of a job, with no spot node up to `nodes`, in iterations (`worth` is 1).

    Previews are made by spot workers, and by reserved ones that have no rank, while the others
    train, as many as there is time for and as the job allows. Where the plan of spot time finds
    more worth it, training waits for them, and all make them. A job that does not train on its
    previews rolls out its samples with new weights besides. A run learns of its own scores what a
    choice is worth; here it is `GAIN_OF_TWO`.

    Raises `JobError` for a job with settings that these formulas are not of.
    """
    _check(job)
    reserved, spot = job.pools.reserved, job.pools.spot
    idle = reserved.nodes * reserved.workers - job.training.ranks
    return tuple(_pace(job, profile, idle + count * spot.workers) for count in range(nodes + 1))


def _pace(job: JobSpec, profile: Profile, workers: int) -> Pace:
    times, samples, trainers = profile.times(job), job.samples_per_iteration, job.training.ranks
    step_s = times.step_s / job.sampler.micro_batch * BESIDE_A_PREVIEW
    train_s = samples * times.train_sample_s
    sample_s, preview_s = job.sampler.steps * step_s, job.preview_steps * step_s
    previews = waits_s = 0.0
    if job.exploration.mode != "none":
        previews = min(job.exploration.candidates, workers * train_s / (samples * preview_s))
        plan = plan_spot_time(_spot_work(job, train_s, sample_s, preview_s, workers))
        if plan.waited_for > previews:
            previews, batch = plan.waited_for, job.sampler.micro_batch
            batches = round(previews * samples / batch)
            free_at = [0.0] * workers + [train_s] * trainers
            waits_s = _last_at(batches, batch * preview_s, free_at) - train_s + times.score_s
    if job.trains_on_previews:
        return Pace(train_s + waits_s, previews=previews)
    rollout_s = math.ceil(samples / (workers + trainers)) * sample_s + times.score_s
    return Pace(train_s + waits_s + rollout_s + profile.publication_s, previews=previews)


def _last_at(count: int, seconds: float, free_at: Sequence[float]) -> float:
    """When the last of so many batches is made, each by whoever is free first, from these times."""
    ends = list(free_at)
    heapq.heapify(ends)
    last = 0.0
    for _ in range(count):
        last = heapq.heappop(ends) + seconds
        heapq.heappush(ends, last)
    return last


def _spot_work(
    job: JobSpec, train_s: float, sample_s: float, preview_s: float, workers: int
) -> SpotWork:
    updates = job.training.updates_per_iteration
    return SpotWork(
        gradients=GradientWork(
            ranks=job.training.ranks,
            updates=updates,
            slices=1,
            rank_slice_s=train_s / updates,
            worker_slice_s=None,
            gradient_bytes=0,
            weights_bytes=0,
            up_bytes_per_s=None,
            down_bytes_per_s=None,
            may_be_given_away=False,
        ),
        spot_workers=workers,
        samples=job.samples_per_iteration,
        samples_from="previews" if job.trains_on_previews else "regenerated",
        preview_s=preview_s,
        finish_s=0.0 if job.trains_on_previews else sample_s,
        most_previews=job.exploration.candidates,
        gain=_gain,
    )


def _gain(previews: float) -> float:
    seen = Growth(scores=ENOUGH, looked=math.log(2), gained=GAIN_OF_TWO - 1)
    reach = sum(high <= 2 for high in EDGES[1:])
    return ChoiceWorth((seen,) * reach).curve()(previews)


def _check(job: JobSpec) -> None:
    """Raises `JobError` for what makes an iteration another one than `job_paces` has."""
    asked = job.exploration
    explores = asked.mode != "none"
    unlike = {
        "exploration.budget": explores and asked.budget == "fixed",
        "exploration.finish": explores and asked.finish == "previous",
        "training.slices": job.training.slices > 1,
    }
    for field, is_unlike in unlike.items():
        if is_unlike:
            raise JobError(
                field,
                "the model has no formula for this setting; replay the job with the real"
                " coordinator (`--depth actors`), or leave the setting out",
            )
