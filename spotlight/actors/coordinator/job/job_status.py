"""What a user is told of a job while it runs."""

from __future__ import annotations

from collections.abc import Iterator

from spotlight.actors.coordinator.job.job_parts import JobParts
from spotlight.actors.protocol import JobStatus
from spotlight.policies.fleet.fleet_rows import describe
from spotlight.trackers import CallbackThread

_STATUS_LINES_PER_S = 2000
_LONGEST_ERROR = 300
"""Characters."""


def status_of(parts: JobParts, completed: int, dead_letters: int) -> JobStatus:
    """How the job is after so many iterations."""
    phase, metrics, run = parts.phase, parts.progress.metrics, parts.record.run
    previews, previews_late = parts.progress.previews
    rollout = parts.rollouts.rollout
    rolls_out = phase.name == "rollout"
    made = rollout.finished - rollout.restored - metrics.samples_reused
    seconds = phase.seconds if rolls_out else metrics.rollout_s
    return JobStatus(
        job=parts.job.name,
        phase=phase.name,
        iteration=completed,
        iterations=parts.job.iterations,
        weights_version=parts.publications.newest,
        elapsed_s=run.time_s(),
        done=rollout.finished if rolls_out else 0,
        wanted=parts.job.samples_per_iteration if rolls_out else 0,
        images_per_s=made / seconds if seconds else 0.0,
        reward_mean=metrics.reward_mean if metrics.samples else None,
        validation=tuple((one.time_s, one.score) for one in run.validations),
        workers=parts.membership.statuses(),
        previews=previews,
        previews_late=previews_late,
        reissued=run.tally.reissued,
        late_results=run.tally.late_results,
        discarded=parts.rollouts.discarded,
        quarantined=tuple(run.tally.quarantined),
        preemptions=run.tally.preemptions,
        dead_letters=dead_letters,
        outcome=phase.outcome,
        reason=phase.reason,
        run_folder=str(run.path),
        note=parts.watch.note(),
        mirror=parts.mirroring.status,
        troubles=(*_of_trackers(parts.callbacks), *map(describe, parts.roster.troubles())),
    )


def _of_trackers(callbacks: CallbackThread) -> Iterator[str]:
    """A line for each tracker that has failed, the same as long as its error is."""
    for trouble in callbacks.troubles():
        if trouble.failures:
            error = " ".join(trouble.error.split())
            yield f"tracker {trouble.callback} failed: {error[:_LONGEST_ERROR]}"


def status_pause_s(lines: int, period_s: float) -> float:
    """Seconds between two statuses of so many workers and validations: the more it says, the less
    often it is said; never more than once in `period_s`.
    """
    return max(period_s, lines / _STATUS_LINES_PER_S)
