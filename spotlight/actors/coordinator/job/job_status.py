"""What a user is told of a job while it runs."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from spotlight.actors.protocol.users import JobStatus
from spotlight.policies import alerts
from spotlight.policies.fleet.fleet_rows import describe
from spotlight.report.view_alerts import tracker_alert
from spotlight.trackers import CallbackThread

if TYPE_CHECKING:
    from spotlight.actors.coordinator.job.job_runner import JobRunner


def status_of(job: JobRunner) -> JobStatus:
    """How the job is."""
    phase, metrics, run = job.phase, job.progress.metrics, job.record.run
    previews, previews_late = job.progress.previews
    rollout = job.rollouts.rollout
    rolls_out = phase.name == "rollout"
    measured = metrics if metrics.samples else run.latest
    return JobStatus(
        job=job.spec.name,
        phase=phase.name,
        iteration=job.machine.completed,
        iterations=job.spec.iterations,
        weights_version=job.publications.newest,
        elapsed_s=run.time_s(),
        done=rollout.finished if rolls_out else 0,
        wanted=job.spec.samples_per_iteration if rolls_out else 0,
        images_per_s=_pace(job),
        reward_mean=measured.reward_mean if measured is not None else None,
        validation=tuple((one.time_s, one.score) for one in run.validations),
        workers=job.membership.statuses(),
        previews=previews,
        previews_late=previews_late,
        handed_on=run.tally.handed_on,
        results_ignored=run.tally.results_ignored,
        given_up=tuple(run.tally.given_up),
        preemptions=run.tally.preemptions,
        outcome=phase.outcome,
        reason=phase.reason,
        run_folder=str(run.path),
        note="" if phase.outcome else job.team.note(),
        mirror=job.mirroring.status,
        spent=job.money.spent,
        currency=job.money.prices.currency,
        price_sources=(*job.money.prices.sources(), *job.money.prices.remarks()),
        troubles=(
            *_of_trackers(job.callbacks),
            *filter(None, (_of_exploration(job), _of_disk(run.path))),
            *job.money.troubles(),
            *map(describe, job.roster.troubles()),
        ),
    )


def _pace(job: JobRunner) -> float:
    """Images per second of the rollout, or while none is made of the latest that is over."""
    metrics, rollout, latest = job.progress.metrics, job.rollouts.rollout, job.record.run.latest
    seconds = job.phase.seconds if job.phase.name == "rollout" else metrics.rollout_s
    made = rollout.finished - rollout.restored - metrics.samples_reused
    if made and seconds:
        return made / seconds
    return (latest.images_per_s or 0.0) if latest is not None else 0.0


def _of_trackers(callbacks: CallbackThread) -> Iterator[str]:
    """A line for each tracker that has failed, the same as long as its error is."""
    for trouble in callbacks.troubles():
        if trouble.failures:
            yield tracker_alert(trouble.callback, trouble.error)


def _of_exploration(job: JobRunner) -> str:
    if job.spec.exploration.mode == "none":
        return ""
    known = job.progress.exploration
    return alerts.of_exploration(known.share, known.agreement.tau)


def _of_disk(run: Path) -> str:
    try:
        disk = shutil.disk_usage(run)
    except OSError:  # whoever writes there says so
        return ""
    return alerts.of_disk(str(run), disk.free, disk.total)
