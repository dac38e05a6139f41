"""One job on a cluster with a schedule of faults, all from one seed; and many of them."""

from __future__ import annotations

import asyncio
import logging
import random
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import NoReturn

import msgspec
import structlog

from spotlight.actors.protocol import JobAccepted, JobStatus, SubmitJob
from spotlight.errors import ActorError
from spotlight.jobs import ExplorationSpec, JobSpec, job_from_data
from spotlight_simulation.aims import all_faults, needs_a_spare
from spotlight_simulation.cluster_watch import ClusterWatch
from spotlight_simulation.fault_injector import disturbed
from spotlight_simulation.faults import KINDS, SESSION_KINDS, Fault, FaultKind
from spotlight_simulation.freezing import FreezableLoop
from spotlight_simulation.history import SITUATIONS, History
from spotlight_simulation.invariants import check, trains_on_previews, workers_are_free_again
from spotlight_simulation.memory_cluster import Cluster
from spotlight_simulation.processes import NodeSpec
from spotlight_simulation.session_chaos import SessionRun, session_scenario, simulate_session
from spotlight_simulation.session_invariants import check_session
from spotlight_simulation.simulated_user import look

_SHARED_MEMORY = Path("/dev/shm")
_POLL_S = 1.0
_LIVENESS_S = 900.0
"""A job ends within this time of the last fault."""
_LONGEST_PAUSE_S = 60.0
"""A user who has resumed a job in vain looks again ever later."""
_SETTLE_S = 30.0
_POOLED = {"mode": "bandit", "prompt_pool": 2}
_DEGREES: tuple[int | str, ...] = ("auto", "auto", 2, 4)


class Scenario(msgspec.Struct, frozen=True):
    """What is run for a seed."""

    job: JobSpec
    nodes: tuple[NodeSpec, ...]
    faults: tuple[Fault, ...]
    exact_training: bool


class Outcome(msgspec.Struct, frozen=True):
    """What came of a seed."""

    seed: int
    digest: str
    """The digest of the history."""
    effective: dict[str, int]
    """Faults that changed something, by kind."""
    violations: tuple[str, ...]
    virtual_s: float
    steps: int
    """Denoising steps of single requests."""
    needed_steps: int
    """Those of them that an undisturbed job takes; 0 of a session."""
    drove_session: bool = False
    """It was a program's session, not a job."""
    situations: dict[str, int] = {}
    """How often each came about of those that promises are about."""


def drives_session(seed: int) -> bool:
    """Whether a program with a loop of its own is run for a seed, instead of a job."""
    return seed % 4 == 3


def scenario(seed: int, folder: Path, kinds: Sequence[FaultKind] = KINDS) -> Scenario:
    """The job, the cluster and the faults of a seed. Prompts are written into the folder."""
    rng = random.Random(f"{seed} scenario")
    workers = rng.choice([1, 1, 1, 2, 3, 4])
    spot = {1: rng.randint(2, 4), 4: 1}.get(workers, rng.randint(1, 2))
    ranks = rng.choice([1, 1, 2])
    layout = rng.choice(["together", "apart", "spare"])
    reserved = _reserved_nodes("spare" if needs_a_spare(seed) else layout, ranks)
    nodes = (
        *reserved,
        *(NodeSpec(f"spot-{number}", "spot", workers) for number in range(1, spot + 1)),
    )
    budget = rng.choice(["fixed", "window"])
    reuses = seed % 3 == 1
    degrees = _DEGREES if budget == "window" else _DEGREES[2:]  # there `auto` is 1
    job = chaos_job(
        folder,
        exploration={
            "candidates": 2,
            "budget": budget,
            "reuse": reuses,
            **(_POOLED if seed % 5 == 2 else {}),
        },
        checkpoint_every=rng.choice([1, 2]),
        degree=rng.choice(degrees),
        ranks=ranks,
        sharded=ranks > 1 and seed % 2 == 0,
        updates=2 if reuses and budget == "window" else 1,  # such jobs train in two parts
    )
    faults = all_faults(
        seed,
        reserved=[node.name for node in reserved],
        spot=[node.name for node in nodes[len(reserved) :]],
        kinds=[kind for kind in kinds if kind not in SESSION_KINDS],
    )
    # Another plan after a rewind is told from the same one by its weights.
    exact = budget == "fixed" and rng.random() < 0.5
    return Scenario(job, nodes, faults, exact)


