"""What one coordinator can hold: `python -m benchmarks.control_plane --json`.

The real coordinator, as its daemon, over ZeroMQ on loopback, with a job whose rollouts are never
done: fake nodes of eight workers, in four processes, join at once, hold a lease each, and report as
real ones do. The processes share the machine's cores with the coordinator, and have one connection
each, where a real node and each of its workers have their own.

- `report_cpu_growth`: processor time of the coordinator per report with the most workers, over that
  with the fewest, at the same number of reports per second.
- `idle_share_N`: share of one core for the reports and renewals of N workers that all hold a lease.
- `grant_p99_ms`: from a completed batch to the grant of the next, for workers that complete theirs
  while all others go on reporting.
- `heartbeat_p99_ms`: how long a question to the coordinator takes meanwhile.
- `join_seconds`: until the last of all nodes that join at once has its answer.
- `publication_cpu_s_1000`: of who pulls a weights version from whom, among 1,000 nodes.
- `rows_per_second`: commits of 16 requests that the journal makes durable, in rows.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import sys
import tempfile
import time
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import msgspec
import psutil

from benchmarks.control_plane_farm import Config, offer
from benchmarks.report import arguments, finish, quantile
from spotlight.actors.coordinator.job_journal import JobJournal
from spotlight.actors.coordinator.publications import Publications
from spotlight.actors.coordinator.roster import Roster
from spotlight.actors.protocol import NodeReport, WeightsOffer
from spotlight.actors.runtime import ActorRef
from spotlight.jobs import job_from_data
from spotlight.policies.dispatch.rows import SavedRow
from spotlight.running.client import connect
from spotlight.store.journal import Journal
from spotlight.timings import WeightsTimings
from spotlight.types import Commit, RequestId

_ROOT = Path(__file__).parent.parent
_WORKERS = 8
_FARMS = 4
_GROUP_SIZE, _BATCH = 32, 2
_REPORTS_PER_S = 2000.0
"""As many as 8,000 workers send that report every four seconds."""
_WINDOW_S = 15.0
_LIMIT_S = 240.0


class _Process:
    """A farm, or the coordinator."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self.info = psutil.Process(process.pid)

    def order(self, line: str) -> None:
        """Tell a farm what to do."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n".encode())

    async def answer(self) -> dict[str, Any]:
        """Its next line."""
        assert self._process.stdout is not None
        async with asyncio.timeout(_LIMIT_S):
            line = await self._process.stdout.readline()
        found: dict[str, Any] = json.loads(line)
        return found

    async def end(self) -> None:
        """By its own pid."""
        if self._process.returncode is None:
            self._process.terminate()
            try:
                async with asyncio.timeout(10.0):
                    await self._process.wait()
            except TimeoutError:
                self._process.kill()
                await self._process.wait()

    @property
    def cpu_s(self) -> float:
        """Processor time so far."""
        times = self.info.cpu_times()
        return times.user + times.system


async def _coordinator(folder: Path, stack: AsyncExitStack) -> tuple[_Process, str]:
    address = folder / "address"
    options = ["--listen", "127.0.0.1:0", "--runs", str(folder), "--address-file", str(address)]
    started = await asyncio.create_subprocess_exec(
        sys.executable,
        str(_ROOT / "bin" / "spotlight-coordinator"),
        *options,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=(folder / "coordinator.log").open("wb"),
        env={**os.environ, "PYTHONPATH": str(_ROOT)},
    )
    process = _Process(started)
    stack.push_async_callback(process.end)
    async with asyncio.timeout(60.0):
        while not address.exists():  # noqa: ASYNC110 (another process writes it)
            await asyncio.sleep(0.05)
    return process, address.read_text(encoding="utf-8")


async def _farm(config: Config, stack: AsyncExitStack) -> _Process:
    started = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "benchmarks.control_plane_farm",
        msgspec.json.encode(config).decode(),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        limit=1 << 26,
        env={**os.environ, "PYTHONPATH": str(_ROOT)},
    )
    process = _Process(started)
    stack.push_async_callback(process.end)
    await process.answer()
    return process


def _groups(workers: int) -> int:
    """Prompt groups of rollouts for all workers, and of some more that wait."""
    return min(512, max(8, workers // 14))


def _waiting(workers: int) -> int:
    """Batches that wait while every worker holds one."""
    return _groups(workers) * _GROUP_SIZE // _BATCH - workers


def _job(workers: int) -> Any:
    return job_from_data(
        {
            "name": "control-plane",
            "model": {"checkpoint": "builtin:ocr-tiny"},
            "prompts": {
                "train": "builtin:ocr-tiny/train",
                "validation": "builtin:ocr-tiny/validation",
                "per_iteration": _groups(workers),
            },
            "sampler": {"height": 32, "width": 64, "steps": 10, "micro_batch": _BATCH, "degree": 1},
            "group_size": _GROUP_SIZE,
            "iterations": 1,
            "exploration": {"mode": "none"},
        }
    )


async def _totals(farms: list[_Process]) -> tuple[int, int]:
    """Reports sent, and leases held."""
    for farm in farms:
        farm.order("count")
    answers = [await farm.answer() for farm in farms]
    return sum(a["reports"] for a in answers), sum(a["held"] for a in answers)


async def _asked(address: str, seconds: float) -> list[float]:
    """Milliseconds of questions to the coordinator for so long."""
    found, end = [], time.monotonic() + seconds
    async with connect(address) as client:
        while time.monotonic() < end:
            began = time.monotonic()
            await client.status()
            found.append(1000 * (time.monotonic() - began))
            await asyncio.sleep(0.2)
    return found


async def _cluster(workers: int, window_s: float) -> dict[str, float]:
    nodes = [f"n{number:04d}" for number in range(-(-workers // _WORKERS))]
    pull_s = workers / _REPORTS_PER_S
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        coordinator, address = await _coordinator(folder, stack)
        empty = coordinator.info.memory_info().rss
        trainer = await _farm(Config(address, ("trainer",), 1, 4.0, "reserved"), stack)
        farms = [
            await _farm(Config(address, tuple(nodes[index::_FARMS]), _WORKERS, pull_s), stack)
            for index in range(min(_FARMS, len(nodes)))
        ]
        began = time.monotonic()
        for farm in (trainer, *farms):
            farm.order("join")
        for farm in (trainer, *farms):
            await farm.answer()
        joined_s = time.monotonic() - began
        async with connect(address) as client:
            await client.submit(_job(workers), str(folder / "run"), resume=False)
        async with asyncio.timeout(_LIMIT_S):
            while (await _totals(farms))[1] < workers - _WORKERS:  # noqa: ASYNC110
                await asyncio.sleep(1.0)
        await asyncio.sleep(3.0)
        before, cpu_s, at = await _totals(farms), coordinator.cpu_s, time.monotonic()
        asked = asyncio.create_task(_asked(address, window_s))
        await asyncio.sleep(window_s)
        used_s, took_s = coordinator.cpu_s - cpu_s, time.monotonic() - at
        after = await _totals(farms)
        heartbeat_ms = await asked
        memory = coordinator.info.memory_info().rss - empty
        for farm in farms:
            farm.order(f"complete {_waiting(workers) // len(farms)}")
        grant_ms = [ms for farm in farms for ms in (await farm.answer())["grant_ms"]]
    reports = after[0] - before[0]
    return {
        "join_seconds": joined_s,
        "held": after[1],
        "reports_per_s": reports / took_s,
        "cpu_us_per_report": 1e6 * used_s / max(1, reports),
        "idle_share": used_s / took_s,
        "heartbeat_p99_ms": quantile(heartbeat_ms, 0.99),
        "grant_median_ms": quantile(grant_ms, 0.5),
        "grant_p99_ms": quantile(grant_ms, 0.99),
        "grants": len(grant_ms),
        "bytes_per_worker": memory / workers,
    }


def _publication_cpu_s(nodes: int) -> float:
    """Every node is told where to pull a version from, and says that it has it."""
    here = offer("weights").store
    ref = ActorRef("nowhere", "node", 1)
    roster = Roster()
    for number in range(nodes):
        name = f"n{number:04d}"
        store = msgspec.structs.replace(here, machine=name)
        roster.join(NodeReport(1, name, "spot", ref, (), store))
    publications = Publications({}, roster, WeightsTimings())
    weights = offer("weights")
    began = time.process_time()
    publications.add(WeightsOffer(1, (weights,)), (1,))
    told, now = publications.directions(0.0), 0.0
    held = 0
    while told:
        now += 1.0
        for name, offered in told:
            copy = msgspec.structs.replace(weights, store=roster.nodes[name].store)
            copies = (WeightsOffer(offered.version, (copy,)),)
            report = msgspec.structs.replace(roster.nodes[name], weights=copies)
            publications.note(report, now, has_tried=True)
            held += 1
        told = publications.directions(now)
    assert held == nodes, f"{held} of {nodes} nodes were told"
    return time.process_time() - began


def _rows_per_second(seconds: float) -> dict[str, float]:
    """One write for each event, and one for all events of a turn of the loop."""

    def rows(first: int) -> dict[str, SavedRow | None]:
        commit = Commit(5, offer(f"commits/w/1-{first}-5"), 0)
        ids = (RequestId("rollout", 0, 0, 0, first + number) for number in range(16))
        return {str(request): SavedRow(commit) for request in ids}

    found = {}
    for name, events in (("rows_per_second", 1), ("rows_per_second_in_groups_of_20", 20)):
        with tempfile.TemporaryDirectory() as folder:
            file = Journal.open(Path(folder) / "journal.sqlite", "benchmark")
            journal, count = JobJournal(file, offer("a").store, lambda error: None), 0
            end = time.monotonic() + seconds
            while time.monotonic() < end:
                for _ in range(events):
                    journal.stage_requests(rows(count))
                    count += 16
                journal.commit_staged()
            found[name] = count / seconds
            file.close()
    return found


async def _measure(sizes: tuple[int, ...], window_s: float) -> dict[str, Any]:
    found = {workers: await _cluster(workers, window_s) for workers in sizes}
    fewest, most = found[min(sizes)], found[max(sizes)]
    figures: dict[str, Any] = {
        "workers": max(sizes),
        "report_cpu_growth": most["cpu_us_per_report"] / fewest["cpu_us_per_report"],
        "grant_median_ms": most["grant_median_ms"],
        "grant_p99_ms": most["grant_p99_ms"],
        "heartbeat_p99_ms": most["heartbeat_p99_ms"],
        "join_seconds": most["join_seconds"],
        "bytes_per_worker": most["bytes_per_worker"],
    }
    for workers, each in found.items():
        figures[f"idle_share_{workers}"] = each["idle_share"]
        figures[f"cpu_us_per_report_{workers}"] = each["cpu_us_per_report"]
        figures[f"reports_per_s_{workers}"] = each["reports_per_s"]
        figures[f"leases_held_{workers}"] = each["held"]
        figures[f"grants_timed_{workers}"] = each["grants"]
    figures["publication_cpu_s_1000"] = _publication_cpu_s(1000)
    return figures | _rows_per_second(window_s / 5)


def main() -> None:
    """Print the figures."""
    options = arguments(__doc__)
    random.seed(0)
    sizes, window_s = ((16, 64), 3.0) if options.quick else ((100, 1000, 8000), _WINDOW_S)
    finish("control_plane", asyncio.run(_measure(sizes, window_s)), options.json)


if __name__ == "__main__":
    main()
