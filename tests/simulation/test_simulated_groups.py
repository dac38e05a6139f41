"""SP groups under faults: they come about, and what goes wrong with them is noticed."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from spotlight.actors.node import regrouping
from spotlight.actors.node.regrouping import Grouping
from spotlight.actors.protocol.down import GroupPlan
from spotlight_simulation import invariants
from spotlight_simulation.chaos import silence, simulate
from spotlight_simulation.fake_collective import FakeCollective
from spotlight_simulation.fake_denoising import State
from spotlight_simulation.faults import Fault
from spotlight_simulation.freezing import FreezableLoop
from spotlight_simulation.job_life import Run, Scenario, chaos_job
from spotlight_simulation.processes import NodeSpec

NODES = (
    NodeSpec("reserved", "reserved", 1),
    NodeSpec("spot-1", "spot", 4),
    NodeSpec("spot-2", "spot", 3),
)
KILLS = tuple(
    Fault(8.0 + 9.0 * number, "kill_worker", f"spot-{1 + number % 2}", amount=number % 3)
    for number in range(6)
)
LOSS = Fault(1.0, "loss", lasts_s=60.0, amount=0.3)
STOP = Fault(12.0, "pause_worker", "spot-1", lasts_s=9.0, amount=1)


@pytest.fixture
def run_job(tmp_path: Path) -> Callable[..., Run]:
    """Runs a job on nodes of several workers that are to denoise together."""

    def run_it(*faults: Fault, degree: int = 2, seed: int = 0) -> Run:
        folder = tmp_path / f"{seed}"
        folder.mkdir()
        job = chaos_job(folder, degree=degree, iterations=6)
        made = Scenario(job, NODES, faults, exact_training=False)
        with silence(), asyncio.Runner(loop_factory=FreezableLoop) as runner:
            run = runner.run(simulate(seed, made, folder))
        invariants.check(run)
        return run

    return run_it


@pytest.mark.parametrize("degree", [2, 4])
def test_members_of_a_node_denoise_together(run_job: Callable[..., Run], degree: int) -> None:
    run = run_job(degree=degree)
    assert run.history.violations == []
    hardware = run.cluster.hardware
    at_work = [group for group in hardware.sp_groups if group.gatherings]
    assert max(group.size for group in at_work) == degree
    steps = sum(group.gatherings for group in at_work)
    assert steps * 4 > hardware.steps / 2, "most steps are taken by groups"


@pytest.mark.parametrize(
    "faults",
    [
        pytest.param(KILLS, marks=pytest.mark.slow),
        pytest.param((STOP,), marks=pytest.mark.slow),
        (LOSS, *KILLS),
    ],
)
def test_who_is_left_of_a_group_goes_on(
    run_job: Callable[..., Run], faults: tuple[Fault, ...]
) -> None:
    run = run_job(*faults)
    assert run.history.violations == []
    assert any(group.broken and group.gatherings for group in run.cluster.hardware.sp_groups)


def test_a_group_that_is_told_once_only_is_noticed(
    run_job: Callable[..., Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    told: set[tuple[int, str, int]] = set()
    plan_of = Grouping.plan_of

    def once(grouping: Grouping, worker: str) -> GroupPlan | None:
        plan = plan_of(grouping, worker)
        key = (id(grouping), worker, plan.epoch if plan is not None else 0)
        if key in told:
            return None
        told.add(key)
        return plan

    monkeypatch.setattr(Grouping, "plan_of", once)
    runs = (run_job(LOSS, *KILLS, seed=seed) for seed in range(5, 17))
    # What matters is lost in some of them only.
    assert any("is without a group" in " ".join(run.history.violations) for run in runs)


def test_a_group_that_waits_for_ever_is_noticed(
    run_job: Callable[..., Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    for send in ("send", "send_latents"):
        monkeypatch.setattr(FakeCollective, send, lambda self, what: None)
    assert "makes no step" in " ".join(run_job().history.violations)


def test_a_plan_without_a_worker_is_noticed(
    run_job: Callable[..., Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = regrouping.plan_groups
    monkeypatch.setattr(
        regrouping, "plan_groups", lambda *places, **work: plan(*places, **work)[1:]
    )
    assert "has its workers in groups" in " ".join(run_job().history.violations)


def test_an_epoch_that_is_used_twice_is_noticed(
    run_job: Callable[..., Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(regrouping, "GroupPlan", lambda epoch, *seats: GroupPlan(1, *seats))
    assert "names two groups" in " ".join(run_job().history.violations)


def test_members_that_follow_with_other_latents_are_noticed(
    run_job: Callable[..., Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    receive = FakeCollective.receive_latents

    def others(self: FakeCollective, *batch: Any) -> State:
        state = receive(self, *batch)
        return dataclasses.replace(state, latents=("others",) * len(state.latents))

    monkeypatch.setattr(FakeCollective, "receive_latents", others)
    assert "hold different latents" in " ".join(run_job().history.violations)