def _reserved_nodes(layout: str, ranks: int) -> tuple[NodeSpec, ...]:
    """Trainers on one node, each on a node of its own, or with a worker to spare on another."""
    if layout == "apart":
        return tuple(NodeSpec(f"reserved-{rank}", "reserved", 1) for rank in range(ranks))
    spare = (NodeSpec("spare", "reserved", 1),) if layout == "spare" else ()
    return (NodeSpec("reserved", "reserved", ranks), *spare)


def chaos_job(
    folder: Path,
    *,
    degree: int | str = "auto",
    ranks: int = 1,
    sharded: bool = False,
    updates: int = 1,
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


@dataclass
class Run:
    """A seed while it runs, and what is left of it for the invariants."""

    scenario: Scenario
    cluster: Cluster
    folder: Path
    status: JobStatus | None = None
    outcomes: list[tuple[str, str]] = field(default_factory=list)
    """How the job ended each time, with the reason."""
    undisturbed: tuple[tuple[str, bool], ...] = ()
    """The weights that every iteration leaves without faults, and whether it trains on previews;
    there if training is exact."""

    @property
    def run_folder(self) -> Path:
        """Of the job."""
        return self.folder / "runs" / "chaos-001"

    @property
    def history(self) -> History:
        """What happened."""
        return self.cluster.history


def run_seed(seed: int, kinds: Sequence[FaultKind] = KINDS) -> tuple[Outcome, History]:
    """Run one seed to its end and check everything."""
    run: Run | SessionRun
    with (
        scratch_folder() as folder,
        silence(),
        asyncio.Runner(loop_factory=FreezableLoop) as runner,
    ):
        if drives_session(seed):
            follower = chaos_job(folder, iterations=1, validation={"seeds": 1, "every": 1})
            planned = session_scenario(seed, follower, kinds)
            run, needed = runner.run(simulate_session(seed, planned, folder)), 0
            check_session(run)
        else:
            made = scenario(seed, folder, kinds)
            run, needed = runner.run(simulate(seed, made, folder)), needed_steps(made.job)
            if made.exact_training:
                run.undisturbed = undisturbed_weights(made.job.exploration)
            check(run)
    history = run.history
    outcome = Outcome(
        seed,
        history.digest(),
        dict(sorted(history.effective.items())),
        tuple(history.violations),
        round(history.happenings[-1].time_s, 3),
        run.cluster.hardware.steps,
        needed,
        drives_session(seed),
        dict(sorted(history.situations.items())),
    )
    return outcome, history


@cache
def undisturbed_weights(exploration: ExplorationSpec) -> tuple[tuple[str, bool], ...]:
    """What every iteration of a job with exact training leaves that explores so, when nothing
    happens to it, and whether it trains on previews; it is the same on every cluster."""
    with (
        scratch_folder() as folder,
        silence(),
        asyncio.Runner(loop_factory=FreezableLoop) as runner,
    ):
        nodes = (NodeSpec("reserved", "reserved", 1), NodeSpec("spot", "spot", 1))
        job = msgspec.structs.replace(chaos_job(folder), exploration=exploration)
        made = Scenario(job, nodes, (), True)
        run = runner.run(simulate(0, made, folder))
    return tuple(
        (str(train["after"]), trains_on_previews(train)) for train in run.history.all("train")
    )


def needed_steps(job: JobSpec) -> int:
    """Denoising steps of the rollouts of an undisturbed run."""
    return job.iterations * job.samples_per_iteration * job.sampler.steps


def run_seeds(seeds: Sequence[int], processes: int = 2) -> Iterator[Outcome]:
    """Run many, each in one of some processes; in the order of the seeds."""
    with ProcessPoolExecutor(processes) as pool:
        for encoded in pool.map(_run_encoded, seeds, chunksize=8):
            yield msgspec.json.decode(encoded, type=Outcome)


def total_effects(outcomes: Sequence[Outcome]) -> dict[str, int]:
    """Effective faults by kind; kinds without any included."""
    counts: Counter[str] = Counter()
    for outcome in outcomes:
        counts.update(outcome.effective)
    return {kind: counts[kind] for kind in KINDS}


def total_situations(outcomes: Sequence[Outcome]) -> dict[str, int]:
    """In how many seeds each situation came about; those that never did included."""
    counts = Counter(each for outcome in outcomes for each in outcome.situations)
    return {situation: counts[situation] for situation in SITUATIONS}


def _run_encoded(seed: int) -> bytes:
    return msgspec.json.encode(run_seed(seed)[0])


async def simulate(seed: int, made: Scenario, folder: Path) -> Run:
    """The life of a job; what must not happen is checked afterwards."""
    cluster = Cluster(seed, folder, made.nodes, exact_training=made.exact_training)
    run = Run(made, cluster, folder)
    async with cluster, disturbed(cluster, made.faults):
        await _have_it_done(run)
        if run.status is not None and run.status.outcome == "finished":
            left_s = _last_fault_s(run) - cluster.loop.time()
            await asyncio.sleep(max(0.0, left_s) + _SETTLE_S)
            status = await look(cluster)
            joined = {worker.node for worker in status.workers} if status else set()
            for what in workers_are_free_again(cluster, joined):
                cluster.history.violation(what)
    cluster.history.add("end", outcomes=tuple(run.outcomes))
    return run


async def _have_it_done(run: Run) -> None:
    """As a user would: submit the job, look at it, resume it when it failed."""
    loop, pause_s = asyncio.get_running_loop(), _POLL_S
    last = _last_fault_s(run)
    watch = ClusterWatch(run.cluster)
    while loop.time() < last + _LIVENESS_S:
        await asyncio.sleep(pause_s)
        watch.look()
        if run.history.violations:
            return  # what follows may be endless, and says nothing new
        status = await look(run.cluster)
        if status is None:
            continue
        run.status = status
        if status.outcome == "finished":
            run.outcomes.append(("finished", ""))
            return
        if status.outcome:
            run.outcomes.append((status.outcome, _without_path(run, status.reason)))
            run.history.add("job_ended", outcome=status.outcome, reason=run.outcomes[-1][1])
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
        if status.outcome or not status.job:
            await _submit(run)
    run.history.violation(f"the job did not end; at the end it was {_phase(run.status)}")


def _last_fault_s(run: Run) -> float:
    """When it is over."""
    return max((fault.at_s + fault.lasts_s for fault in run.scenario.faults), default=0.0)


async def _submit(run: Run) -> None:
    resume = (run.run_folder / "config.yaml").exists()
    message = SubmitJob(run.scenario.job, str(run.run_folder), resume)
    try:
        answer = await run.cluster.user().ask(
            run.cluster.coordinator_actor(), message, timeout_s=5.0
        )
    except ActorError as error:
        run.history.add("not_submitted", resume=resume, error=type(error).__name__)
        return
    if isinstance(answer, JobAccepted):
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


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """One that is gone afterwards; in memory where that is possible, since every journal entry is
    synced."""
    base = _SHARED_MEMORY if _SHARED_MEMORY.is_dir() else None
    folder = Path(tempfile.mkdtemp(prefix="chaos-", dir=base)).resolve()
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def silence() -> Iterator[None]:
    """Faults make the actors say much that nobody needs to hear."""
    before = structlog.get_config()
    structlog.configure(
        processors=[_drop], wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL)
    )
    try:
        yield
    finally:
        structlog.configure(**before)


def _drop(*_: object) -> NoReturn:
    raise structlog.DropEvent
