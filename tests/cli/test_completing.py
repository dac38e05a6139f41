"""What a shell offers for the names of jobs and nodes."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from spotlight.actors.protocol.door import GuestList, KnownNode
from spotlight.actors.protocol.users import JobEntry, JobList
from spotlight.cli import completing
from spotlight.errors import PeerUnreachable
from tests.cli.stand_in import StandIn
from tests.small_run import write_run

JOBS = tuple(
    JobEntry(name, name, "job", "operator", "running", 1.0, 0, 0.0)
    for name in ("signs", "signs-2", "other")
)
CONTEXT: Any = SimpleNamespace(params={"join": None})


class Coordinator(StandIn):
    """See `StandIn`. It takes so many seconds to answer."""

    delay_s = 0.0

    async def jobs(self, **_: Any) -> JobList:
        await asyncio.sleep(self.delay_s)
        return self.answer(("jobs",), JobList(JOBS))

    async def guests(self) -> GuestList:
        return self.answer(("guests",), GuestList((), (KnownNode("a", "spot", "", True),), "1"))


@pytest.fixture
def coordinator(reached_by_join: Any) -> Coordinator:
    return reached_by_join(Coordinator())


def test_names_that_begin_like_this_are_offered(coordinator: Coordinator) -> None:
    assert completing.job_names(CONTEXT, "si") == ["signs", "signs-2"]
    assert completing.job_names(CONTEXT, "") == ["signs", "signs-2", "other"]
    assert completing.node_names(CONTEXT, "") == ["a"]
    assert completing.node_names(CONTEXT, "b") == []


def test_a_coordinator_that_cannot_be_asked_offers_nothing(
    coordinator: Coordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    coordinator.error = PeerUnreachable("nobody")
    assert completing.job_names(CONTEXT, "") == []
    monkeypatch.delenv("SPOTLIGHT_JOIN")
    assert completing.node_names(CONTEXT, "") == []


def test_runs_of_this_folder_are_offered_without_asking_anybody(
    coordinator: Coordinator, tmp_path: Path
) -> None:
    (tmp_path / "runs").mkdir()
    for name in ("signs-001", "other-001"):
        write_run(tmp_path / "runs" / name)
    assert completing.run_names("si") == ["signs-001"]
    assert completing.run_names("") == ["other-001", "signs-001", "last"]
    assert coordinator.asked == []


def test_nobody_waits_long_for_an_offer(
    coordinator: Coordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(completing, "LIMIT_S", 0.01)
    coordinator.delay_s = 30.0
    assert completing.job_names(CONTEXT, "") == []
