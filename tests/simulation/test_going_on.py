"""A run that goes on after its end does what a longer one would have done."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from spotlight.actors.protocol import JobAccepted, SubmitJob
from spotlight.jobs import JobSpec
from spotlight.jobs.resuming import job_with
from spotlight.record.run_events import SegmentBegan
from spotlight.store.run_folder import RunFolder
from spotlight_simulation.chaos import chaos_job, scratch_folder, silence
from spotlight_simulation.freezing import FreezableLoop
from spotlight_simulation.memory_cluster import Cluster
from spotlight_simulation.processes import NodeSpec
from spotlight_simulation.simulated_user import look

NODES = (NodeSpec("reserved", "reserved", 1), NodeSpec("spot", "spot", 1))


async def _ended(cluster: Cluster, message: SubmitJob) -> str:
    answer = await cluster.user().ask(cluster.coordinator_actor(), message, timeout_s=5.0)
    assert isinstance(answer, JobAccepted), answer
    while True:
        await asyncio.sleep(1.0)
        status = await look(cluster)
        if status is not None and status.outcome:
            return f"{status.outcome} {status.reason}".strip()


async def _run(folder: Path, job: JobSpec, segments: Sequence[Sequence[str]]) -> list[str]:
    """Run a job, then go on with each of these changes; how it ended each time."""
    path = str(folder / "runs" / "chaos-001")
    cluster = Cluster(0, folder, NODES)
    async with cluster:
        await cluster.start_coordinator()
        for node in NODES:
            await cluster.start_node(node.name)
        ends = [await _ended(cluster, SubmitJob(job, path, False))]
        for changes in segments:
            job = job_with(job, changes)
            ends.append(await _ended(cluster, SubmitJob(job, path, True, changes=tuple(changes))))
        assert not cluster.history.violations
    return ends


class Ended:
    """What a run has left, after each of some changes was gone on with."""

    def __init__(self, exploration: dict[str, Any], iterations: int, *changes: str) -> None:
        with (
            scratch_folder() as folder,
            silence(),
            asyncio.Runner(loop_factory=FreezableLoop) as runner,
        ):
            explores = {"candidates": 2, "budget": "fixed", **exploration}
            job = chaos_job(folder, iterations=iterations, exploration=explores)
            ends = runner.run(_run(folder, job, [[change] for change in changes]))
            assert set(ends) == {"finished"}, ends
            path = folder / "runs" / "chaos-001"
            self.weights = max((path / "checkpoints").iterdir()).read_bytes()
            """Those of the last checkpoint: their name tells all samples that they came of."""
            self.configs = {
                each.name: yaml.safe_load(each.read_text()) for each in path.glob("*.yaml")
            }
            opened, _ = RunFolder.reopen(path, None)
            self.figures = [_timeless(each) for each in opened.metrics()]
            self.segments = [
                each for each in opened.events((SegmentBegan,)) if isinstance(each, SegmentBegan)
            ]
            opened.close()

    @property
    def iterations(self) -> list[dict[str, Any]]:
        """The figures of its iterations."""
        return [each for each in self.figures if each["kind"] == "iteration"]


def _timeless(metrics: msgspec.Struct) -> dict[str, Any]:
    fields = msgspec.to_builtins(metrics)
    return {key: value for key, value in fields.items() if not key.endswith("_s")}


@pytest.mark.parametrize(
    ("exploration", "cut"),
    [
        pytest.param({"mode": "uniform"}, 1, id="after-its-first-iteration"),
        pytest.param({"mode": "bandit", "prompt_pool": 2}, 3, id="with-what-it-learnt-of-prompts"),
    ],
)
def test_a_run_that_is_continued_is_the_longer_run(exploration: dict[str, Any], cut: int) -> None:
    """An iteration is explored while the one before it is trained, also where a run had ended."""
    whole, continued = Ended(exploration, 5), Ended(exploration, cut, "iterations=5")
    assert continued.weights == whole.weights
    assert continued.figures == whole.figures


@pytest.mark.parametrize(
    "exploration",
    [
        pytest.param({"mode": "none"}, id="without-exploration"),
        pytest.param({"mode": "uniform", "weights": "fresh"}, id="with-fresh-weights"),
    ],
)
def test_a_run_keeps_the_validation_of_where_it_had_ended(exploration: dict[str, Any]) -> None:
    whole, continued = Ended(exploration, 4), Ended(exploration, 3, "iterations=4")
    assert continued.weights == whole.weights
    assert continued.iterations == whole.iterations
    assert [each for each in continued.figures if each in whole.figures] == whole.figures


def test_every_segment_is_on_record_with_what_it_changed() -> None:
    run = Ended(
        {"mode": "none"}, 2, "iterations=3", "training.learning_rate=0.0001", "iterations=4"
    )
    assert [(each.number, each.iteration) for each in run.segments] == [(2, 2), (3, 3), (4, 3)]
    assert [each.changes for each in run.segments] == [
        ("iterations: 2 -> 3",),
        ("training.learning_rate: 0.0003 -> 0.0001",),
        ("iterations: 3 -> 4",),
    ]
    rates = {name: each["training"]["learning_rate"] for name, each in run.configs.items()}
    assert rates == {
        "config-001.yaml": 3e-4,
        "config-002.yaml": 3e-4,
        "config-003.yaml": 1e-4,
        "config.yaml": 1e-4,
    }
    assert run.configs["config.yaml"]["iterations"] == 4


def test_a_run_that_goes_on_unchanged_begins_no_segment() -> None:
    run = Ended({"mode": "none"}, 2, "iterations=2")
    assert not run.segments
    assert [*run.configs] == ["config.yaml"]
