"""What nodes say of their time is written for each job, whichever coordinator hears it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from spotlight.actors.coordinator.accounts import Accounts
from spotlight.actors.protocol.up import NodeReport, WorkerRefs
from spotlight.actors.runtime import ActorRef
from spotlight.policies.money.prices import Prices
from spotlight.record.ledger import Price, WorkerTimes
from spotlight.store.job_queue import JobQueue
from spotlight.store.ledger_file import NAME, read_ledger
from spotlight.store.queued_job import QueuedJob
from spotlight.store.rollups import read_rollups
from spotlight.timings import CoordinatorTimings
from spotlight.types import StoreEndpoint

STORE = StoreEndpoint("127.0.0.1", 1, "token", "machine", "/root")


class Office:
    """Accounts over a folder of runs with one job in it, `a`, and what nodes say to them."""

    def __init__(self, runs: Path, now: Callable[[], float]) -> None:
        self.runs, self.run = runs, runs / "a"
        self.run.mkdir(exist_ok=True)
        self.queue = JobQueue.open(runs)
        if not self.queue.live():
            self.queue.add(
                QueuedJob("job-a", "a", "job", "me", 1.0, 0, 1, str(self.run), submitted_at=0.0)
            )
        timings = CoordinatorTimings()
        self.accounts = Accounts(runs, self.queue, {}, Prices(), now, timings)

    def close(self) -> None:
        """As a kill does."""
        self.accounts.abort()
        self.queue.close()

    def times_of(self, folder: Path) -> dict[str, int]:
        """All that is written in the ledger of a folder, by state."""
        total: dict[str, int] = {}
        for bill in read_ledger(folder).bills:
            for states in bill.times.values():
                for state, time_ms in states.items():
                    total[state] = total.get(state, 0) + time_ms
        return total


@pytest.fixture
def now() -> list[float]:
    return [1000.0]


@pytest.fixture
def office(tmp_path: Path, now: list[float]) -> Any:
    made = Office(tmp_path, lambda: now[0])
    yield made
    made.close()


def report(*times: WorkerTimes, process: int = 1, **fields: Any) -> NodeReport:
    ref = ActorRef("tcp://n", "node", process << 20)
    refs = WorkerRefs("n/0", 1, ref, ref, ref)
    return NodeReport(1, "n", "spot", ref, (refs,), STORE, times=times, **fields)


def stretch(number: int, job: str, **states: int) -> WorkerTimes:
    return WorkerTimes(number, job, {"n/0": msgspec.convert(states, dict[Any, int])})


async def test_time_is_written_with_the_job_that_it_belongs_to(office: Office) -> None:
    office.accounts.report(report(stretch(0, "", starting=3000), stretch(1, "job-a", rollout=500)))
    await office.accounts.write()
    assert office.times_of(office.runs) == {"starting": 3000}
    assert office.times_of(office.run) == {"rollout": 500}


async def test_time_of_a_job_that_nobody_knows_is_written_with_that_of_none(
    office: Office,
) -> None:
    office.accounts.report(report(stretch(0, "unknown", rollout=500)))
    await office.accounts.write()
    assert [(bill.job, bill.times) for bill in read_ledger(office.runs).bills] == [
        ("unknown", {"n/0": {"rollout": 500}})
    ]


async def test_a_line_that_was_written_before_a_kill_and_its_ledger_not_counts_once(
    office: Office, tmp_path: Path
) -> None:
    office.accounts.report(report(stretch(0, "job-a", rollout=500)))
    await office.accounts.write()
    ledger = (office.run / NAME).read_bytes()
    office.accounts.report(report(stretch(0, "job-a", rollout=900)))
    await office.accounts.write()
    office.close()
    (office.run / NAME).write_bytes(ledger)
    following = Office(tmp_path, lambda: 1020.0)
    following.accounts.report(report(stretch(0, "job-a", rollout=1400)))
    await following.accounts.write()
    following.close()
    assert office.times_of(office.run) == {"rollout": 1400}
    lines = read_rollups(office.run / "rollups", 0.0, 100.0, 10)
    assert [(line.number, line.times["n/0"]["rollout"]) for line in lines] == [(1, 500), (2, 900)]


async def test_what_was_said_to_a_coordinator_that_was_killed_counts_once(
    office: Office, tmp_path: Path
) -> None:
    office.accounts.report(report(stretch(0, "job-a", rollout=500)))
    await office.accounts.write()
    office.accounts.report(report(stretch(0, "job-a", rollout=900)))
    office.close()
    following = Office(tmp_path, lambda: 1020.0)
    following.accounts.report(report(stretch(0, "job-a", rollout=1400)))
    await following.accounts.write()
    following.close()
    assert office.times_of(office.run) == {"rollout": 1400}
    lines = read_rollups(office.run / "rollups", 0.0, 100.0, 10)
    assert sum(line.times["n/0"]["rollout"] for line in lines) == 1400


async def test_the_start_of_a_machine_is_paid_for_once(office: Office, now: list[float]) -> None:
    office.accounts.report(report(stretch(0, "", starting=5000), machine_s=60.0))
    office.accounts.report(report(stretch(0, "", starting=5000, idle=10), machine_s=60.0))
    await office.accounts.write()
    assert office.times_of(office.runs) == {"starting": 65_000, "idle": 10}


async def test_another_process_of_a_machine_did_not_start_it(
    office: Office, now: list[float]
) -> None:
    office.accounts.report(report(stretch(0, "", starting=5000), machine_s=60.0))
    now[0] += 30.0
    again = report(stretch(0, "", starting=2000), machine_s=95.0, process=2)
    office.accounts.report(again)
    await office.accounts.write()
    pause_ms = 28_000  # in which no process was there, but the machine was
    assert office.times_of(office.runs)["starting"] == 65_000 + 2000 + pause_ms


async def test_a_node_says_what_it_costs(office: Office) -> None:
    price = Price(3.6, 7.2, "node")
    office.accounts.report(report(stretch(0, "job-a", rollout=1_000_000), price=price))
    await office.accounts.write()
    (bill,) = read_ledger(office.run).bills
    assert bill.price == price


async def test_what_a_node_says_of_workers_of_others_does_not_count(office: Office) -> None:
    times = WorkerTimes(0, "job-a", {"n/0": {"rollout": 1}, "other/0": {"rollout": 10**9}})
    office.accounts.report(report(times))
    await office.accounts.write()
    assert office.times_of(office.run) == {"rollout": 1}


async def test_a_ledger_that_cannot_be_read_is_set_aside(office: Office) -> None:
    (office.run / NAME).write_text("{", encoding="utf-8")
    office.accounts.report(report(stretch(0, "job-a", rollout=500)))
    await office.accounts.write()
    assert office.times_of(office.run) == {"rollout": 500}
    assert (office.run / f"{NAME}.damaged").read_text(encoding="utf-8") == "{"


async def test_a_run_folder_that_was_deleted_is_not_made_again(office: Office) -> None:
    office.run.rmdir()
    office.accounts.report(report(stretch(0, "job-a", rollout=500)))
    await office.accounts.write()
    assert not office.run.exists()


async def test_a_ledger_that_could_not_be_written_is_written_later(office: Office) -> None:
    block = office.run / "rollups"
    block.write_text("in the way", encoding="utf-8")
    office.accounts.report(report(stretch(0, "job-a", rollout=500)))
    await office.accounts.write()
    assert not (office.run / NAME).exists()
    block.unlink()
    await office.accounts.write()
    assert office.times_of(office.run) == {"rollout": 500}


async def test_the_end_of_a_job_waits_until_its_nodes_work_for_others(office: Office) -> None:
    office.accounts.report(report(stretch(0, "job-a", rollout=500)))
    office.accounts.report(report(stretch(0, "job-a", rollout=700), stretch(1, "")))
    await office.accounts.settle("job-a")
    assert office.times_of(office.run) == {"rollout": 700}


async def test_what_is_said_late_of_a_job_costs_as_much_as_before(tmp_path: Path) -> None:
    """The job has ended, and with an earlier coordinator who knew its prices."""
    first = Office(tmp_path, lambda: 1000.0)
    first.accounts.report(report(stretch(0, "job-a", rollout=1000), price=Price(3.6)))
    await first.accounts.write()
    first.close()
    second = Office(tmp_path, lambda: 1010.0)
    second.accounts.report(report(stretch(0, "job-a", rollout=1500)))
    await second.accounts.write()
    (bill,) = read_ledger(second.run).bills
    second.close()
    assert bill.price == Price(3.6, None, "node")
    assert bill.times == {"n/0": {"rollout": 1500}}
