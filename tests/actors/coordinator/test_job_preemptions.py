"""Nodes that come and go, with notice and without, on virtual time: nothing of what is trained
depends on it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from job_kit import World, job
from runtime_kit import Cluster
from town_kit import Town, events, iterations, trained_samples

from spotlight.actors.protocol import Acknowledged, JobStatus, NodeUnknown, PreemptNode
from spotlight.types import Request, RequestId

pytestmark = pytest.mark.virtual_time

SPOT = [f"spot-{number}" for number in range(4)]


@pytest.fixture
async def town(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Town]:
    async with Cluster() as cluster:
        town = Town(cluster, tmp_path / "runs", monkeypatch)
        await town.open()
        await town.join("reserved", "reserved")
        yield town


def rollout(now: JobStatus) -> bool:
    return now.phase == "rollout" and now.iteration == 1


async def leave_and_return(town: Town, name: str, away_s: float = 1.0) -> None:
    await town.nodes[name].abort()
    await asyncio.sleep(away_s)
    await town.join(name, "spot", f"{name} of {len(town.cluster.systems)}")


@pytest.mark.parametrize("phase", ["rollout", "train"])
async def test_losing_the_whole_spot_pool_and_getting_it_back_changes_nothing_that_is_trained(
    town: Town, phase: str
) -> None:
    for name in SPOT:
        await town.join(name, "spot")
    await town.run(job())
    calm = trained_samples(town.world.trained)
    town.world.trained.clear()
    await town.submit(job())
    await town.wait(lambda now: now.phase == phase and now.iteration == 1)
    await asyncio.sleep(0.4)
    await asyncio.gather(*(town.nodes[name].abort() for name in SPOT))
    await asyncio.sleep(1.0)
    for name in SPOT:
        await town.join(name, "spot", f"{name} again")
    assert (await town.status()).iteration == 1, "all within one iteration"
    end = await town.ended()
    assert end.outcome == "finished"
    assert len(events(end.run_folder, "node_lost")) == 4
    assert [record["samples"] for record in iterations(end.run_folder)] == [8, 8, 8]
    assert trained_samples(town.world.trained) == calm
    again = [name for name, _ in town.world.granted[-60:] if name.startswith("spot")]
    assert again, "those that came back work again"


async def test_nodes_that_are_lost_all_the_time_change_nothing_that_is_trained(town: Town) -> None:
    for name in SPOT:
        await town.join(name, "spot")
    await town.run(job())
    calm = trained_samples(town.world.trained)
    town.world.trained.clear()
    await town.submit(job())
    for turn in range(10):
        await asyncio.sleep(3.3)
        await leave_and_return(town, SPOT[turn % 4])
    end = await town.ended()
    assert end.outcome == "finished"
    assert end.preemptions == 10
    assert trained_samples(town.world.trained) == calm


async def test_half_denoised_requests_go_on_from_their_commits(town: Town) -> None:
    def rolls_out(worker: str, iteration: int) -> bool:
        granted = [r for name, r in town.world.granted if name == worker]
        return any((r.kind, r.iteration) == ("rollout", iteration) for r in granted)

    await town.join("spot", "spot")
    town.world.denoise_s = 200.0
    await town.submit(job(sampler={"steps": 10}, exploration={"mode": "none"}))
    await town.wait(lambda now: now.iteration == 1, limit_s=10_000.0)
    await town.wait(lambda now: rolls_out("spot/0", 1), limit_s=10_000.0)
    await asyncio.sleep(110.0)
    await town.nodes["spot"].abort()
    end = await town.wait(lambda now: bool(now.outcome), limit_s=100_000.0)
    assert end.outcome == "finished"
    assert town.world.resumed, "they were committed, and gone on with"
    assert {record["samples"] for record in iterations(end.run_folder)} == {8}


async def test_a_node_that_leaves_after_a_notice_gives_everything_back(town: Town) -> None:
    await town.join("spot", "spot")
    await town.submit(job())
    await town.wait(rollout)
    await asyncio.sleep(0.2)
    assert await town.ask(PreemptNode("spot", 30.0, cancel=False)) == Acknowledged()
    await asyncio.sleep(0.5)
    (notice,) = events(await folder(town), "notice")
    assert (notice["node"], notice["source"], notice["lead_s"]) == ("spot", "user", 30.0)
    (lost,) = events(await folder(town), "node_lost")
    assert (lost["node"], lost["reason"]) == ("spot", "left after a notice")
    given = len(town.world.by("spot/0", "rollout"))
    end = await town.ended()
    assert end.outcome == "finished"
    assert end.preemptions == 1, "the notice and the end of the node are one"
    assert len(town.world.by("spot/0", "rollout")) == given
    assert [record["samples"] for record in iterations(end.run_folder)] == [8, 8, 8]


async def folder(town: Town) -> str:
    return (await town.status()).run_folder


async def test_a_notice_that_is_withdrawn_lets_the_node_work_again(town: Town) -> None:
    await town.join("spot", "spot")
    town.world.drains = False
    await town.submit(job())
    await town.wait(rollout)
    await town.ask(PreemptNode("spot", 600.0, cancel=False))
    await asyncio.sleep(0.1)
    given = len(town.world.by("spot/0", "rollout"))
    await town.wait(lambda now: now.iteration == 2)
    await asyncio.sleep(1.0)
    assert len(town.world.by("spot/0", "rollout")) == given, "it gets nothing"
    await town.ask(PreemptNode("spot", 600.0, cancel=True))
    end = await town.ended()
    assert end.outcome == "finished"
    assert len(events(end.run_folder, "notice_withdrawn")) == 1
    assert events(end.run_folder, "node_lost") == []
    assert any(r.kind == "evaluation" or r.iteration == 2 for r in by(town.world, "spot/0")[given:])


def by(world: World, worker: str) -> list[Request]:
    return [wanted for name, wanted in world.granted if name == worker]


async def test_notice_for_a_node_that_is_not_there_names_those_that_are(town: Town) -> None:
    await town.join("spot", "spot")
    answer = await town.ask(PreemptNode("spott", 30.0, cancel=False))
    assert answer == NodeUnknown(("reserved", "spot"))


async def test_a_node_that_keeps_coming_and_going_must_wait(town: Town) -> None:
    await town.join("flapping", "spot")
    town.world.denoise_s = 30.0
    await town.submit(job())
    for _ in range(3):
        await leave_and_return(town, "flapping", away_s=0.1)
    (waits,) = events(await folder(town), "node_must_wait")
    assert waits["node"] == "flapping"
    joined = len(events(await folder(town), "node_joined"))
    assert joined == 2 + 2, "it joined at first and twice again"
    await asyncio.sleep(waits["seconds"] + 4.1)  # with its next report
    assert len(events(await folder(town), "node_joined")) == joined + 1
    assert (await town.ended()).outcome == "finished"


async def test_reserved_nodes_never_wait(town: Town) -> None:
    await town.submit(job(name="other"))
    await town.join("helper", "reserved")
    for _ in range(5):
        await town.nodes["helper"].abort()
        await town.join("helper", "reserved", f"helper {len(town.cluster.systems)}")
    end = await town.ended()
    assert end.outcome == "finished"
    assert events(end.run_folder, "node_must_wait") == []


async def test_a_request_that_ends_every_process_costs_its_group_and_not_the_job(
    town: Town,
) -> None:
    for name in (*SPOT, "spot-last"):
        await town.join(name, "spot")

    def ends(worker: str, wanted: tuple[Request, ...]) -> bool:
        poison = any((r.kind, r.iteration, r.group) == ("rollout", 1, 0) for r in wanted)
        return poison and worker.startswith("spot")

    town.world.ends = ends
    town.world.only_train = {"reserved/0"}  # so that none of them gets away
    await town.submit(job(group_size=2, prompts={"per_iteration": 8}))
    end = await town.ended()
    assert end.outcome == "finished"
    lost = [event["node"] for event in events(end.run_folder, "node_lost")]
    assert len(lost) == len(set(lost)) <= len(SPOT)
    assert [record["iteration"] for record in iterations(end.run_folder)] == [0, 1, 2]
    (dropped,) = events(end.run_folder, "group_dropped")
    assert dropped["iteration"] == 1
    assert "every node that took it was lost" in dropped["reason"]
    given_up = [RequestId.parse(name) for name in end.given_up]
    assert {(it.iteration, it.group) for it in given_up if it is not None} == {(1, 0)}
