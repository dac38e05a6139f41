"""How long an iteration takes on any number of GPUs, by formulas, so that a run which was made once
can be timed again on other hardware.

Pure. What a run trains on, and so its scores by weights version, does not depend on how long things
take as long as it has the same samples and previews; and an update has the same bits whoever
computes the slices of its gradient. For rivals that the test-bed has simulated, these clocks agree
with it within 3 % (`tests/benchmarks/exploration/test_clocks.py`).

What nobody has measured on real clusters is assumed:
- A slice of a gradient is one row, a sample at one flow time, which is the finest that there is.
- What the profile says of the bytes of weights and gradients, and of links: the simulated cluster
  has the same. With full weights, no spot GPU could help in time.
- A spot node is lost `LOSSES_AN_HOUR` times, and another one comes at once. GPUs that train
  together as one group stop for the loss and for the newcomer, load again each time, and repeat
  half of an iteration on average. Work by pull loses a preview or a slice, and the time to load.
- Rows are divided evenly among the GPUs of a group that trains together, however many these are.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Sequence

import msgspec

from spotlight.jobs import JobSpec
from spotlight_simulation.profile import Profile

LOSSES_AN_HOUR = 0.16
"""How often each spot node is lost; a guess, since clouds tell no rate."""
GPUS_OF_NODE = 2


class Fleet(msgspec.Struct, frozen=True):
    """The GPUs of a job."""

    reserved: int
    spot: int

    @property
    def gpus(self) -> int:
        """All of them."""
        return self.reserved + self.spot


class Work(msgspec.Struct, frozen=True, kw_only=True):
    """What there is to do in an iteration; times are seconds of one GPU."""

    denoised: float
    """Samples or previews, of which a GPU makes one at a time."""
    is_window: bool
    """They are previews that are made whenever there is time: the last ones of an iteration may be
    those that the next one begins with, and none of them is waited for by itself."""
    denoise_s: float
    """To make one."""
    finished: int = 0
    """Samples that are denoised in full after all these, as previews of few steps have chosen."""
    finish_s: float = 0.0
    """To denoise one of them."""
    rows: int
    """The rows of an update."""
    row_s: float
    """To train on one."""
    updates: int
    score_s: float
    """To score the last of what is denoised."""
    publish_s: float
    load_s: float
    weights_s: float
    """The time from an update until a spot GPU has its weights."""
    gradient_s: float
    """To bring a gradient back."""
    taken_s: float
    """The time from one gradient to the next where the link of the ranks brings nothing else."""

    @property
    def train_s(self) -> float:
        """Of all updates."""
        return self.updates * self.rows * self.row_s


Clock = Callable[[Work, Fleet], float]
"""Seconds of an iteration."""


def work_of(job: JobSpec, profile: Profile, previews: float) -> Work:
    """An iteration of a job; `previews` is how many there were in one, and counts only where the
    job says no number.
    """
    times = profile.times(job)
    updates, samples = job.training.updates_per_iteration, job.samples_per_iteration
    explores, is_fixed = job.exploration.mode != "none", job.exploration.budget == "fixed"
    fixed = samples * (job.exploration.candidates if explores else 1)
    step_s = times.step_s / job.sampler.micro_batch
    return Work(
        denoised=previews if explores and not is_fixed else fixed,
        is_window=explores and not is_fixed,
        denoise_s=step_s * (job.preview_steps if explores else job.sampler.steps),
        finished=samples if job.exploration.finish == "previous" else 0,
        finish_s=step_s * job.sampler.steps,
        rows=samples * times.rows_of_sample // updates,
        row_s=profile.train_s * profile.gpus / profile.rows,
        updates=updates,
        score_s=profile.score_s,
        publish_s=profile.publication_s,
        load_s=profile.load_s,
        weights_s=profile.lending.weights_s(profile.gpus),
        gradient_s=profile.lending.copy_s,
        taken_s=profile.lending.adapter_bytes / profile.lending.link_bytes_per_s,
    )


def in_turn(work: Work, fleet: Fleet) -> float:
    """All GPUs denoise with the newest weights, then all train."""
    return (
        denoised_at(work, [0.0] * fleet.gpus)
        + work.score_s
        + work.train_s / fleet.gpus
        + work.publish_s
    )


def spot_waits(work: Work, fleet: Fleet) -> float:
    """All GPUs denoise with the newest weights, then the reserved ones train."""
    return (
        denoised_at(work, [0.0] * fleet.gpus)
        + work.score_s
        + work.train_s / fleet.reserved
        + work.publish_s
    )


def in_turn_with_previous_weights(work: Work, fleet: Fleet) -> float:
    """All GPUs train, then all denoise with the weights from before, while these are published."""
    return denoised_at(work, [0.0] * fleet.gpus) + work.train_s / fleet.gpus


def beside(work: Work, fleet: Fleet) -> float:
    """Spot GPUs denoise with the previous weights while the reserved ones train, and these help
    once they have."""
    return with_helpers(work, fleet, 0)


def elastic(work: Work, fleet: Fleet) -> float:
    """The same, and so many spot GPUs compute gradients first as is best."""
    return min(with_helpers(work, fleet, helpers) for helpers in range(fleet.spot + 1))


def with_helpers(work: Work, fleet: Fleet, helpers: int) -> float:
    """The same, and `helpers` of the spot GPUs compute gradients until all updates are made."""
    trained = 0.0
    for _ in range(work.updates):
        trained += update_s(work, fleet.reserved, helpers)
    others = fleet.spot - helpers
    made = denoised_at(work, [0.0] * others + [trained] * (fleet.reserved + helpers))
    if made <= trained:
        return trained
    return made if work.is_window else made + work.score_s


def update_s(work: Work, ranks: int, helpers: int) -> float:
    """Until the gradients of all rows are there, each of which goes to whoever has it there first.
    Helpers begin when the weights have come, and what they have computed has to go back, one after
    the other over the link of the ranks."""
    first_s = work.weights_s + work.row_s + work.gradient_s
    ends = [(work.row_s, work.row_s, False)] * ranks + [(first_s, first_s, True)] * helpers
    heapq.heapify(ends)
    counted, last, link_free_at = 0, 0.0, 0.0
    while counted < work.rows:
        there_at, sent_by, over_link = heapq.heappop(ends)
        if over_link and there_at < link_free_at:
            heapq.heappush(ends, (link_free_at, sent_by, over_link))
            continue
        counted, last = counted + 1, there_at
        if over_link:
            link_free_at = there_at + work.taken_s
        heapq.heappush(ends, (sent_by + work.row_s, sent_by + work.row_s, over_link))
    return last


def denoised_at(work: Work, free_at: Sequence[float]) -> float:
    """When all is denoised by GPUs that are free from these times on."""
    if work.is_window:
        return _filled_at(work.denoised * work.denoise_s, sorted(free_at))
    last, free_at = _whole(round(work.denoised), work.denoise_s, free_at)
    if not work.finished:
        return last
    scored = last + work.score_s
    last, _ = _whole(work.finished, work.finish_s, [max(at, scored) for at in free_at])
    return last


def _whole(count: int, seconds: float, free_at: Sequence[float]) -> tuple[float, list[float]]:
    """When the last of so many is done, each by one GPU, and when the GPUs are free again."""
    ends = [at + seconds for at in free_at]
    heapq.heapify(ends)
    last = 0.0
    for _ in range(count):
        last = heapq.heappop(ends)
        heapq.heappush(ends, last + seconds)
    return last, [end - seconds for end in ends]


def _filled_at(seconds: float, free_at: Sequence[float]) -> float:
    """When GPUs that are free from these times on, in order, have spent so many seconds."""
    for count in range(1, len(free_at) + 1):
        end = (seconds + sum(free_at[:count])) / count
        if count == len(free_at) or end <= free_at[count]:
            break
    return end


def in_one_group(clock: Clock) -> Clock:
    """The same on spot GPUs that train together: a loss stops all of them, and so does whoever
    comes instead."""

    def longer(work: Work, fleet: Fleet) -> float:
        iteration_s = clock(work, fleet)
        return iteration_s / (1 - _lost(fleet.spot, 2 * work.load_s + iteration_s / 2))

    return longer


def by_pull(clock: Clock) -> Clock:
    """The same with spot GPUs that take work one by one: a loss costs a node what it was at."""

    def longer(work: Work, fleet: Fleet) -> float:
        at_work = max(work.denoise_s, work.row_s) / 2 + work.load_s
        share = _lost(GPUS_OF_NODE, at_work) * fleet.spot / fleet.gpus
        return clock(work, fleet) / (1 - share)

    return longer


def on_slower_link(clock: Clock, factor: float) -> Clock:
    """The same where all that goes over links takes so many times as long."""

    def longer(work: Work, fleet: Fleet) -> float:
        names = ("weights_s", "gradient_s", "taken_s")
        slower = {name: factor * getattr(work, name) for name in names}
        return clock(msgspec.structs.replace(work, **slower), fleet)

    return longer


def _lost(spot_gpus: int, seconds: float) -> float:
    """The share of time that is lost where each loss of a node costs so many seconds."""
    nodes = math.ceil(spot_gpus / GPUS_OF_NODE)
    return nodes * LOSSES_AN_HOUR * seconds / 3600
