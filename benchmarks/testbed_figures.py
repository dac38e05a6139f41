"""What a run on the virtual test-bed came to, from its run folder alone."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from spotlight.record.run_events import PhaseBegan, WeightsPublished
from spotlight.record.run_metrics import IterationMetrics
from spotlight.report.metrics import summarise
from spotlight.report.run_reading import RunHistory, read_run
from spotlight.report.worker_seconds import Interval, Worker, WorkerStates

_NOTHING_S = 0.5
"""A rollout that begins so soon after the publication of its weights was not delayed."""


class Validated(msgspec.Struct, frozen=True):
    """The score of a weights version, and when it was published, in seconds since the job's
    start."""

    time_s: float
    version: int
    score: float


class Totals(msgspec.Struct, frozen=True, kw_only=True):
    """Of a whole run; times in seconds."""

    virtual_s: float
    """Virtual seconds from the job's start to the publication of the last weights."""
    real_s: float
    """Seconds that the simulation took."""
    rollout_s: float
    """Mean, of an iteration."""
    train_s: float
    publish_s: float
    """Mean, from the end of training until nodes could pull the new weights."""
    delay_s: float
    """All the time in which weights were published but their rollout had not begun."""
    delayed: int
    """Iterations of which that is true for half a second or more."""
    spot_idle_share: float
    """The idle share of the spot workers' time while the reserved ones trained; the last training
    apart, beside which nothing is left to explore."""
    previews: int
    previews_late: int
    steps: int
    """Denoising steps of single images."""
    pools: dict[str, dict[str, float]]
    """GPU-seconds by pool and state."""


class TestbedRun(msgspec.Struct, frozen=True):
    """See the module's docstring."""

    job: str
    validation: tuple[Validated, ...]
    iterations: tuple[IterationMetrics, ...]
    totals: Totals


def measure(folder: Path, scores: Mapping[int, float], *, steps: int, real_s: float) -> TestbedRun:
    """Read the folder of a run that is over; raises `RunFolderError` if it is damaged.

    Args:
        scores: of validation, by weights version; those that were never published do not count.
    """
    record = read_run(folder)
    published = {event.version: event.time_s for event in record.events_of(WeightsPublished)}
    delays = [  # with reuse, an iteration begins before its weights are published
        max(0.0, start.time_s - published[start.iteration])
        for start in record.phases
        if start.phase == "rollout" and start.iteration in published
    ]
    summary = summarise(record)
    trainings = [(start, end) for phase, start, end in _spans(record) if phase.phase == "train"]
    return TestbedRun(
        summary["job"],
        tuple(
            Validated(published[version], version, score)
            for version, score in sorted(scores.items())
            if version in published
        ),
        record.iterations,
        Totals(
            virtual_s=max(published.values()),
            real_s=round(real_s, 1),
            rollout_s=_mean([each.rollout_s or 0.0 for each in record.iterations]),
            train_s=_mean([each.train_s or 0.0 for each in record.iterations]),
            publish_s=_mean(
                [
                    published[start.iteration] - start.time_s
                    for start in record.phases
                    if start.phase == "publish" and start.iteration in published
                ]
            ),
            delay_s=round(sum(delays), 3),
            delayed=sum(delay >= _NOTHING_S for delay in delays),
            spot_idle_share=idle_share(WorkerStates(record), trainings[:-1]),
            previews=summary["previews"],
            previews_late=summary["previews_late"],
            steps=steps,
            pools={pool: times["states"] for pool, times in summary["pools"].items()},
        ),
    )


def _spans(record: RunHistory) -> Iterator[tuple[PhaseBegan, float, float]]:
    """Phases with beginning and end."""
    ends = [*(phase.time_s for phase in record.phases[1:]), record.run_seconds]
    for phase, end in zip(record.phases, ends, strict=True):
        yield phase, phase.time_s, end


def idle_share(
    states: Iterable[tuple[Worker, Interval]], spans: Sequence[tuple[float, float]]
) -> float:
    """Of spot workers, in these spans of time."""
    idle = present = 0.0
    for worker, state in states:
        for begin, end in spans if worker.pool == "spot" else ():
            seconds = max(0.0, min(end, state.end) - max(begin, state.start))
            present += seconds
            idle += seconds if state.state == "idle" else 0.0
    return round(idle / present, 4) if present else 0.0


def _mean(values: Sequence[float]) -> float:
    return round(sum(values) / len(values), 3) if values else 0.0
