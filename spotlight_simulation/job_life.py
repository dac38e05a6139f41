"""A job on a simulated cluster, and the user who wants it done: who submits it, looks at it, and
resumes it when it has failed."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from spotlight.actors.protocol.users import JobAccepted, JobStatus, JobUnknown, SubmitJob
from spotlight.errors import ActorError
from spotlight.jobs import JobSpec, job_from_data
from spotlight_simulation.cluster_watch import ClusterWatch
from spotlight_simulation.faults import Fault
from spotlight_simulation.history import History
from spotlight_simulation.memory_cluster import Cluster
from spotlight_simulation.processes import NodeSpec
from spotlight_simulation.simulated_user import look_at

_POLL_S = 1.0
_LIVENESS_S = 900.0
"""A job ends within this time of the last fault."""
_LONGEST_PAUSE_S = 60.0
"""A user who has resumed a job in vain looks again ever later."""


class Scenario(msgspec.Struct, frozen=True):
    """What is run for a seed."""

    job: JobSpec
    nodes: tuple[NodeSpec, ...]
    faults: tuple[Fault, ...]
    exact_training: bool
    weight: float = 1.0
    priority: int = 0


def chaos_job(
    folder: Path,
    *,
    degree: int | str = "auto",
    ranks: int = 1,
    sharded: bool = False,
    updates: int = 1,
    slices: int = 1,
    **changes: object,
) -> JobSpec:
    """A small job whose prompts are in the folder."""
    for name, first, count in (("train", 1000, 4), ("validation", 2000, 2)):
        lines = "".join(f'the number "{first + number}"\n' for number in range(count))
        (folder / f"{name}.txt").write_text(lines)
    return job_from_data(
        {
            "name": "chaos",
            "model": {"checkpoint": "builtin:ocr-tiny"},
            "prompts": {
                "train": str(folder / "train.txt"),
                "validation": str(folder / "validation.txt"),
                "per_iteration": 2,
            },
            "sampler": {
                "height": 32,
                "width": 64,
                "steps": 8,
                "micro_batch": 4,
                "degree": degree,
            },
            "iterations": 3,
            "group_size": 4,
            "checkpoint_every": 1,
            "training": {
                "updates_per_iteration": updates,
                "slices": slices,
                "rollout_decay": 0.5,
                "advantage_clip": 5.0,  # cuts none of four, so that all are in proportion
                "ranks": ranks,
                "sharded": sharded,
            },
            "pools": {"reserved": {"nodes": 1, "workers": ranks}},
            "exploration": {"candidates": 2, "budget": "fixed"},
            "rewards": [{"noisy": True}],  # with reuse, previews have two rewards and samples one
            "validation": {"seeds": 2, "every": 2},
            **changes,
        }
    )


def finishes_seeds(rng: random.Random) -> dict[str, object]:
    """The exploration of a job whose kept seeds are finished with the weights of their previews.
    Here these foretell nothing: after many probes it is known."""
    return {"finish": "previous", "preview_steps": 3, "probes": rng.choice([2, 8])}


@dataclass
class Run:
    """A seed while it runs, and what is left of it for the invariants."""

    scenario: Scenario
    cluster: Cluster
    folder: Path
    asked_as: str = ""
    """How its user names it when he asks for it; empty for the only job."""
    status: JobStatus | None = None
    outcomes: list[tuple[str, str]] = field(default_factory=list)
    """How the job ended each time, with the reason."""
    job_id: str = ""
    """Its id, once it is in the queue."""
    undisturbed: tuple[str, ...] = ()
    """The weights that every iteration leaves without faults; there if training is exact."""

    @property
    def run_folder(self) -> Path:
        """Of the job."""
        return self.folder / "runs" / f"{self.scenario.job.name}-001"

    @property
    def history(self) -> History:
        """What happened."""
        return self.cluster.history


async def have_it_done(run: Run, watch: ClusterWatch) -> None:
    """As a user would: submit the job, look at it, resume it when it failed; and watch the cluster
    meanwhile."""
    loop, pause_s = asyncio.get_running_loop(), _POLL_S
    last = last_fault_s(run)
    while loop.time() < last + _LIVENESS_S:
        await asyncio.sleep(pause_s)
        watch.look()
        if run.history.violations:
            return  # what follows may be endless, and says nothing new
        status = await look_at(run.cluster, run.asked_as)
        if status is None:
            continue
        if isinstance(status, JobUnknown) or not status.job:
            if run.job_id:
                run.history.violation(f"{run.job_id} was accepted, and is not in the queue")
            await _submit(run)
            continue
        run.status = status
        run.job_id = run.job_id or status.id  # the answer to its submission may have been lost
        if status.outcome == "finished":
            run.outcomes.append(("finished", ""))
            return
        if status.outcome:
            run.outcomes.append((status.outcome, _without_path(run, status.reason)))
            run.history.add("job_ended", outcome=status.outcome, reason=run.outcomes[-1][1])
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
            await _submit(run)
    run.history.violation(f"the job did not end; at the end it was {_phase(run.status)}")


def last_fault_s(run: Run) -> float:
    """When it is over."""
    return max((fault.at_s + fault.lasts_s for fault in run.scenario.faults), default=0.0)


async def _submit(run: Run) -> None:
    resume = (run.run_folder / "config.yaml").exists()
    made = run.scenario
    message = SubmitJob(made.job, str(run.run_folder), resume, made.weight, made.priority)
    try:
        answer = await run.cluster.user().ask(
            run.cluster.coordinator_actor(), message, timeout_s=5.0
        )
    except ActorError as error:
        run.history.add("not_submitted", resume=resume, error=type(error).__name__)
        return
    if isinstance(answer, JobAccepted):
        run.job_id = answer.job_id
        run.history.add("submitted", resume=resume, job=answer.job_id)
    else:
        reason = _without_path(run, getattr(answer, "reason", ""))
        run.history.add("refused", resume=resume, reason=reason)


def _phase(status: JobStatus | None) -> str:
    if status is None:
        return "never seen"
    return f"in {status.phase} of iteration {status.iteration} ({status.outcome} {status.reason})"


def _without_path(run: Run, text: str) -> str:
    return text.replace(str(run.folder), "FOLDER")
