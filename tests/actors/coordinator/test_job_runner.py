"""Whole lives of a job on virtual time: the real coordinator, job runner and
dispatcher, with fake nodes."""

from __future__ import annotations

import asyncio
import shutil
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from job_kit import STORE, World, job, recorder
from runtime_kit import Cluster
from town_kit import Town, events, iterations, lines, trained_samples

from spotlight.actors.coordinator.job_status import status_pause_s
from spotlight.actors.protocol import (
    CancelJob,
    JobAccepted,
    JobRefused,
    JobStatus,
    NodeNotice,
    NodeRefused,
    NodeReport,
    TrainedIteration,
    TrainerReport,
    WorkerRefs,
    WorkerReport,
)
from spotlight.actors.runtime import ActorRef
from spotlight.errors import RemoteError
from spotlight.policies.advantages import group_advantages
from spotlight.transport.control import BadInput, decode_message, encode_message
from spotlight.transport.tensors import BundleStore
from spotlight.types import Request

pytestmark = pytest.mark.virtual_time


@pytest.fixture
async def town(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    async with Cluster() as cluster:
        town = Town(cluster, tmp_path / "runs", monkeypatch)
        await town.open()
        yield town


async def with_nodes(town: Town) -> Town:
    await town.join("reserved", "reserved")
    await town.join("spot", "spot")
    return town


def expected_advantages(world: World, iteration: int) -> list[float]:
    """From the fresh rewards of an iteration's rollouts alone, in canonical order."""
    rollouts = {
        r.id: r for _, r in world.granted if (r.kind, r.iteration) == ("rollout", iteration)
    }
    ordered = sorted(rollouts.values(), key=lambda r: (r.group, r.seed))
    return list(
        group_advantages(
            [World.reward(r) for r in ordered], [r.group for r in ordered], std="global", clip=5.0
        )
    )


@pytest.mark.parametrize("budget", ["fixed", "window"])
async def test_a_job_runs_to_its_end(town: Town, budget: str) -> None:
    await with_nodes(town)
    end = await town.run(job(exploration={"budget": budget}))
    assert (end.outcome, end.reason, end.weights_version) == ("finished", "", 3)
    assert [r["iteration"] for r in iterations(end.run_folder)] == [0, 1, 2]
    assert [r["samples"] for r in iterations(end.run_folder)] == [8, 8, 8]
    validated = [r for r in lines(end.run_folder, "metrics.jsonl") if r["kind"] == "validation"]
    assert [(r["weights_version"], r["images"]) for r in validated] == [(0, 32), (3, 32)]
    assert len(events(end.run_folder, "weights_published")) == 4
    assert [e["outcome"] for e in events(end.run_folder, "run_finished")] == ["finished"]
    counted = Counter(request.id for _, request in town.world.granted)
    assert set(counted.values()) == {1}, "nothing was lost, so nothing is done twice"
    artifacts = Path(end.run_folder) / "artifacts"
    assert not [path for path in artifacts.rglob("*") if path.is_file()]


async def test_a_job_waits_for_as_many_reserved_workers_as_it_has_ranks_and_says_so(
    town: Town,
) -> None:
    await town.join("spot", "spot")
    await town.submit(job())
    waiting = await town.wait(lambda now: bool(now.note))
    assert "reserved workers for training: 0 of 1" in waiting.note
    assert waiting.outcome == ""
    await town.join("reserved", "reserved")
    end = await town.ended()
    assert (end.outcome, end.reason) == ("finished", "")


async def test_a_fixed_budget_previews_every_candidate_first(town: Town) -> None:
    await with_nodes(town)
    town.world.train_s = 0.5
    end = await town.run(job())
    previews = [request for _, request in town.world.granted if request.kind == "preview"]
    assert len(previews) == 2 * 2 * 4 * 2  # iterations x groups x seeds x candidates
    assert [r["previews"] for r in iterations(end.run_folder)] == [0, 16, 16]
    assert end.previews == 32


async def test_a_window_budget_waits_for_nothing(town: Town) -> None:
    await with_nodes(town)
    town.world.denoise_s = 3.0
    end = await town.run(job(exploration={"budget": "window", "candidates": 64}))
    trains = [e for e in events(end.run_folder, "phase") if e["phase"] == "train"]
    published = [e for e in events(end.run_folder, "phase") if e["phase"] == "publish"][1:]
    rollouts = [e for e in events(end.run_folder, "phase") if e["phase"] == "rollout"][1:]
    for train, publish, rollout in zip(trains, published, rollouts, strict=False):
        assert publish["time_s"] - train["time_s"] < town.world.train_s + 0.1
        assert rollout["time_s"] - publish["time_s"] < 0.1
    assert iterations(end.run_folder)[2]["previews"] > 0


VALIDATED = {"exploration": {"budget": "window", "candidates": 64}, "validation": {"every": 1}}
"""While an iteration trains, the 8 batches of the validation of its weights wait."""


async def test_a_validation_has_as_much_of_the_window_as_its_denoising_takes(town: Town) -> None:
    await with_nodes(town)
    town.world.score_s = 2.0  # which makes rollouts long, but takes no steps
    end = await town.run(job(**VALIDATED))
    _, trained, explored = iterations(end.run_folder)
    assert trained["window_s"] == pytest.approx(20 - 4, abs=0.5), "4 are done beside the rollouts"
    assert explored["previews"] > 0


async def test_a_validation_that_takes_the_whole_window_leaves_no_time_and_that_is_told(
    town: Town,
) -> None:
    await with_nodes(town)
    town.world.denoise_s = 3.0
    end = await town.run(job(**VALIDATED))
    _, trained, explored = iterations(end.run_folder)
    assert (trained["window_s"], explored["previews"]) == (0.0, 0)


async def test_previews_use_the_weights_before_and_trainers_do_not_preview(town: Town) -> None:
    await with_nodes(town)
    await town.run(job())
    for name, request in town.world.granted:
        if request.kind == "preview":
            assert (name, request.weights_version) == ("spot/0", request.iteration - 1)
        elif request.kind == "rollout":
            assert request.weights_version == request.iteration


async def test_preview_rewards_never_become_advantages(town: Town) -> None:
    await with_nodes(town)
    await town.run(job())
    for iteration, samples in enumerate(trained_samples(town.world.trained)):
        assert [a for _, a in samples] == pytest.approx(expected_advantages(town.world, iteration))
    chosen, previewed = (
        {(r.iteration, r.prompt, r.seed) for _, r in town.world.granted if r.kind == kind}
        for kind in ("rollout", "preview")
    )
    assert {which for which in chosen if which[0] > 0} <= previewed


async def test_the_whole_spot_pool_may_die_in_the_middle(town: Town) -> None:
    await with_nodes(town)
    await town.submit(job())
    await town.wait(lambda now: now.phase == "rollout" and now.iteration == 1)
    await asyncio.sleep(0.2)
    await town.nodes["spot"].abort()
    end = await town.ended()
    assert end.outcome == "finished"
    (lost,) = events(end.run_folder, "node_lost")
    assert lost["node"] == "spot"
    assert end.reissued > 0
    assert [r["samples"] for r in iterations(end.run_folder)] == [8, 8, 8]
    assert [status.name for status in end.workers] == ["reserved/0"]
    for iteration, samples in enumerate(trained_samples(town.world.trained)):
        assert [a for _, a in samples] == pytest.approx(expected_advantages(town.world, iteration))


async def test_the_loss_of_a_spot_node_does_not_change_the_samples(town: Town) -> None:
    await with_nodes(town)
    await town.run(job())
    calm = trained_samples(town.world.trained)
    town.world.trained.clear()
    await town.submit(job())
    await town.wait(lambda now: now.phase == "train" and now.iteration == 0)
    await town.nodes["spot"].abort()
    await town.wait(lambda now: now.iteration == 2)
    await town.join("spot", "spot", "spot again")
    assert (await town.ended()).outcome == "finished"
    assert trained_samples(town.world.trained) == calm


async def test_a_spot_node_may_join_late_and_then_works(town: Town) -> None:
    await town.join("reserved", "reserved")
    await town.submit(job())
    await town.wait(lambda now: now.iteration == 1)
    await town.join("spot", "spot")
    assert (await town.ended()).outcome == "finished"
    assert town.world.by("spot/0", "rollout")


async def test_a_failed_prompt_group_is_dropped_and_the_job_goes_on(town: Town) -> None:
    await with_nodes(town)

    def fails(worker: str, scored: tuple[Request, ...]) -> bool:
        return any((r.kind, r.iteration, r.group) == ("rollout", 1, 0) for r in scored)

    town.world.fails = fails
    end = await town.run(job())
    assert end.outcome == "finished"
    assert [r["samples"] for r in iterations(end.run_folder)] == [8, 4, 8]
    dropped = events(end.run_folder, "group_dropped")
    assert {event["iteration"] for event in dropped} == {1}
    assert len(town.world.trained[1].samples) == 4
    assert len(events(end.run_folder, "scorer_failed")) == 3
    artifacts = Path(end.run_folder) / "artifacts"
    assert not [path for path in artifacts.rglob("*") if path.is_file()]


async def test_a_failed_prompt_group_stops_the_job_that_asks_for_it(town: Town) -> None:
    await with_nodes(town)
    town.world.fails = lambda worker, scored: scored[0].kind == "rollout"
    end = await town.run(job(scoring={"on_failure": "stop"}))
    assert end.outcome == "failed"
    assert "failed: no luck" in end.reason
    assert town.world.trained == []


async def test_when_every_group_fails_so_does_the_job(town: Town) -> None:
    await with_nodes(town)
    town.world.fails = lambda worker, scored: scored[0].kind == "rollout"
    end = await town.run(job())
    assert end.outcome == "failed"
    assert "every prompt group" in end.reason


async def test_a_validation_without_any_score_fails_the_job(town: Town) -> None:
    await with_nodes(town)
    town.world.fails = lambda worker, scored: scored[0].kind == "evaluation"
    end = await town.run(job())
    assert end.outcome == "failed"
    assert "validation" in end.reason


async def test_a_second_job_is_refused_while_one_runs(town: Town) -> None:
    await with_nodes(town)
    await town.submit(job())
    refused = await town.submit(job(name="second"))
    assert isinstance(refused, JobRefused)
    assert "`tiny` is running" in refused.reason
    assert (await town.ended()).outcome == "finished"
    assert isinstance(await town.submit(job(name="second")), JobAccepted)


async def test_a_job_that_cannot_run_is_refused_with_the_reason(town: Town) -> None:
    refused = await town.submit(job(model={"checkpoint": "builtin:nothing"}))
    assert isinstance(refused, JobRefused)
    assert "builtin:nothing" in refused.reason
    assert (await town.status()).job == ""


async def test_a_cancelled_job_can_be_resumed_where_it_was(town: Town) -> None:
    await with_nodes(town)
    await town.submit(job())
    await town.wait(lambda now: now.iteration == 2)
    await town.system.ask(town.coordinator, CancelJob(), timeout_s=10.0)
    end = await town.ended()
    assert (end.outcome, end.reason) == ("cancelled", "cancelled by the user")
    await town.submit(None, end.run_folder, resume=True)
    resumed = await town.ended()
    assert resumed.outcome == "finished"
    assert [r["iteration"] for r in iterations(resumed.run_folder)] == [0, 1, 2]


async def test_a_run_folder_is_free_although_its_store_does_not_close(
    town: Town, monkeypatch: pytest.MonkeyPatch
) -> None:
    close = BundleStore.aclose

    async def close_late(store: BundleStore) -> None:
        try:
            await asyncio.sleep(3600.0)
        finally:
            await close(store)

    await with_nodes(town)
    await town.submit(job())
    await town.wait(lambda now: now.iteration == 2)
    with monkeypatch.context() as patch:
        patch.setattr(BundleStore, "aclose", close_late)
        await town.ask(CancelJob())
        end = await town.ended()
    await town.submit(None, end.run_folder, resume=True)
    assert (await town.ended()).outcome == "finished"


async def test_a_node_cannot_take_the_name_of_another_one_that_is_there(town: Town) -> None:
    await with_nodes(town)
    await town.submit(job())
    system = await town.cluster.system("another spot")
    another = await recorder(system, "node")
    joining = NodeReport(1, "spot", "spot", another.ref, (), STORE)
    answer = await another.ask(town.coordinator, joining, timeout_s=5.0)
    assert isinstance(answer, NodeRefused)
    assert "`spot`" in answer.reason
    assert "--name" in answer.reason
    end = await town.ended()
    assert end.outcome == "finished"
    assert events(end.run_folder, "node_lost") == []


async def test_a_node_that_was_lost_comes_back_under_its_name(town: Town) -> None:
    await with_nodes(town)
    await town.submit(job())
    await town.wait(lambda now: now.iteration == 1)
    await town.nodes["spot"].abort()
    await town.join("spot", "spot", "spot again")
    end = await town.ended()
    assert end.outcome == "finished"
    assert len(events(end.run_folder, "node_lost")) == 1
    assert sorted(worker.name for worker in end.workers) == ["reserved/0", "spot/0"]


async def test_a_crash_of_the_runner_fails_the_job_and_the_coordinator_goes_on(
    town: Town, monkeypatch: pytest.MonkeyPatch
) -> None:
    await with_nodes(town)
    with monkeypatch.context() as broken:

        def explode(*_: Any) -> None:
            raise LookupError("a bug")

        broken.setattr("spotlight.actors.coordinator.training_phase.training_samples", explode)
        end = await town.run(job())
        await asyncio.sleep(5.0)
    assert end.outcome == "failed"
    assert "crashed" in end.reason
    assert (await town.run(job())).outcome == "finished"


async def test_a_crash_of_the_dispatcher_fails_the_job(
    town: Town, monkeypatch: pytest.MonkeyPatch
) -> None:
    await with_nodes(town)

    def explode(*_: Any) -> None:
        raise LookupError("a bug")

    monkeypatch.setattr("spotlight.policies.dispatch.table.RequestTable.report", explode)
    await town.submit(job())
    await town.wait(lambda now: now.outcome == "failed")


async def test_a_run_folder_that_cannot_be_written_ends_the_job_and_frees_the_nodes(
    town: Town, monkeypatch: pytest.MonkeyPatch
) -> None:
    from spotlight.errors import RunFolderError

    await with_nodes(town)

    def refuse(*_: Any) -> None:
        raise RunFolderError("the disk is full")

    monkeypatch.setattr("spotlight.store.run_folder.RunFolder.record_metrics", refuse)
    end = await town.run(job())
    assert (end.outcome, end.reason) == ("failed", "the disk is full")
    await asyncio.sleep(1.0)
    assert sorted(town.world.freed) == ["reserved/0", "spot/0"]


async def test_the_states_of_a_worker_follow_each_other_without_a_gap(town: Town) -> None:
    await with_nodes(town)
    end = await town.run(job())
    changes = [e for e in events(end.run_folder, "worker_state") if e["worker"] == "spot/0"]
    assert changes[0]["state"] == "starting"
    assert all(a["state"] != b["state"] for a, b in pairwise(changes))


async def test_thousands_of_workers_may_be_there_when_a_job_begins(town: Town) -> None:
    """In one turn of the loop, and in the next."""
    system = await town.cluster.system("crowd")
    crowd = await recorder(system, "node")

    async def join(number: int) -> None:
        workers = tuple(
            WorkerRefs(f"n{number}/{index}", 1 + number * 64 + index, *[crowd.ref] * 3)
            for index in range(64)
        )
        node = NodeReport(1, f"n{number}", "spot", crowd.ref, workers, STORE)
        await crowd.ask(town.coordinator, node, timeout_s=30.0)

    for number in range(40):
        await join(number)
    await town.submit(job())
    for number in range(40, 60):
        await join(number)
    now = await town.wait(lambda now: len(now.workers) == 60 * 64)
    assert not now.outcome


async def test_nobody_but_its_runner_ends_a_job(town: Town) -> None:
    await with_nodes(town)
    accepted = await town.submit(job())
    stranger = await recorder(await town.cluster.system("stranger"), "job-tiny")
    stranger.tell(town.coordinator, JobStatus(job="mine", outcome="finished"))
    known = next(iter(town.nodes.values()))
    node = known.well_known(known.address, "node")
    left = NodeReport(99, "reserved", "reserved", node, (), STORE, left=True)
    stranger.tell(town.coordinator, left)
    await asyncio.sleep(1.0)
    assert town.system.dead_letters.counts["not_allowed"] == 1
    assert town.system.dead_letters.counts["unhandled"] == 1
    assert (await town.status()).job == "tiny"
    runner = town.system.well_known(town.system.address, f"coordinator/job-{accepted.job_id}")
    for word in (
        TrainerReport(1, 0, 1, trained=TrainedIteration(0, {}, 1.0)),
        TrainerReport(1, 0, error="no"),
        TrainerReport(1, 0, 0),
        CancelJob(),
        left,
        WorkerReport("reserved/0", 1, state="idle"),
    ):
        stranger.tell(runner, word)
    await asyncio.sleep(1.0)
    assert town.system.dead_letters.counts["not_allowed"] == 7
    assert (await town.ended()).outcome == "finished"


async def test_a_node_speaks_for_itself_only(town: Town) -> None:
    await with_nodes(town)
    known = next(iter(town.nodes.values()))
    stranger = await recorder(await town.cluster.system("stranger"), "node")
    joining = NodeReport(1, "another", "spot", known.well_known(known.address, "node"), (), STORE)
    with pytest.raises(RemoteError, match="may not send NodeReport"):
        await stranger.ask(town.coordinator, joining, timeout_s=5.0)


async def test_a_node_speaks_of_its_own_workers_only(town: Town) -> None:
    """One that names another's would take them from the job for good."""
    await with_nodes(town)
    await town.submit(job())
    stranger = await recorder(await town.cluster.system("stranger"), "node")
    stolen = tuple(
        WorkerRefs(name, number, *[stranger.ref] * 3)
        for number, name in enumerate(("reserved/0", "spot/0"))
    )
    with pytest.raises(RemoteError, match="may not send NodeReport"):
        joining = NodeReport(1, "another", "spot", stranger.ref, stolen, STORE)
        await stranger.ask(town.coordinator, joining, timeout_s=5.0)
    joining = NodeReport(1, "another", "spot", stranger.ref, (), STORE)
    await stranger.ask(town.coordinator, joining, timeout_s=5.0)
    leaving = NodeReport(
        2, "another", "spot", stranger.ref, stolen, STORE, NodeNotice("user", None)
    )
    with pytest.raises(RemoteError, match="may not send NodeReport"):
        await stranger.ask(town.coordinator, leaving, timeout_s=5.0)
    assert (await town.ended()).outcome == "finished"


def test_a_node_of_too_many_workers_is_refused_as_it_is_read() -> None:
    ref = ActorRef("memory://n", "node", 1)
    workers = tuple(WorkerRefs(f"n/{number}", number, *[ref] * 3) for number in range(20_000))
    frame = encode_message(NodeReport(1, "n", "spot", ref, workers, STORE))
    with pytest.raises(BadInput, match="length"):
        decode_message(frame)


async def test_a_report_that_cannot_be_written_does_not_end_the_coordinator(
    town: Town, monkeypatch: pytest.MonkeyPatch
) -> None:
    await with_nodes(town)

    def explode(folder: Path) -> Path:
        raise ZeroDivisionError("a bug in a chart")

    monkeypatch.setattr("spotlight.actors.coordinator.coordinator.write_report", explode)
    assert (await town.run(job())).outcome == "finished"
    assert (await town.run(job())).outcome == "finished"


async def test_a_run_folder_that_is_deleted_ends_the_job_soon_and_says_so(town: Town) -> None:
    await with_nodes(town)
    accepted = await town.submit(job(iterations=40))
    await town.wait(lambda now: now.phase == "train")
    shutil.rmtree(accepted.run_folder)
    began = asyncio.get_running_loop().time()
    end = await town.ended()
    assert asyncio.get_running_loop().time() - began < 10.0
    assert end.outcome == "failed"
    assert "was deleted or moved" in end.reason
    assert (await town.run(job())).outcome == "finished"


async def test_a_restart_does_not_make_images_per_second_faster_than_they_were(town: Town) -> None:
    """What an earlier coordinator had is not made again in no time."""
    await with_nodes(town)
    town.world.train_s = 5.0
    spec = job(prompts={"per_iteration": 8})
    calm = [r["images_per_s"] for r in iterations((await town.run(spec)).run_folder)]
    await town.submit(spec)
    await town.wait(lambda now: now.phase == "rollout" and now.iteration == 1 and now.done > 0)
    await town.kill()
    await town.open()
    shown = []

    def ended(now: JobStatus) -> bool:
        shown.append(now.images_per_s)
        return bool(now.outcome)

    end = await town.wait(ended)
    assert max(shown) <= 2 * max(calm)
    recorded = iterations(end.run_folder)
    assert max(r["images_per_s"] for r in recorded) <= 2 * max(calm)
    assert recorded[1]["samples_restored"] > 0
    assert recorded[1]["samples"] == spec.samples_per_iteration


def test_a_status_is_said_the_less_often_the_more_it_says() -> None:
    pauses = [status_pause_s(lines, 0.2) for lines in (0, 4, 400, 1000, 4000, 100_000)]
    assert pauses == sorted(pauses) and pauses[0] == pauses[2] > 0
    assert 100_000 / pauses[-1] == 1000 / pauses[3], "as many lines per second"
