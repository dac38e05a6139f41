"""Preemption notices of a stand-in cloud and of signals, against real daemons."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from tests.cloud.fake_metadata import FakeMetadata
from tests.integration.conftest import LIMIT_S, Workplace, descendants, events, wait_until
from tests.worker_templates import apart


@pytest.fixture
def cloud() -> Iterator[FakeMetadata]:
    """A metadata service on a loop of its own."""
    served: Future[FakeMetadata] = Future()
    over = threading.Event()

    async def serve() -> None:
        async with FakeMetadata() as fake:
            served.set_result(fake)
            await asyncio.to_thread(over.wait)

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    fake = served.result(timeout=LIMIT_S)
    yield fake
    over.set()
    thread.join()


class Site:
    """A coordinator, a reserved and a spot node, and a long job."""

    def __init__(
        self,
        workplace: Workplace,
        cloud: FakeMetadata,
        monkeypatch: pytest.MonkeyPatch,
        *options: str,
    ) -> None:
        """`options` are those of the node that nothing happens to."""
        self.workplace = workplace
        address_file = workplace.folder / "address"
        self.coordinator = workplace.daemon(
            "coordinator", "--listen", "127.0.0.1:0", "--address-file", address_file,
            "--runs", workplace.folder / "runs",
        )  # fmt: skip
        wait_until(address_file.exists, "the coordinator")
        self.node("anchor", "reserved", *options)
        with monkeypatch.context() as environment:
            environment.setenv("SPOTLIGHT_METADATA_URL", cloud.url)
            self.spot = self.node("spot", "spot", env=apart())
        job = workplace.job(name="long", iterations=1000)
        assert workplace.spotlight("submit", job).code == 0
        self.run = workplace.folder / "runs" / "long-001"
        wait_until(lambda: bool(self.works("spot/0")), "work on the spot node")

    def node(self, name: str, pool: str, *options: str, **others: Any) -> subprocess.Popen[str]:
        return self.workplace.daemon(
            "node", "--name", name, "--pool", pool,
            "--logs", self.workplace.folder / "logs", *options, **others,
        )  # fmt: skip

    def events(self, name: str) -> list[dict[str, Any]]:
        return events(self.run, name)

    def works(self, worker: str) -> list[float]:
        """When a worker began to denoise something."""
        return [
            event["time_s"]
            for event in self.events("worker_state")
            if event["worker"] == worker and event["state"] in ("rollout", "explore", "evaluate")
        ]


@pytest.mark.slow
def test_a_clouds_notice_drains_the_node_and_its_withdrawal_brings_it_back(
    workplace: Workplace, cloud: FakeMetadata, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = Site(workplace, cloud, monkeypatch)

    cloud.aws_interrupt(in_s=120)
    wait_until(lambda: bool(site.events("node_lost")), "the node to leave")
    (notice,) = site.events("notice")
    assert (notice["node"], notice["source"]) == ("spot", "aws")
    assert 60 < notice["lead_s"] <= 120
    (left,) = site.events("node_lost")
    assert left["reason"] == "left after a notice"
    assert site.spot.poll() is None
    anchor = len(site.works("anchor/0"))
    wait_until(lambda: len(site.works("anchor/0")) > anchor + 1, "the job to go on")
    assert [time for time in site.works("spot/0") if time > notice["time_s"] + 1] == []

    cloud.aws_withdraw()
    wait_until(lambda: len(site.works("spot/0")) > 0 and _is_back(site), "the node to come back")


def _is_back(site: Site) -> bool:
    (left,) = site.events("node_lost")
    return any(time > left["time_s"] for time in site.works("spot/0"))


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_a_signal_lets_a_node_give_everything_back_before_it_ends(
    workplace: Workplace,
    cloud: FakeMetadata,
    monkeypatch: pytest.MonkeyPatch,
    template: tuple[str, str],
    number: signal.Signals,
) -> None:
    site = Site(workplace, cloud, monkeypatch, *template)

    for process in (*descendants(site.spot.pid), site.spot):  # as Slurm and systemd do
        process.send_signal(number)

    assert site.spot.wait(timeout=LIMIT_S) == 0
    wait_until(lambda: bool(site.events("node_lost")), "the news of it")
    (notice,) = site.events("notice")
    assert (notice["node"], notice["source"]) == ("spot", "signal")
    assert [event["reason"] for event in site.events("node_lost")] == ["left after a notice"]
    assert site.events("work_taken_back") == []


@pytest.mark.slow
def test_a_coordinator_serves_on_after_slurms_notice(
    workplace: Workplace, cloud: FakeMetadata, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = Site(workplace, cloud, monkeypatch)

    for number in (signal.SIGUSR1, signal.SIGUSR2):
        site.coordinator.send_signal(number)

    worked = len(site.works("anchor/0"))
    wait_until(lambda: len(site.works("anchor/0")) > worked + 1, "the job to go on")
    assert site.coordinator.poll() is None


@pytest.mark.slow
def test_the_journal_of_another_run_is_refused(workplace: Workplace) -> None:
    first = workplace.spotlight("run", workplace.job(), "--run-folder", "first")
    assert first.code == 0, first.errors
    other = workplace.job("other.yaml", seed=7)
    second = workplace.spotlight("run", other, "--run-folder", "second")
    assert second.code == 0, second.errors
    for name in ("journal.records",):
        theirs = workplace.folder / "first" / name
        (workplace.folder / "second" / name).write_bytes(Path(theirs).read_bytes())

    done = workplace.spotlight("run", "--resume", "second")

    assert done.code == 2
    assert "journal.records" in done.errors
    assert "Traceback" not in done.errors
