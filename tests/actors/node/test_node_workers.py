"""Workers of a node that end, hang or are sick are started again, and only its own are heard."""

from __future__ import annotations

import asyncio

import pytest
from job_kit import recorder
from site_kit import Site

from spotlight.actors.protocol.down import SickWorker
from spotlight.actors.protocol.up import WorkerRefs, WorkerUp
from spotlight.policies.restarts import MOST_BAD_LIVES

pytestmark = pytest.mark.virtual_time


@pytest.fixture
def two_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the node starts its workers."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")


async def test_a_worker_that_ends_is_reported_and_started_again(site: Site) -> None:
    await site.up("n/0")
    await site.up("n/1")
    await site.end("n/1")
    assert site.joined()[-1] == [("n/0", 1)]
    assert [process.name for process in site.launcher.started].count("n/1") == 2
    await site.up("n/1")
    assert site.joined()[-1] == [("n/0", 1), ("n/1", 3)]


async def test_a_worker_that_keeps_ending_is_given_up_and_the_others_still_join(
    site: Site,
) -> None:
    await site.up("n/0")
    for _ in range(MOST_BAD_LIVES):
        await site.end("n/1", 60.0)
    assert len(site.launcher.started) == 1 + MOST_BAD_LIVES
    assert site.joined() == [[("n/0", 1)]]
    await site.end("n/0")
    await site.up("n/0")
    assert site.joined()[-1] == [("n/0", 2)]


async def test_its_workers_have_cublas_repeat_itself(site: Site) -> None:
    assert site.launcher.environments["n/0"]["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"


async def test_its_workers_have_the_workspaces_of_cublas_that_it_was_started_with(
    monkeypatch: pytest.MonkeyPatch, site: Site
) -> None:
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":16:8")
    await site.up("n/0")
    await site.up("n/1")
    await site.end("n/0")
    assert site.launcher.environments["n/0"]["CUBLAS_WORKSPACE_CONFIG"] == ":16:8"


async def test_its_workers_end_with_it(site: Site) -> None:
    await site.system.stop(site.node)
    assert [await process.wait() for process in site.launcher.started] == [-9, -9]


# --- workers that hang ---


async def test_a_worker_that_does_not_answer_is_ended_and_started_again(site: Site) -> None:
    await site.up("n/0")
    await site.up("n/1")
    await asyncio.sleep(60.0)
    assert len(site.launcher.started) == 2
    site.worker.turns.clear()
    await asyncio.sleep(20.0)
    assert len(site.launcher.started) == 4
    assert site.joined()[-1] == []


async def test_a_worker_that_is_slow_to_answer_is_left_alone(site: Site) -> None:
    await site.up("n/0")
    await site.up("n/1")
    for _ in range(10):
        site.worker.turns.clear()
        await asyncio.sleep(6.0)
        site.worker.turns.set()
        await asyncio.sleep(6.0)
    assert len(site.launcher.started) == 2


async def test_a_worker_that_never_comes_up_is_started_again(site: Site) -> None:
    await asyncio.sleep(400.0)
    assert len(site.launcher.started) == 4


async def test_a_worker_that_is_not_the_nodes_does_not_come_up(site: Site) -> None:
    await site.up("n/7")
    await site.up("somebody")
    await site.up("n/0")
    await site.up("n/1")
    assert [name for name, _ in site.joined()[-1]] == ["n/0", "n/1"]


async def test_a_worker_speaks_for_its_own_actors_only(site: Site) -> None:
    elsewhere = await recorder(await site.cluster.system("elsewhere"), "leader")
    refs = WorkerRefs("n/0", 1, elsewhere.ref, *[site.worker.ref] * 2)
    site.system.tell(site.node, WorkerUp(refs, site.launcher.keys["n/0"].start, "simulated"))
    await asyncio.sleep(0.1)
    assert site.system.dead_letters.counts["not_allowed"] == 1


async def test_a_worker_on_the_cpu_where_there_are_gpus_is_refused_and_the_report_says_why(
    two_gpus: None, site: Site
) -> None:
    first = site.launcher.latest("n/0")
    await site.up("n/1", device="cuda")
    await site.up("n/0", device="cpu")
    assert first.has_ended
    (trouble,) = site.coordinator.report.troubles
    assert trouble.worker == "n/0"
    assert "torch sees no GPU in it, though it was given GPU 0" in trouble.reason
    assert site.joined()[-1] == [("n/1", 1)]


async def test_what_a_worker_said_before_it_ended_does_not_bring_it_up(site: Site) -> None:
    await site.up("n/0")
    await site.up("n/1")
    await site.end("n/0", wait_s=0.1)
    await site.up("n/0")
    assert site.joined()[-1] == [("n/1", 2)]


async def test_a_worker_that_the_plan_names_as_sick_is_ended_and_another_one_started(
    site: Site,
) -> None:
    await site.up("n/0")
    await site.up("n/1")
    first = site.launcher.latest("n/1")
    await site.plan(sick=(SickWorker("n/1", 2, "it failed what others could do"),))
    assert first.has_ended
    assert site.joined()[-1] == [("n/0", 1)]
    (trouble,) = site.coordinator.report.troubles
    assert (trouble.worker, trouble.reason) == ("n/1", "it failed what others could do")
    await asyncio.sleep(1.0)
    await site.up("n/1")
    assert site.joined()[-1] == [("n/0", 1), ("n/1", 3)], "the plan names another process"


async def test_a_worker_that_was_given_up_is_tried_again_for_another_runner(site: Site) -> None:
    await site.up("n/0")
    await site.up("n/1")
    await site.prepare()
    for _ in range(MOST_BAD_LIVES):
        await site.end("n/1", 60.0)
    assert [trouble.given_up for trouble in site.coordinator.report.troubles] == [True]
    started = len(site.launcher.started)
    await site.prepare("another")
    assert len(site.launcher.started) == started + 1
