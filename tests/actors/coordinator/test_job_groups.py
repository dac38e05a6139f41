"""A job on nodes of several workers: what they are told, what is learned of their groups, and what
users see."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from fake_nodes import FakeNode
from fake_workers import FakeWorker
from job_kit import job
from msgspec.structs import replace
from runtime_kit import Cluster
from town_kit import Town, iterations, lines

from spotlight.actors.protocol.down import Demand, NodePlan
from spotlight.actors.protocol.up import WorkerRefs
from spotlight.actors.protocol.users import CancelJob, JobStatus

pytestmark = pytest.mark.virtual_time

WORKERS = 4


class WideNode(FakeNode):
    """A node whose workers form one group, or none; it keeps what it is told."""

    def __init__(self, *args: Any, together: bool) -> None:
        super().__init__(*args)
        self.demands: list[tuple[float, Demand]] = []
        self.workers = [
            FakeWorker(f"{self.name}/{index}", index + 1, self.world) for index in range(WORKERS)
        ]
        if together:
            first, *others = self.workers
            first.followers = tuple(worker.name for worker in others)
            for worker in others:
                worker.follows = True

    async def started(self) -> None:
        refs = []
        for worker in self.workers:
            ref = await self.spawn(lambda worker=worker: worker, worker.name.replace("/", "-"))
            refs.append(WorkerRefs(worker.name, worker.epoch, *[ref] * 3))
        self.refs = tuple(refs)
        await self._begin()

    def _follow(self, plan: NodePlan) -> None:
        super()._follow(plan)
        if plan.demand is not None and plan.demand not in [told for _, told in self.demands[-1:]]:
            self.demands.append((asyncio.get_running_loop().time(), plan.demand))

    def kinds(self) -> list[tuple[str, ...]]:
        """Which kinds of work it was told of, in order, without repetitions."""
        told = [tuple(one.kind for one in demand.classes) for _, demand in self.demands]
        return [
            kinds for kinds, before in zip(told, [None, *told], strict=False) if kinds != before
        ]


@pytest.fixture
async def town(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Town]:
    async with Cluster() as cluster:
        town = Town(cluster, tmp_path / "runs", monkeypatch)
        await town.open()
        await town.join("reserved", "reserved")
        yield town


async def wide(town: Town, name: str, pool: str = "spot", *, together: bool = False) -> WideNode:
    system = town.nodes[name] = await town.cluster.system(name)
    coordinator = system.well_known(town.system.address, "coordinator")
    node = WideNode(name, pool, coordinator, town.world, together=together)
    await system.spawn(lambda: node, "node")
    return node


async def test_a_node_hears_of_every_phase(town: Town) -> None:
    node = await wide(town, "spot")
    await town.run(job(exploration={"budget": "window", "candidates": 8}))
    kinds = node.kinds()
    assert ("rollout",) in kinds and ("preview",) in kinds and kinds[-1] == ()
    first, last = node.demands[0][1], node.demands[-1][1]
    assert (first.heads, first.degree, first.apart) == (4, None, ())
    assert (first.classes, last.classes) == ((), ()), "nothing waits before and after"


async def test_rollouts_that_come_are_told_at_once(town: Town) -> None:
    node = await wide(town, "spot")
    await town.submit(job(group_size=32))
    await town.wait(lambda now: now.phase == "rollout")
    began, first = next((at, demand) for at, demand in node.demands if demand.classes)
    now = asyncio.get_running_loop().time()
    assert now - began <= 0.6, "as soon as they are there"
    assert first.classes[0].batches == 13, "four of five workers have 16 batches to do"
    assert set(first.classes[0].step_s) == {1, 2, 4}


async def test_a_demand_that_was_lost_is_told_when_the_report_does_not_agree(town: Town) -> None:
    node = await wide(town, "spot")
    town.world.train_s = 60.0
    await town.submit(job(exploration={"mode": "none"}))
    # Until nothing changes any more.
    await town.wait(lambda now: now.phase == "train" and bool(now.validation))
    await asyncio.sleep(10.0)
    node.demands.clear()
    assert node.followed is not None
    node.followed = replace(node.followed, number=node.followed.number - 1)
    await asyncio.sleep(5.0)
    assert len(node.demands) == 1


async def test_previews_have_until_training_is_predicted_to_end(town: Town) -> None:
    node = await wide(town, "spot")
    await town.run(job(exploration={"budget": "window", "candidates": 64}))
    left = [(at, d.seconds_left) for at, d in node.demands if d.seconds_left is not None]
    assert left, "after the first iteration it is known how long training takes"
    assert max(seconds for _, seconds in left) <= town.world.train_s + 0.01
    ends = [at + seconds for at, seconds in left]
    assert max(ends) - min(ends) < 0.01, "there is one window, of the second iteration"
    rollouts = [d for _, d in node.demands if [c.kind for c in d.classes] == ["rollout"]]
    assert {demand.seconds_left for demand in rollouts} == {None}


async def test_previews_that_are_all_wanted_have_no_deadline(town: Town) -> None:
    node = await wide(town, "spot")
    await town.run(job(exploration={"budget": "fixed", "candidates": 64}))
    assert ("preview",) in node.kinds()
    assert {demand.seconds_left for _, demand in node.demands} == {None}


async def test_trainers_stay_apart_and_a_wish_is_passed_on(town: Town) -> None:
    node = await wide(town, "a-reserved", "reserved")
    await town.run(job(training={"ranks": 2}, pools={"reserved": {"workers": 2}},
                       sampler={"degree": 2}))  # fmt: skip
    told = {(demand.degree, demand.apart) for _, demand in node.demands}
    assert (2, ("a-reserved/0", "a-reserved/1")) in told
    assert told <= {(2, ()), (2, ("a-reserved/0", "a-reserved/1"))}


async def test_what_a_group_denoises_is_measured_and_kept(town: Town) -> None:
    await wide(town, "spot", together=True)
    end = await town.run(job())
    (times,) = lines(end.run_folder, "step-times.json")
    saved = {one["degree"]: one for one in times["step_times"]}
    assert set(saved) == {1, WORKERS}
    assert (saved[4]["height"], saved[4]["width"], saved[4]["micro_batch"]) == (32, 64, 4)
    assert saved[4]["recent_s"][0] == pytest.approx(town.world.denoise_s / 2)
    assert [record["samples"] for record in iterations(end.run_folder)] == [8, 8, 8]


async def test_a_run_that_goes_on_knows_its_step_times(town: Town) -> None:
    node = await wide(town, "spot", together=True)
    await town.submit(job())
    first = await town.wait(lambda now: now.iteration == 2)
    await town.ask(CancelJob())
    await town.wait(lambda now: now.outcome == "cancelled")
    node.demands.clear()
    town.world.denoise_s = 400.0
    await town.submit(None, first.run_folder, resume=True)
    await town.wait(lambda now: now.phase == "rollout")
    told = next(demand for _, demand in node.demands if demand.classes)
    assert told.classes[0].step_s[4] == pytest.approx(0.5), "measured before it was cancelled"


async def test_users_see_who_is_in_a_group(town: Town) -> None:
    await wide(town, "spot", together=True)

    def grouped(now: JobStatus) -> bool:
        return any(worker.leader for worker in now.workers)

    await town.submit(job())
    now = await town.wait(grouped)
    seen = {worker.name: (worker.leader, worker.members) for worker in now.workers}
    assert seen == {
        "reserved/0": ("", 1),
        **{f"spot/{index}": ("spot/0", WORKERS) for index in range(WORKERS)},
    }
