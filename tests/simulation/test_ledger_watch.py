"""A second that is on no bill, on two, or on another job's is seen in a simulated cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from spotlight.actors.protocol.up import NodeReport, WorkerRefs
from spotlight.actors.protocol.users import Acknowledged
from spotlight.actors.runtime import ActorRef
from spotlight.record.ledger import Ledger, NodeBill, RollupLine, WorkerTimes
from spotlight.store.ledger_file import write_ledger
from spotlight.store.rollups import FOLDER, Rollups
from spotlight.types import StoreEndpoint
from spotlight_simulation.history import History
from spotlight_simulation.ledger_watch import WRITTEN_AFTER_S, LedgerWatch

STORE = StoreEndpoint("127.0.0.1", 1, "token", "machine", "/root")
NODE = ActorRef("memory://n", "node", 1)
WORKER = WorkerRefs("n/0", 1, NODE, NODE, NODE)
HAS_SAID = f"{NODE.process:x}"


class Scene:
    """A node's process that begins at 0, works for nobody, and for job `a` from 1 s on. Its machine
    may have been starting for some time before."""

    def __init__(self, folder: Path, machine_s: float = 0.0) -> None:
        self.runs, self.now, self.number = folder, 0.0, 0
        self.history = History(lambda: self.now)
        self.watch = LedgerWatch(self.history, folder, lambda: self.now)
        self.watch.begun("n#1", machine_s)
        self.now = 1.0
        self.watch.works_for("n#1", "a")
        self.run = folder / "a-001"
        self.run.mkdir()

    def reports(self, at: float, *times: tuple[int, str, int]) -> None:
        """The node says that it has trained for so many milliseconds, by number and job; a
        coordinator takes it."""
        self.now, self.number = at, self.number + 1
        stretches = tuple(
            WorkerTimes(number, job, {"n/0": {"train": time_ms}}) for number, job, time_ms in times
        )
        report = NodeReport(self.number, "n", "spot", NODE, (WORKER,), STORE, times=stretches)
        self.watch.said("n#1", report)
        self.watch.heard(report)
        self.watch.answered(report, Acknowledged())

    def reports_truly(self, at: float) -> None:
        """What is so."""
        self.reports(at, (0, "", 1000), (1, "a", round(at * 1000) - 1000))

    def writes(self, folder: Path, *bills: tuple[int, str, int], write: int = 1) -> None:
        """A ledger with such bills."""
        made = tuple(
            NodeBill(
                node="n",
                pool="spot",
                job=job,
                process=HAS_SAID,
                number=number,
                workers=1,
                from_at=0.0,
                to_at=1.0,
                times={"n/0": {"train": time_ms}},
            )
            for number, job, time_ms in bills
        )
        write_ledger(folder, Ledger(number=write, bills=made))

    def found(self) -> list[str]:
        """What is wrong when the coordinator has ended long after."""
        self.now += 2 * WRITTEN_AFTER_S
        self.watch.coordinator_ended()
        self.watch.check()
        return self.history.violations


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


def test_bills_that_say_what_was_are_right(scene: Scene) -> None:
    scene.reports_truly(3.0)
    scene.writes(scene.runs, (0, "", 1000))
    scene.writes(scene.run, (1, "a", 2000))
    assert scene.found() == []


@pytest.mark.parametrize(
    "times",
    [
        pytest.param([(0, "", 1000), (1, "a", 1999)], id="a millisecond is missing"),
        pytest.param([(0, "", 1001), (1, "a", 2000)], id="one counts twice"),
        pytest.param([(0, "", 1000), (1, "b", 2000)], id="of another job"),
        pytest.param([(0, "", 1000)], id="nothing of the present job"),
        pytest.param([], id="nothing"),
    ],
)
def test_a_node_that_says_what_was_not_is_noticed(
    scene: Scene, times: list[tuple[int, str, int]]
) -> None:
    scene.reports(3.0, *times)
    assert scene.history.violations


def test_a_bill_of_what_nobody_said_is_noticed(scene: Scene) -> None:
    scene.reports_truly(3.0)
    scene.writes(scene.runs, (0, "", 1000))
    scene.writes(scene.run, (1, "a", 2001))
    assert "2001 ms are billed" in scene.found()[0]


def test_time_that_is_on_no_bill_is_noticed(scene: Scene) -> None:
    scene.reports_truly(3.0)
    scene.writes(scene.run, (1, "a", 2000))
    assert "1000 must be" in scene.found()[0]


def test_what_was_said_just_before_a_kill_need_not_be_written(scene: Scene) -> None:
    scene.reports_truly(3.0)
    scene.watch.coordinator_ended()
    assert scene.found() == []


def test_what_was_said_to_a_coordinator_that_was_stopped_need_not_be_written(scene: Scene) -> None:
    scene.reports_truly(3.0)
    scene.watch.frozen()
    scene.now += 100.0
    scene.watch.frozen()
    assert scene.found() == []


def test_time_that_is_on_two_bills_is_noticed(scene: Scene) -> None:
    scene.reports_truly(3.0)
    scene.writes(scene.runs, (0, "", 1000), (1, "a", 2000))
    scene.writes(scene.run, (1, "a", 2000))
    assert "4000 ms are billed" in scene.found()[0]


def test_a_bill_of_another_job_is_noticed(scene: Scene) -> None:
    scene.reports_truly(3.0)
    scene.writes(scene.runs, (0, "", 1000))
    scene.writes(scene.run, (1, "b", 2000))
    assert "is not of 'b'" in scene.found()[0]


def test_a_bill_that_shrinks_is_noticed(scene: Scene) -> None:
    scene.reports_truly(3.0)
    for write, time_ms in enumerate((2000, 1500), start=1):
        scene.writes(scene.run, (1, "a", time_ms), write=write)
        scene.watch.look()
    assert "shrinks from 2000 to 1500" in scene.history.violations[0]


def test_lines_that_do_not_add_up_to_their_ledger_are_noticed(scene: Scene) -> None:
    scene.reports_truly(3.0)
    scene.writes(scene.runs, (0, "", 1000))
    scene.writes(scene.run, (1, "a", 2000))
    rollups = Rollups(scene.run / FOLDER)
    times: Any = {"n/0": {"train": 1999}}
    rollups.append(RollupLine(number=1, start_s=0.0, end_s=2.0, at=2.0, times=times))
    rollups.close()
    assert "the lines have 1999 ms" in scene.found()[0]


def test_the_start_of_a_machine_must_be_on_a_bill(tmp_path: Path) -> None:
    scene = Scene(tmp_path, machine_s=5.0)
    scene.reports_truly(3.0)
    scene.writes(scene.runs, (0, "", 1000))
    scene.writes(scene.run, (1, "a", 2000))
    assert "5000 must be" in scene.found()[0]


def test_the_start_of_a_machine_is_on_no_bill_of_a_job(tmp_path: Path) -> None:
    scene = Scene(tmp_path, machine_s=5.0)
    scene.reports_truly(3.0)
    scene.writes(scene.runs, (0, "", 1000))
    scene.writes(scene.run, (1, "a", 2000), (-1, "a", 5000))
    assert "the start of the machine of n#1 is of 'a'" in scene.found()[0]
