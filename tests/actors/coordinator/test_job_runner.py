"""Whole lives of a job on virtual time, with fake nodes that may be lost."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from job_kit import job
from job_runner_kit import *  # noqa: F403  (its fixtures)
from job_runner_kit import with_nodes
from town_kit import Town, events, iterations, lines

from spotlight.actors.coordinator.tenant.tenant import status_pause_s
from spotlight.actors.protocol.users import JobStatus

pytestmark = pytest.mark.virtual_time


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
    artifacts = Path(end.run_folder) / "artifacts.d"
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
