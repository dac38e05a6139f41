"""What `status` says of a job while it runs, and what the page and the report show of its folder,
are the same. On virtual time."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest
from job_kit import job
from runtime_kit import Cluster
from town_kit import Town

from spotlight.actors.protocol.users import JobStatus
from spotlight.report.rendering import report_data
from spotlight.report.run_view import RunView
from spotlight.report.view_building import view_of

pytestmark = pytest.mark.virtual_time

SPEC = job(validation={"every": 1}, prices={"reserved": 3.0, "spot": 1.0})


@pytest.fixture
async def town(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Town]:
    async with Cluster() as cluster:
        town = Town(cluster, tmp_path / "runs", monkeypatch)
        await town.open()
        await town.join("reserved", "reserved", apart=True)
        await town.join("spot", "spot")
        yield town


def require_same(status: JobStatus, view: RunView) -> None:
    assert view.job.name == status.job
    assert (view.job.iteration, view.job.iterations) == (status.iteration, status.iterations)
    assert view.job.time_s == pytest.approx(status.elapsed_s, abs=1.0)  # since the last line
    scores = [score for _, score in status.validation]
    assert view.validation.first == (pytest.approx(scores[0]) if scores else None)
    assert view.validation.latest == (pytest.approx(scores[-1]) if scores else None)


async def test_status_page_and_report_say_the_same_of_a_run_that_goes_on(town: Town) -> None:
    await town.submit(SPEC)
    now = await town.wait(lambda now: now.phase == "train" and now.iteration == 1)
    view = view_of(Path(now.run_folder), now=0.0)
    require_same(now, view)
    assert (view.job.outcome, view.job.phase) == ("running", now.phase)
    assert sum(view.job.workers.values()) == len(now.workers)


async def test_status_page_and_report_say_the_same_of_a_run_that_lost_a_node(town: Town) -> None:
    await town.submit(SPEC)
    await town.wait(lambda now: now.phase == "train" and now.iteration == 1)
    await town.nodes["spot"].abort()
    end = await town.ended()
    view = view_of(Path(end.run_folder))
    require_same(end, view)
    assert (view.job.outcome, view.job.reason) == (end.outcome, end.reason)
    assert [mark.kind for mark in view.marks].count("lost") == 1
    told = report_data(Path(end.run_folder))
    shown = told["view"]
    assert shown == msgspec.to_builtins(view)
    assert told["outcome"] == end.outcome and told["previews"] == end.previews
    assert told["iterations"] == end.iteration
