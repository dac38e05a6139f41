"""What an operator reads: the coordinator's log, and counts that outlive the coordinator. On
virtual time."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import structlog
from job_kit import job
from runtime_kit import Cluster
from town_kit import Town

from spotlight.actors.coordinator.tenant.tenant_log import TenantLog
from spotlight.actors.protocol.users import CancelJob, PreemptNode
from spotlight.record.run_events import DenoiseFailed, GradientsGivenUp, OtherDevice
from spotlight.report.metrics import summarise
from spotlight.report.run_reading import read_run

pytestmark = pytest.mark.virtual_time

SPEC = job(validation={"every": 1})


@pytest.fixture
async def town(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Town]:
    async with Cluster() as cluster:
        town = Town(cluster, tmp_path / "runs", monkeypatch)
        await town.open()
        await town.join("reserved", "reserved", apart=True)
        await town.join("spot", "spot")
        yield town


def named(name: str) -> Any:
    return job(name=name, validation={"every": 1})


def told(logs: list[Any], job_name: str) -> list[str]:
    """Names of the lines about a job."""
    return [line["event"] for line in logs if line.get("job") == job_name]


async def test_the_log_tells_of_every_job_from_its_beginning_to_its_end(town: Town) -> None:
    with structlog.testing.capture_logs() as logs:
        await town.run(named("first"))
        await town.submit(named("second"))
        await town.wait(lambda now: now.phase == "train" and now.iteration == 1)
        await town.kill()
        await town.open()
        await town.ended()
        await town.submit(named("third"))
        await town.wait(lambda now: now.iteration == 1)
        await town.ask(CancelJob())
        end = await town.ended()
        await town.submit(named("third"), end.run_folder, resume=True)
        await town.ended()
    for name in ("first", "second", "third"):
        lines = told(logs, name)
        assert lines[:3] == ["job_submitted", "job_began", "run_started"]
        assert lines[-1] == "run_finished"
        assert "iteration_done" in lines and "validated" in lines
    assert "job_goes_on" in told(logs, "second")
    ends = [line for line in logs if line["event"] == "run_finished"]
    assert [(line["job"], line["outcome"], line["reason"]) for line in ends] == [
        ("first", "finished", ""),
        ("second", "finished", ""),
        ("third", "cancelled", "cancelled by the user"),
        ("third", "finished", ""),
    ]
    resumed = [line["resumed_from_iteration"] for line in logs if line["event"] == "run_started"]
    assert resumed == [None, None, 1, None, 1], "the second came back, the third was resumed"


async def test_every_line_of_a_job_says_which_and_whose_it_is(town: Town) -> None:
    with structlog.testing.capture_logs() as logs:
        await town.submit(named("first"))
        await town.wait(lambda now: now.phase == "train" and now.iteration == 1)
        await town.nodes["spot"].abort()
        await town.ended()
    story = [line for line in logs if line["log_level"] != "debug" and "job" in line]
    assert {"job_submitted", "job_began", "worker_lost", "iteration_done", "run_finished"} <= {
        line["event"] for line in story
    }
    whose = {(line["job_id"], line["job"], line["owner"]) for line in story}
    assert len(whose) == 1 and all(next(iter(whose)))


async def test_an_iteration_is_told_with_its_reward_its_validation_and_its_seconds(
    town: Town,
) -> None:
    town.world.train_s = 10.0
    with structlog.testing.capture_logs() as logs:
        end = await town.run(SPEC)
    done = [line for line in logs if line["event"] == "iteration_done"]
    assert [line["completed"] for line in done] == list(range(1, SPEC.iterations + 1))
    assert all(line["reward_mean"] is not None for line in done)
    assert done[-1]["validation"] in [score for _, score in end.validation]
    assert all(line["seconds"] >= 10.0 for line in done)
    assert sum(line["seconds"] for line in done) <= end.elapsed_s + 0.01


async def test_what_goes_wrong_again_and_again_is_a_line_once_in_a_while() -> None:
    log = TenantLog("abc", "first", "operator")
    with structlog.testing.capture_logs() as logs:
        for worker in range(100):
            for error in ("no memory", "no disk"):
                log.event(DenoiseFailed(worker=f"w/{worker}", requests=(), error=error))
    assert [line["error"] for line in logs] == ["no memory", "no disk"]


async def test_operators_are_told_of_gradients_that_nobody_computes_and_why() -> None:
    log = TenantLog("abc", "first", "operator")
    with structlog.testing.capture_logs() as logs:
        log.event(OtherDevice(worker="s/0", device="cuda B", ranks=("cuda A",)))
        for number in range(100):
            log.event(GradientsGivenUp(request=f"gradient/{number}", count=1, reason="it is gone"))
    assert [(line["event"], line["log_level"]) for line in logs] == [
        ("other_device", "warning"),
        ("gradients_given_up", "warning"),
    ]


async def test_iterations_of_a_fast_job_do_not_fill_the_log(town: Town) -> None:
    town.world.train_s = town.world.denoise_s = 0.01
    with structlog.testing.capture_logs() as logs:
        end = await town.run(job(iterations=40))
    assert end.iteration == 40
    done = [line for line in logs if line["event"] == "iteration_done"]
    assert 1 <= len(done) < 10


async def test_nothing_that_goes_well_is_a_warning(town: Town) -> None:
    with structlog.testing.capture_logs() as logs:
        await town.run(SPEC)
    assert [line for line in logs if line["log_level"] not in ("debug", "info")] == []


async def test_the_status_counts_what_the_report_does(town: Town) -> None:
    await town.submit(SPEC)
    await town.wait(lambda now: now.phase == "train" and now.iteration == 1)
    await town.nodes["spot"].abort()
    end = await town.ended()
    summary = summarise(read_run(Path(end.run_folder)))
    assert end.previews == summary["previews"] > 0
    assert end.previews_late == summary["previews_late"]
    assert end.handed_on == summary["requests_handed_on"]


async def test_a_trainer_whose_node_has_left_after_a_notice_is_not_called_unreachable(
    town: Town,
) -> None:
    town.world.train_s = 100.0
    await town.submit(SPEC)
    await town.wait(lambda now: now.phase == "train" and now.iteration == 1)
    await town.ask(PreemptNode("reserved", 600.0, cancel=False, yes=True))
    told = await town.wait(lambda now: bool(now.note))
    assert told.note == (
        "reserved/0 trains on, though its node has left after a notice; others take over when its"
        " machine is gone"
    )
    trained = await town.wait(lambda now: now.iteration == 2 or bool(now.outcome))
    assert not trained.outcome, "it trains on, longer than it may be out of reach"
    assert "left after a notice" in trained.note
    await town.kill()
    await town.open()
    await town.wait(lambda now: "left after a notice" in now.note)
    await town.ask(PreemptNode("reserved", 0.0, cancel=True))
    await town.wait(lambda now: not now.note)


async def test_a_trainer_whose_node_is_out_of_reach_is_told_so(town: Town) -> None:
    town.world.train_s = 100.0
    await town.submit(SPEC)
    await town.wait(lambda now: now.phase == "train" and now.iteration == 1)
    heal = town.cut_off(town.nodes["reserved"])
    told = await town.wait(lambda now: bool(now.note))
    assert "its node is out of reach" in told.note
    heal()
    await town.wait(lambda now: not now.note)
