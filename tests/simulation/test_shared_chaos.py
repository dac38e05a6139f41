"""Several jobs at once on a simulated cluster: what each is held against, and what is noticed."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from spotlight.actors.protocol.users import JobStatus, WorkerStatus
from spotlight.policies.fleet.allocation import Allocation, Borrower, Lend, Lendable, Recall
from spotlight_simulation.chaos import run_seed, shares_cluster, silence
from spotlight_simulation.freezing import FreezableLoop
from spotlight_simulation.job_life import Run
from spotlight_simulation.memory_cluster import Cluster
from spotlight_simulation.share_watch import ShareWatch
from spotlight_simulation.shared_chaos import (
    SharedRun,
    check_shared,
    shared_scenario,
    simulate_shared,
)

SEED = 28
"""Of two jobs."""
MOVES = 12
"""Of two jobs one of which weighs more and begins first."""
BESIDE = 4
"""Of jobs beside which a program has a loop of its own."""
STEPS = 8
"""Of every request."""


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> SharedRun:
    """Two jobs that nothing has disturbed."""
    folder = tmp_path_factory.mktemp("shared")
    made = shared_scenario(SEED, folder, kinds=())
    with silence(), asyncio.Runner(loop_factory=FreezableLoop) as runner:
        return runner.run(simulate_shared(SEED, made, folder))


def test_several_jobs_are_done_at_once_and_each_is_sound(undisturbed: SharedRun) -> None:
    assert [run.outcomes for run in undisturbed.runs] == [[("finished", "")]] * 2
    check_shared(undisturbed)
    assert undisturbed.history.violations == []


def test_what_one_job_does_is_told_from_what_another_does(undisturbed: SharedRun) -> None:
    for run in undisturbed.runs:
        its = undisturbed.history.of(run.job_id)
        assert [train["iteration"] for train in its.all("train")] == [0, 1, 2]
        assert its.all("denoise")
    assert len(undisturbed.history.all("train")) == 6


def test_every_eighth_seed_has_several_jobs() -> None:
    assert [seed for seed in range(20) if shares_cluster(seed)] == [4, 12]
    outcome, history = run_seed(MOVES, kinds=())
    assert outcome.jobs == 2
    assert history.situations["a node goes over to another job"]
    assert outcome.violations == ()


def repeated_steps(seed: int) -> int:
    """How many steps were taken again, where nothing disturbed several jobs."""
    outcome, history = run_seed(seed, kinds=())
    denoised = {(it.job, each) for it in history.all("denoise") for each in it["requests"]}
    return outcome.steps - STEPS * len(denoised)


def test_nodes_that_go_over_to_another_job_lose_nothing() -> None:
    """All previews are made of a budget that is fixed; others end with training."""
    assert repeated_steps(60) == 0


def test_a_program_with_its_own_loop_shares_with_jobs() -> None:
    outcome, history = run_seed(BESIDE, kinds=())
    assert outcome.violations == ()
    assert history.all("group"), "the session was served"
    assert history.all("train"), "and so was the job"


def test_a_session_beside_jobs_is_held_against_what_must_hold_of_one(tmp_path: Path) -> None:
    made = shared_scenario(BESIDE, tmp_path, kinds=())
    with silence(), asyncio.Runner(loop_factory=FreezableLoop) as runner:
        shared = runner.run(simulate_shared(BESIDE, made, tmp_path))
    group = shared.history.all("group")[0]
    facts = dict(group.facts)
    shared.history.add_of(group.job, "group", **facts)
    check_shared(shared)
    assert any("the session: groups_come_once" in each for each in shared.history.violations)


def test_several_jobs_survive_all_faults_together() -> None:
    outcome, _ = run_seed(SEED)
    assert outcome.violations == ()
    assert outcome.effective


def is_found(violation: str, seed: int) -> bool:
    return any(violation in what for what in run_seed(seed, kinds=())[0].violations)


def test_a_node_that_works_for_nobody_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    decide = Allocation.decide

    def all_but_spot(
        self: Allocation, now: float, borrowers: Sequence[Borrower], nodes: Sequence[Lendable]
    ) -> list[Lend | Recall]:
        return decide(self, now, borrowers, [node for node in nodes if node.pool != "spot"])

    monkeypatch.setattr(Allocation, "decide", all_but_spot)
    assert is_found("works for nobody", MOVES)


def status(*workers: str) -> JobStatus:
    at_work = (
        WorkerStatus(name, name.partition("/")[0], "spot", "rollout", "") for name in workers
    )
    return JobStatus(job="a", phase="rollout", workers=tuple(at_work))


def seen(folder: Path, *statuses: JobStatus | None) -> list[str]:
    """What is noticed of jobs that are so for ten minutes."""

    async def watch() -> list[str]:
        made = shared_scenario(SEED, folder, kinds=())
        cluster = Cluster(SEED, folder, ())
        runs = [
            Run(msgspec.structs.replace(made.jobs[0], weight=1.0), cluster, folder, status=each)
            for each in statuses
        ]
        for number, run in enumerate(runs):
            job = msgspec.structs.replace(run.scenario.job, name=f"job-{number}")
            run.scenario = msgspec.structs.replace(run.scenario, job=job)
        watch = ShareWatch(cluster, runs)
        async with cluster:
            await cluster.start_coordinator()
            for _ in range(2):
                watch.look()
                await asyncio.sleep(600.0)
        return cluster.history.violations

    with silence(), asyncio.Runner(loop_factory=FreezableLoop) as runner:
        return runner.run(watch())


def test_a_worker_of_two_jobs_is_noticed(tmp_path: Path) -> None:
    both = seen(tmp_path, status("spot-1/0", "spot-2/0"), status("spot-1/0"))
    assert both == ["spot-1/0 works for 2 jobs"]


def test_a_job_that_is_left_without_nodes_is_noticed(tmp_path: Path) -> None:
    assert seen(tmp_path, status("spot-1/0", "spot-2/0"), status()) == [
        "job-1 has no node, and another job has 2"
    ]


def test_jobs_that_wait_or_have_ended_need_no_nodes(tmp_path: Path) -> None:
    waits = JobStatus(job="a", phase="queued")
    ended = JobStatus(job="a", phase="finished", outcome="finished")
    assert seen(tmp_path, status("spot-1/0", "spot-2/0"), waits, ended, None) == []
