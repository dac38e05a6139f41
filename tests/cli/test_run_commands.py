"""The verbs that read what runs have left behind: report, compare and logs."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from spotlight.actors.protocol.users import JobStatus
from spotlight.errors import UnknownJob
from spotlight.jobs import job_to_yaml
from spotlight.store.log_folder import log_base
from tests.cli.stand_in import StandIn
from tests.small_run import small_job


class Coordinator(StandIn):
    """See `StandIn`."""

    def __init__(self) -> None:
        super().__init__()
        self.run_folder = "/elsewhere/runs/small-001"

    async def status(self, job: str = "") -> JobStatus:
        return self.answer(("status", job), JobStatus(job="small", run_folder=self.run_folder))


@pytest.fixture
def coordinator(
    reached_by_join: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Coordinator:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return reached_by_join(Coordinator())


def write_run(folder: Path, rewards: tuple[float, ...] = (0.25, 0.5), **job: Any) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(job_to_yaml(small_job(**job)))
    metrics = [
        {"kind": "iteration", "time_s": 10.0 * number, "iteration": number, "reward_mean": reward}
        for number, reward in enumerate(rewards, start=1)
    ]
    events = [
        {"event": "run_started", "time_s": 0.0, "job": "small"},
        {"event": "node_joined", "time_s": 1.0, "node": "spot-0", "pool": "spot"},
        {"event": "worker_state", "time_s": 2.0, "worker": "spot-0/0", "state": "rollout"},
        {"event": "run_finished", "time_s": 90.0, "outcome": "finished"},
    ]
    for name, lines in (("metrics.jsonl", metrics), ("events.jsonl", events)):
        (folder / name).write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return folder


@pytest.fixture
def run(coordinator: Coordinator, tmp_path: Path) -> Path:
    return write_run(tmp_path / "runs" / "small-001")


@pytest.mark.parametrize("words", [(), ("last",), ("small",), ("small-001",), ("runs/small-001",)])
def test_a_report_is_written_of_a_run_as_people_name_it(
    coordinator: Coordinator, spotlight: Any, run: Path, words: tuple[str, ...]
) -> None:
    code, out, _ = spotlight("report", *words)
    assert code == 0 and out.endswith("small-001/report.html\n")
    assert (run / "report.html").exists()
    assert coordinator.asked == []


def test_a_job_of_the_coordinator_is_found_where_its_run_folder_is(
    coordinator: Coordinator, spotlight: Any, tmp_path: Path
) -> None:
    coordinator.run_folder = str(write_run(tmp_path / "cluster" / "x"))
    code, out, _ = spotlight("report", "other", "--json")
    assert code == 0 and json.loads(out)["iterations"] == 2
    assert coordinator.asked == [("status", "other")]


@pytest.mark.parametrize("verb", ["report", "logs"])
def test_a_run_on_another_machine_is_said_to_be_there(
    coordinator: Coordinator, spotlight: Any, verb: str
) -> None:
    code, out, err = spotlight(verb, "other")
    assert (code, out) == (2, "")
    assert "in /elsewhere/runs/small-001 on the coordinator's machine" in err


@pytest.mark.parametrize("verb", ["report", "logs"])
def test_what_is_neither_run_nor_job_is_refused(
    coordinator: Coordinator, spotlight: Any, verb: str
) -> None:
    assert "there is no run below `runs`" in spotlight(verb)[2]
    coordinator.error = UnknownJob("no job `x`; there are none")
    code, _, err = spotlight(verb, "x")
    assert code == 4
    assert "`x` is no run folder" in err and "as a job: no job `x`" in err


# --- compare ---


def test_runs_are_compared_over_their_seeds(
    coordinator: Coordinator, spotlight: Any, tmp_path: Path
) -> None:
    for seed, reward in enumerate((0.4, 0.6)):
        write_run(tmp_path / "runs" / f"a-{seed}", (reward,), seed=seed)
    write_run(tmp_path / "runs" / "b-0", (0.9,), training={"learning_rate": 0.5})
    code, out, _ = spotlight("compare", "a-0", "a-1", "b-0", "--html", "page.html")
    assert code == 0
    assert "1  training.learning_rate=0.5 (seed 0)" in out
    assert "(seeds 0, 1)" in out and "0.500 ± 1.271" in out
    assert max(map(len, out.splitlines())) <= 80
    assert "the curves: page.html" in out
    assert "0.500 ± 1.271" in Path("page.html").read_text()
    _, said, err = spotlight("compare", "a-0", "a-1", "b-0", "--json", "--html", "page.html")
    assert [one["seeds"] for one in json.loads(said)] == [[0, 1], [0]]
    assert "page.html" in err


@pytest.mark.parametrize("words", [("small",), ("small", "runs/small-001", "small-001")])
def test_a_run_is_not_compared_with_itself(
    coordinator: Coordinator, spotlight: Any, run: Path, words: tuple[str, ...]
) -> None:
    code, _, err = spotlight("compare", *words)
    assert code == 2 and "name two runs or more" in err


def test_a_page_that_cannot_be_written_is_one_line(
    coordinator: Coordinator, spotlight: Any, run: Path, tmp_path: Path
) -> None:
    write_run(tmp_path / "runs" / "other-001")
    code, _, err = spotlight("compare", "small", "other", "--html", "nowhere/page.html")
    assert code == 2 and "--html nowhere/page.html: cannot be written" in err


# --- logs ---


def test_the_story_of_a_run_is_told_in_order(
    coordinator: Coordinator, spotlight: Any, run: Path
) -> None:
    code, out, _ = spotlight("logs", "small")
    assert code == 0
    assert [line.split()[:3] for line in out.splitlines()] == [
        ["0:00", "Run", "started"],
        ["0:01", "Node", "joined"],
        ["0:10", "Iteration", "1"],
        ["0:20", "Iteration", "2"],
        ["1:30", "Run", "ended"],
    ]


def test_the_story_is_there_as_json(coordinator: Coordinator, spotlight: Any, run: Path) -> None:
    lines = [json.loads(line) for line in spotlight("logs", "--json")[1].splitlines()]
    assert lines[-1] == {"time_s": 90.0, "what": "Run ended", "details": "finished",
                         "is_loss": False}  # fmt: skip


def test_whoever_follows_a_run_that_has_ended_does_not_wait(
    coordinator: Coordinator, spotlight: Any, run: Path
) -> None:
    assert spotlight("logs", "-f") == spotlight("logs")


@pytest.mark.parametrize("worker", ["spot-0/1", "spot-0", "coordinator"])
def test_the_log_of_a_process_of_a_local_run_is_in_its_folder(
    coordinator: Coordinator, spotlight: Any, run: Path, worker: str
) -> None:
    (run / "logs").mkdir()
    (run / "logs" / f"{worker.replace('/', '-')}.log").write_text("one\n\x1b[2Jtwo\nthree")
    code, out, _ = spotlight("logs", "small", "--worker", worker)
    assert (code, out) == (0, "one\n\\x1b[2Jtwo\nthree\n")


def test_the_newest_log_of_a_node_of_this_machine_is_found(
    coordinator: Coordinator, spotlight: Any
) -> None:
    for age, name in ((9, "old"), (1, "new")):
        folder = log_base() / f"spot-3-{name}"
        folder.mkdir(parents=True)
        file = folder / "spot-3-0.log"
        file.write_text(f"{name}\n")
        os.utime(file, (1e9 - age, 1e9 - age))
    code, out, _ = spotlight("logs", "other", "--worker", "spot-3/0")
    assert (code, out) == (0, "new\n")


def test_a_log_on_another_machine_is_said_to_be_there(
    coordinator: Coordinator, spotlight: Any, run: Path
) -> None:
    code, out, err = spotlight("logs", "small", "--worker", "spot-9/0")
    assert (code, out) == (2, "")
    assert "Look on the machine of the node `spot-9`" in err
