"""One job on "the paper's test-bed", in virtual time with real numerics: four reserved GPUs that
train, on one node, and eight spot GPUs on four nodes.

    python -m benchmarks.virtual_testbed --task ocr --rival uniform --iterations 20 --seed 0 --json

Coordinator, nodes, dispatcher and explorer are the real ones; members are simulated. Every reward
and every update is really computed, in this process; how long each would take on its member is the
profile's word (`benchmarks/profiles/`). Validation is the experimenter's measurement and no part of
the method: it is computed beside the cluster, and takes none of its time.

`--rival` and `--set PATH=VALUE` decide the job; `--preempt TIME:NODE:AWAY` gives a node, `spot-0`
to `spot-3`, 30 s of notice at a virtual time, and brings it back so many seconds after it went.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean

import msgspec

from benchmarks.exploration.rival_jobs import virtual_job
from benchmarks.exploration.rivals import OURS, RIVALS, TASKS
from benchmarks.report import Report
from benchmarks.testbed_figures import TestbedRun, measure
from benchmarks.time_to_target import time_to
from benchmarks.validation_sampler import measured_with
from spotlight.actors.coordinator.tenant.request_plans import evaluation_requests
from spotlight.actors.protocol.users import (
    CancelJob,
    GetStatus,
    JobAccepted,
    JobRefused,
    JobStatus,
    SubmitJob,
)
from spotlight.assets import read_prompt_lines, read_prompts
from spotlight.errors import ActorError, SpotlightError
from spotlight.jobs import JobSpec, ValidationSpec, job_to_yaml, parse_job
from spotlight.permissions import Permissions
from spotlight.timings import CoordinatorTimings, Timings
from spotlight.types import Request
from spotlight_simulation import fingerprints
from spotlight_simulation.chaos import scratch_folder, silence
from spotlight_simulation.fault_injector import FaultInjector
from spotlight_simulation.faults import Fault
from spotlight_simulation.freezing import FreezableLoop
from spotlight_simulation.history import History
from spotlight_simulation.memory_cluster import Cluster
from spotlight_simulation.numerics import Numerics
from spotlight_simulation.processes import NodeSpec
from spotlight_simulation.profile import Profile, load_profile

SOL_RL_SPLIT = Path(__file__).parent / "profiles" / "sol-rl-split.yaml"

QUICK = {"iterations": 2, "validation.seeds": 1, "training.warmup_updates": 0}
"""What `--quick` changes of a job: to see that everything works, and no more."""

_KEEP_STATES = Timings(coordinator=CoordinatorTimings(states_kept_s=1e9))
"""Figures are made of every state of every worker."""
_POLL_S = 5.0
_STALLED_S = 3600.0
"""A job that completes no phase for so long never will."""


class RunFailed(SpotlightError):
    """The job did not finish, or something happened that must not; says what."""


def run_on_testbed(
    job: JobSpec,
    *,
    profile: Profile,
    numerics: Numerics,
    folder: Path,
    faults: Sequence[Fault] = (),
    target: float | None = None,
    limit_s: float | None = None,
) -> TestbedRun:
    """Run a job to its end on a cluster of the nodes that it names, and say what it came to.

    Args:
        numerics: `RealNumerics` of this job; several runs may share it that train alike.
        folder: an empty one, best in memory (`scratch_folder`); the run folder is made in it.
        faults: see `preemption`; their times are virtual seconds since the cluster began to start.
        target: a validation score (see `time_to_target`) at which the job is cancelled.
        limit_s: virtual seconds after which the job is cancelled.

    Raises `RunFailed`, and what the numerics raise.
    """
    reserved, spot = job.pools.reserved, job.pools.spot
    nodes = (
        *(NodeSpec(f"reserved-{n}", "reserved", reserved.workers) for n in range(reserved.nodes)),
        *(NodeSpec(f"spot-{n}", "spot", spot.workers) for n in range(spot.nodes)),
    )
    folder, began = folder.resolve(), time.monotonic()
    validation = _Validation(job, numerics, target)

    async def simulate() -> tuple[Path, int]:
        times = profile.times(job)
        cluster = Cluster(
            job.seed,
            folder,
            nodes,
            times=times,
            numerics=numerics,
            timings=_KEEP_STATES,
            permissions=Permissions.of(job),
        )
        async with cluster:
            disturbing = asyncio.create_task(FaultInjector(cluster, faults).run())
            try:
                run = await _have_it_done(
                    cluster, _unvalidated(job, folder), validation, limit_s or math.inf
                )
                return run, cluster.hardware.steps
            finally:
                disturbing.cancel()
                await asyncio.wait((disturbing,))

    with silence(), asyncio.Runner(loop_factory=FreezableLoop) as runner:
        run, steps = runner.run(simulate())
    return measure(run, validation.scores, steps=steps, real_s=time.monotonic() - began)


def preemption(at_s: float, node: str, away_s: float, notice_s: float = 30.0) -> Fault:
    """A node gets notice at that time, goes when it is over, and is back so long after."""
    return Fault(at_s, "notice_then_kill", node, lasts_s=away_s, amount=notice_s)


@dataclass
class _Validation:
    """Scores the versions that the job would validate, as it would."""

    job: JobSpec
    numerics: Numerics
    target: float | None
    scores: dict[int, float] = field(default_factory=dict)
    """The validation scores by version."""

    def __post_init__(self) -> None:
        self._prompts = read_prompts(self.job.prompts.validation)
        self._score(0, self.numerics.initial_weights(self.job))

    def catch_up(self, history: History) -> None:
        """With what was trained since; what was long ago cannot be scored any more."""
        for train in history.all("train"):
            version = train["iteration"] + 1
            due = version % self.job.validation.every == 0 or version == self.job.iterations
            if due and version not in self.scores:
                self._score(version, train["after"])

    def is_enough(self, published: int) -> bool:
        """Whether the versions up to this one have reached the target."""
        curve = [(v, score) for v, score in sorted(self.scores.items()) if v <= published]
        return self.target is not None and time_to(self.target, curve) is not None

    def _score(self, version: int, weights: str) -> None:
        average = fingerprints.evaluation_weights(weights)
        rows = [
            fingerprints.Row(each, average, each.settings.steps, fingerprints.sample(average, each))
            for each in self._requests(version)
        ]
        self.scores[version] = mean(self.numerics.rewards(rows))

    def _requests(self, version: int) -> Iterator[Request]:
        for each in evaluation_requests(self.job, version, self._prompts):
            yield msgspec.structs.replace(each, settings=measured_with(each.settings))


def _unvalidated(job: JobSpec, folder: Path) -> JobSpec:
    """The same with as little validation as there can be: one image of the first and of the last
    version, in one step."""
    first = read_prompt_lines(job.prompts.validation).items[0]
    prompts = folder / "validation.jsonl"
    prompts.write_bytes(msgspec.json.encode({"prompt": first.text, **first.metadata}) + b"\n")
    return msgspec.structs.replace(
        job,
        prompts=msgspec.structs.replace(job.prompts, validation=str(prompts)),
        sampler=msgspec.structs.replace(job.sampler, evaluation_steps=1),
        validation=ValidationSpec(seeds=1, every=job.iterations),
    )


async def _have_it_done(
    cluster: Cluster, job: JobSpec, validation: _Validation, limit_s: float
) -> Path:
    """Submit the job as soon as somebody listens, and watch it; returns its run folder."""
    loop, user = asyncio.get_running_loop(), cluster.user()
    run, accepted = cluster.folder / "runs" / job.name, False
    began_at = moved_at = loop.time()
    seen = "", 0
    while loop.time() < moved_at + _STALLED_S:
        await asyncio.sleep(_POLL_S if accepted else 0.5)
        if cluster.history.violations:
            raise RunFailed(f"{job.name}: {cluster.history.violations[0]}")
        validation.catch_up(cluster.history)
        question = GetStatus() if accepted else SubmitJob(job, str(run), False)
        try:
            answer = await user.ask(cluster.coordinator_actor(), question, timeout_s=5.0)
        except ActorError:
            continue
        if isinstance(answer, JobRefused):
            raise RunFailed(f"{job.name}: refused: {answer.reason}")
        accepted |= isinstance(answer, JobAccepted)
        if not isinstance(answer, JobStatus):
            continue
        is_over = loop.time() - began_at >= limit_s
        enough = is_over or validation.is_enough(answer.weights_version)
        if answer.outcome == "finished" or (enough and answer.outcome == "cancelled"):
            return run
        if answer.outcome:
            raise RunFailed(f"{job.name}: {answer.outcome}: {answer.reason}")
        if enough:
            await user.ask(cluster.coordinator_actor(), CancelJob(), timeout_s=5.0)
        if seen != (answer.phase, answer.iteration):
            moved_at, seen = loop.time(), (answer.phase, answer.iteration)
    raise RunFailed(f"{job.name}: in {seen[0]} of iteration {seen[1]} for {_STALLED_S:g} s")


def main() -> None:
    """Run one job and print what it came to."""
    report = Report("virtual_testbed", __doc__, minutes=3)
    made = report.options
    made.add_argument("--task", choices=TASKS, default="ocr")
    made.add_argument("--rival", choices=RIVALS, default=OURS)
    made.add_argument("--iterations", type=int)
    made.add_argument("--seed", type=int, default=0)
    made.add_argument("--set", action="append", default=[], metavar="PATH=VALUE", dest="changes")
    made.add_argument(
        "--preempt", type=_preemption, action="append", default=[], metavar="TIME:NODE:AWAY"
    )
    made.add_argument("--profile", type=Path, default=SOL_RL_SPLIT)
    made.add_argument("--folder", type=Path, help="where the run folder is left")
    options = report.begin()

    import torch  # not for --help

    from spotlight_simulation.real_numerics import RealNumerics

    torch.set_num_threads(1)  # of such small tensors several threads would only get in their way
    changes = dict(QUICK) if options.quick else {}
    if options.iterations is not None:
        changes["iterations"] = options.iterations
    try:
        job = virtual_job(options.task, options.rival, options.seed, changes)
        job = parse_job(job_to_yaml(job), changes=options.changes)
        profile = load_profile(options.profile)
        with scratch_folder() as scratch:
            run = run_on_testbed(
                job,
                profile=profile,
                numerics=RealNumerics(job),
                folder=options.folder or scratch,
                faults=options.preempt,
            )
    except SpotlightError as error:
        sys.exit(f"virtual_testbed: {error}")
    if not options.json:
        for point in run.validation:
            print(f"{point.time_s:9.1f} s  version {point.version:3d}  {point.score:.4f}")
        print(json.dumps(msgspec.to_builtins(run.totals), indent=2))
    figures = msgspec.to_builtins(run)
    figures |= figures.pop("totals") | {"profile": msgspec.to_builtins(profile)}
    report.add(figures)
    report.finish()


def _preemption(text: str) -> Fault:
    try:
        at_s, node, away_s = text.split(":")
        return preemption(float(at_s), node, float(away_s))
    except ValueError as error:
        problem = f"`{text}` must be TIME:NODE:AWAY, in seconds, such as 300:spot-0:60"
        raise argparse.ArgumentTypeError(problem) from error


if __name__ == "__main__":
    main()
