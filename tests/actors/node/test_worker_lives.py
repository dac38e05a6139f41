"""What a node knows of the lives of its workers' processes."""

from __future__ import annotations

import pytest
from job_kit import STORE, job
from node_kit import FakeProcess

from spotlight.actors.node.worker_lives import WorkerLives
from spotlight.actors.protocol.down import JobPlan, Membership, SickWorker
from spotlight.actors.protocol.up import WorkerRefs, WorkerReport, WorkerTrouble
from spotlight.actors.runtime import ActorRef
from spotlight.policies.restarts import MOST_BAD_LIVES
from spotlight.timings import NodeTimings

pytestmark = pytest.mark.virtual_time

W = "n/0"
REF = ActorRef("tcp://127.0.0.1:1", "actor", 1)
KILLED, LOST = -9, 70


def plan(job_id: str = "job", runner: int = 1) -> JobPlan:
    ref = ActorRef("tcp://127.0.0.1:1", "runner", runner)
    return JobPlan(job_id, Membership(ref, REF, STORE), spec=job().work)


@pytest.fixture
async def lives() -> WorkerLives:
    """Of a node with one worker and a job."""
    lives = WorkerLives([W], NodeTimings(restart_pause_s=0.5))
    lives.follow_job(plan())
    return lives


def live(lives: WorkerLives, code: int = KILLED, *, ready: bool = False) -> float | None:
    lives.begin(W, FakeProcess(W))
    if ready:
        lives.note(WorkerReport(W, 1, job_id="job", rollout=(0,)))
    return lives.end(W, code)


async def test_a_worker_that_never_gets_ready_is_given_up_and_the_reason_is_told(
    lives: WorkerLives,
) -> None:
    pauses = [live(lives) for _ in range(MOST_BAD_LIVES)]
    assert pauses == [0.5, 2.0, 8.0, 32.0, None]
    (trouble,) = lives.troubles
    assert (trouble.worker, trouble.tries, trouble.given_up) == (W, MOST_BAD_LIVES, True)
    assert "SIGKILL before it was ready; perhaps the machine ran out of memory" in trouble.reason


async def test_what_the_worker_said_is_the_reason(lives: WorkerLives) -> None:
    lives.begin(W, FakeProcess(W))
    lives.note(WorkerReport(W, 1, cannot_serve="the accelerator is lost", ends=True))
    lives.end(W, LOST)
    assert lives.troubles == (WorkerTrouble(W, "the accelerator is lost", 1),)


async def test_a_worker_that_is_ready_again_has_no_trouble_any_more(lives: WorkerLives) -> None:
    live(lives)
    assert not lives.is_awaited(W)
    lives.begin(W, FakeProcess(W))
    assert not lives.note(WorkerReport(W, 1, job_id="job")), "it has no weights yet"
    assert lives.note(WorkerReport(W, 1, job_id="job", rollout=(0,)))
    assert lives.troubles == ()
    assert lives.is_awaited(W)


async def test_a_worker_that_was_ready_and_killed_is_no_trouble(lives: WorkerLives) -> None:
    assert live(lives, ready=True) == 0.5
    assert lives.troubles == ()


async def test_without_a_job_there_is_nothing_to_get_ready_for(lives: WorkerLives) -> None:
    lives.follow_job(None)
    lives.begin(W, FakeProcess(W))
    lives.note(WorkerReport(W, 1))
    lives.end(W, KILLED)
    assert lives.troubles == ()


async def test_for_another_job_a_worker_must_get_ready_again(lives: WorkerLives) -> None:
    lives.begin(W, FakeProcess(W))
    lives.note(WorkerReport(W, 1, job_id="job", rollout=(0,)))
    lives.follow_job(plan("another"))
    lives.end(W, KILLED)
    assert "before it was ready" in lives.troubles[0].reason


@pytest.mark.parametrize("next_plan", [plan("another"), plan(runner=2)])
async def test_another_runner_has_a_worker_tried_again_that_was_given_up(
    lives: WorkerLives, next_plan: JobPlan
) -> None:
    for _ in range(MOST_BAD_LIVES):
        live(lives)
    lives.follow_job(plan())
    assert lives.troubles[0].given_up, "it is the same"
    lives.follow_job(next_plan)
    await lives.wait_forgiven(W)
    (trouble,) = lives.troubles
    assert not trouble.given_up
    assert live(lives) == 0.5


async def test_a_sick_process_is_ended_once_and_counts_as_bad(lives: WorkerLives) -> None:
    process = FakeProcess(W)
    lives.begin(W, process)
    lives.note(WorkerReport(W, 7, job_id="job", rollout=(0,)))
    refs = WorkerRefs(W, 7, REF, REF, REF)
    lives.end_sick([SickWorker(W, 6, "another one")], [refs])
    assert not process.has_ended
    lives.end_sick([SickWorker(W, 7, "it failed")], [refs])
    assert process.has_ended
    lives.end(W, KILLED)
    assert lives.troubles == (WorkerTrouble(W, "it failed", 1),)
