"""What one coordinator can hold: `python -m benchmarks.control_plane --json`.

The real coordinator, as its daemon, over ZeroMQ on loopback, with a job whose rollouts are never
done: fake nodes of eight workers, in four processes, join at once, hold a lease each, and report as
real ones do. The processes share the machine's cores with the coordinator, and have one connection
each, where a real node and each of its workers have their own.

- `report_cpu_growth`: processor time of the coordinator per report with the most workers, over that
  with the fewest, at the same number of reports per second.
- `idle_share_N`: share of one core for the reports and renewals of N workers that all hold a lease.
- `grant_cpu_us_p99`: processor time of the coordinator between reading that a batch is completed
  and sending the next one to the same worker, while all others go on reporting; `exploring_...` is
  the same in training, when all workers preview candidates.
- `grant_p99_ms`: what passes meanwhile, as the worker sees it; `grant_inside_p99_ms`: of it, what
  passes in the coordinator.
- `heartbeat_p99_ms`: how long a question to the coordinator takes while nothing is completed.
- `join_seconds`: until the last of all nodes that join at once has its answer.
- `publication_cpu_s_1000`: of who pulls a weights version from whom, among 1,000 nodes.
- `rows_per_second`: commits of 16 requests that the journal makes durable, in rows.
- `curve_ask_cpu_ratio`, `curve_tell_cpu_ratio`: processor time of two processes, both together and
  libzmq's threads among it, for asks one after the other and for tells as fast as they go, of 128
  bytes each; over that without keys and encryption, which the package does not have: medians of
  pairs of rounds that alternate.
- `handshakes_cpu_s_9000`: processor time of a process to which 9,000 others connect, each with a
  key of its own, up to its answer to their greeting; `handshakes_plain_cpu_s_9000` without keys.

In this process alone, in processor time: `double_loss_cpu_s` and `event_ms_after` are of a spot
pool that is lost twice in one iteration, as the table of requests sees it; `draw_ms_1m` is the
longest of the draws of 512 prompt groups from a million prompts; `choose_cpu_s_10k` is the choice
of seeds for 10,000 prompt groups that nobody explored.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import secrets
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import psutil

from benchmarks.control_plane_farm import BATCH, Config, keys_of, offer
from benchmarks.control_plane_loss import double_loss
from benchmarks.report import Report, quantile
from spotlight.actors.coordinator.fleet import NodeTask
from spotlight.actors.coordinator.tenant.job_journal import JobJournal
from spotlight.actors.coordinator.tenant.publications import Publications
from spotlight.actors.protocol.door import Pool
from spotlight.actors.protocol.down import WeightsOffer
from spotlight.actors.protocol.up import NodeReport
from spotlight.actors.runtime import ActorRef
from spotlight.jobs import job_from_data
from spotlight.join_token import SECRET_BYTES, JoinToken
from spotlight.policies.exploration.planners import UniformPlanner, draw_prompts
from spotlight.policies.fleet.fleet_events import Heard, TenantBegan, Terms
from spotlight.policies.fleet.table import FleetTable
from spotlight.policies.requests.rows import SavedRow
from spotlight.running.client import connect
from spotlight.running.handed_keys import CoordinatorKeys, KnownNode
from spotlight.store.journal import NAME, Journal
from spotlight.timings import WeightsTimings
from spotlight.transport.control.keys import KeyPair, place_of
from spotlight.transport.tensors import BundleStore
from spotlight.types import Commit, RequestId

_ROOT = Path(__file__).parent.parent
_WORKERS = 8
_FARMS = 4
_GROUP_SIZE = 32
_REPORTS_PER_S = 2000.0
"""Reports in a second: as many as 8,000 workers send every four seconds."""
_GRANTS = 5000
"""How many grants are timed, if so much waits."""
_LIMIT_S = 480.0


@dataclass(frozen=True)
class _Extent:
    """How much is measured, and for how long."""

    workers: tuple[int, ...]
    lost: int
    """Workers of the pool that is lost twice."""
    settle_s: float
    window_s: float
    complete_s: float
    """Batches are completed within so long."""
    rounds: int
    """Pairs, with and without keys."""
    asks: int
    """Asks in each measurement; of tells there are ten times as many."""
    handshakes: int


_FULL = _Extent((100, 1000, 8000), 8000, 3.0, 15.0, 40.0, 15, 2000, 9000)
_QUICK = _Extent((16, 64), 800, 0.5, 2.0, 1.0, 3, 200, 100)


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


async def _coordinator(
    folder: Path, farms: Mapping[str, Pool], stack: AsyncExitStack
) -> tuple[_Process, JoinToken]:
    """It knows these farms, and an operator."""
    own, secret = KeyPair.new(), secrets.token_bytes(SECRET_BYTES)
    nodes = tuple(KnownNode(name, pool, keys_of(name).public) for name, pool in farms.items())
    keys = CoordinatorKeys(own, KeyPair.derived(secret).public, nodes)
    address = folder / "address"
    options = ["--listen", "127.0.0.1:0", "--runs", str(folder), "--address-file", str(address)]
    options += ["--parent", str(os.getpid())]
    started = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "benchmarks.control_plane_coordinator",
        str(folder / "grants"),
        *options,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=(folder / "coordinator.log").open("wb"),
        env={**os.environ, "PYTHONPATH": str(_ROOT)},
    )
    process = _Process(started)
    stack.push_async_callback(process.end)
    assert started.stdin is not None
    started.stdin.write(keys.encode())
    started.stdin.close()
    async with asyncio.timeout(60.0):
        while not address.exists():  # noqa: ASYNC110 (another process writes it)
            await asyncio.sleep(0.05)
    place = place_of(address.read_text(encoding="utf-8")).removeprefix("tcp://")
    return process, JoinToken(place, own.public, "farmer", secret)


async def _farm(config: Config, stack: AsyncExitStack) -> _Process:
    process, _ = await _child("farm", (msgspec.json.encode(config).decode(),), stack)
    return process


async def _child(
    name: str, arguments: Sequence[str], stack: AsyncExitStack
) -> tuple[_Process, dict[str, Any]]:
    """One that takes orders, and the first line that it said."""
    started = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        f"benchmarks.control_plane_{name}",
        *arguments,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        limit=1 << 26,
        env={**os.environ, "PYTHONPATH": str(_ROOT)},
    )
    process = _Process(started)
    stack.push_async_callback(process.end)
    return process, await process.answer()


def _groups(workers: int) -> int:
    """Prompt groups of rollouts for all workers, and of some more that wait."""
    return min(512, max(8, workers // 14))


def _waiting(workers: int) -> int:
    """Batches that wait while every worker holds one."""
    return _groups(workers) * _GROUP_SIZE // BATCH - workers


def _job(workers: int, *, explores: bool) -> Any:
    """A job of rollouts for all workers, which is never trained; or one of so few that it is, with
    previews for all of them."""
    groups = max(2, workers // 64) if explores else _groups(workers)
    return job_from_data(
        {
            "name": "control-plane",
            "model": {"checkpoint": "builtin:ocr-tiny"},
            "prompts": {
                "train": "builtin:ocr-tiny/train",
                "validation": "builtin:ocr-tiny/validation",
                "per_iteration": groups,
            },
            "sampler": {"height": 32, "width": 64, "steps": 10, "micro_batch": BATCH, "degree": 1},
            "group_size": _GROUP_SIZE,
            "iterations": 2 if explores else 1,
            "exploration": {"mode": "uniform" if explores else "none"},
        }
    )


async def _totals(farms: list[_Process]) -> tuple[int, int]:
    """Reports sent, and leases held."""
    for farm in farms:
        farm.order("count")
    answers = [await farm.answer() for farm in farms]
    return sum(a["reports"] for a in answers), sum(a["held"] for a in answers)


async def _asked(join: JoinToken, seconds: float) -> list[float]:
    """Milliseconds of questions to the coordinator for so long."""
    found, end = [], time.monotonic() + seconds
    async with connect(join) as client:
        while time.monotonic() < end:
            began = time.monotonic()
            await client.status()
            found.append(1000 * (time.monotonic() - began))
            await asyncio.sleep(0.2)
    return found


class _Cluster:
    """A coordinator and the nodes of a job."""

    def __init__(
        self, folder: Path, join: JoinToken, coordinator: _Process, farms: list[_Process]
    ) -> None:
        self._folder = folder
        self.join = join
        self.coordinator = coordinator
        self.farms = farms
        """The first has the trainer."""

    async def submit(self, job: Any) -> None:
        """Begin a job."""
        async with connect(self.join) as client:
            await client.submit(job, str(self._folder / "run"), resume=False)

    async def held_by(self, workers: int) -> None:
        """Return once so many hold a lease."""
        async with asyncio.timeout(_LIMIT_S):
            while (await _totals(self.farms))[1] < workers:  # noqa: ASYNC110
                await asyncio.sleep(0.2)

    async def begins_to(self, phase: str) -> None:
        """Return once the job does."""
        async with asyncio.timeout(_LIMIT_S), connect(self.join) as client:
            while (await client.status()).phase != phase:  # noqa: ASYNC110
                await asyncio.sleep(0.2)

    async def complete(self, batches: int, within_s: float) -> list[float]:
        """So many workers complete what they hold; returns their milliseconds to the next grant."""
        farms = self.farms[1:]
        for farm in farms:
            farm.order(f"complete {-(-batches // len(farms))} {within_s}")
        return [ms for farm in farms for ms in (await farm.answer())["grant_ms"]]

    def clocked(self, first: int) -> list[tuple[int, int]]:
        """Microseconds of processor time and of the clock, for every grant from that one on."""
        lines = (self._folder / "grants").read_text().splitlines()[first:]
        return [(int(cpu), int(passed)) for cpu, passed in (line.split() for line in lines)]


@asynccontextmanager
async def _cluster(workers: int) -> AsyncIterator[_Cluster]:
    nodes = [f"n{number:04d}" for number in range(-(-workers // _WORKERS))]
    pull_s = workers / _REPORTS_PER_S
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        names = [f"farm-{index}" for index in range(min(_FARMS, len(nodes)))]
        pools: dict[str, Pool] = {"trainer": "reserved", **dict.fromkeys(names, "spot")}
        coordinator, join = await _coordinator(folder, pools, stack)
        address = join.coordinator
        trainer = await _farm(Config("trainer", address, ("trainer",), 1, 4.0, "reserved"), stack)
        farms = [
            await _farm(Config(name, address, tuple(nodes[index::_FARMS]), _WORKERS, pull_s), stack)
            for index, name in enumerate(names)
        ]
        yield _Cluster(folder, join, coordinator, [trainer, *farms])


async def _rolls_out(workers: int, extent: _Extent) -> dict[str, float]:
    """All workers hold a lease and report; then some complete theirs."""
    async with _cluster(workers) as cluster:
        coordinator, farms = cluster.coordinator, cluster.farms
        empty, began = coordinator.info.memory_info().rss, time.monotonic()
        await _join(farms)
        joined_s = time.monotonic() - began
        await cluster.submit(_job(workers, explores=False))
        await cluster.held_by(workers)
        await asyncio.sleep(extent.settle_s)
        before, cpu_s, at = await _totals(farms), coordinator.cpu_s, time.monotonic()
        asked = asyncio.create_task(_asked(cluster.join, extent.window_s))
        await asyncio.sleep(extent.window_s)
        used_s, took_s = coordinator.cpu_s - cpu_s, time.monotonic() - at
        after = await _totals(farms)
        heartbeat_ms = await asked
        memory = coordinator.info.memory_info().rss - empty
        batches = min(_GRANTS, workers, _waiting(workers))
        grant_ms = await cluster.complete(batches, extent.complete_s)
        clocked = cluster.clocked(0)
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
        "grant_inside_p99_ms": quantile([passed / 1000 for _, passed in clocked], 0.99),
        "grant_cpu_us_median": quantile([cpu for cpu, _ in clocked], 0.5),
        "grant_cpu_us_p99": quantile([cpu for cpu, _ in clocked], 0.99),
        "grants": len(clocked),
        "bytes_per_worker": memory / workers,
    }


async def _explores(workers: int, extent: _Extent) -> dict[str, float]:
    """All workers hold a preview while the trainer trains; then some complete theirs."""
    async with _cluster(workers) as cluster:
        await _join(cluster.farms)
        job = _job(workers, explores=True)
        await cluster.submit(job)
        samples = job.samples_per_iteration
        await cluster.held_by(min(samples, workers))
        for farm in cluster.farms:  # the trainer's worker holds one, too
            farm.order(f"complete {workers} {extent.complete_s}")
        for farm in cluster.farms:
            await farm.answer()
        await cluster.begins_to("train")
        await cluster.held_by(workers)
        await asyncio.sleep(extent.settle_s)
        first = len(cluster.clocked(0))
        await cluster.complete(min(_GRANTS, workers), extent.complete_s)
        clocked = cluster.clocked(first)
    return {
        "exploring_grant_cpu_us_median": quantile([cpu for cpu, _ in clocked], 0.5),
        "exploring_grant_cpu_us_p99": quantile([cpu for cpu, _ in clocked], 0.99),
        "exploring_grant_inside_p99_ms": quantile([passed / 1000 for _, passed in clocked], 0.99),
        "exploring_grants": len(clocked),
    }


async def _join(farms: list[_Process]) -> None:
    """All nodes at once."""
    for farm in farms:
        farm.order("join")
    for farm in farms:
        await farm.answer()


def _draw_ms(available: int) -> float:
    """The longest of the draws of an iteration, the first and the last of a pass among them."""
    wanted, last = 512, available // 512
    longest = 0.0
    for iteration in (0, 1, 2, last - 1, last):
        began = time.process_time()
        draw_prompts(1, iteration, available, wanted)
        longest = max(longest, time.process_time() - began)
    return 1000 * longest


def _choose_cpu_s(groups: int) -> float:
    planner = UniformPlanner(job_seed=1, iteration=0, groups=groups, keep=16, candidates=64)
    began = time.process_time()
    planner.choose()
    return time.process_time() - began


def _publication_cpu_s(nodes: int) -> float:
    """Every node is told where to pull a version from, and says that it has it."""
    here = offer("weights").store
    ref = ActorRef("nowhere", "node", 1)
    table: FleetTable[NodeReport, NodeTask] = FleetTable(ref)
    table.handle(TenantBegan("job", Terms()), 0.0)
    roster = table.tenants["job"]
    for number in range(nodes):
        name = f"n{number:04d}"
        store = msgspec.structs.replace(here, machine=name)
        table.handle(Heard("job", NodeReport(1, name, "spot", ref, (), store)), 0.0)
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
            publications.note_copies(name, [WeightsOffer(offered.version, (copy,))])
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
            file = Journal.open(Path(folder) / NAME, "benchmark")
            store = BundleStore(Path(folder), token="benchmark")  # it keeps nothing
            journal, count = JobJournal(file, store, lambda error: None), 0
            end = time.monotonic() + seconds
            while time.monotonic() < end:
                for _ in range(events):
                    journal.stage_requests(rows(count))
                    count += 16
                journal.commit_staged()
            found[name] = count / seconds
            file.close()
    return found


class _Couple:
    """Two processes, one of which asks and tells the other; with keys or without."""

    def __init__(self, asker: _Process, answerer: _Process) -> None:
        self._asker, self._answerer = asker, answerer

    @classmethod
    async def start(cls, mode: str, stack: AsyncExitStack) -> _Couple:
        """`plain` or `curve`; each knows the other."""
        answerer, said = await _child("keys", (mode, "answerer"), stack)
        asker, _ = await _child("keys", (mode, "asker"), stack)
        couple = cls(asker, answerer)
        await couple.cpu_s(f"to {said['address']}")
        return couple

    async def cpu_s(self, order: str) -> tuple[float, float]:
        """Of the asker that carries it out, and meanwhile of the answerer."""
        before = [await self._told(each, "cpu") for each in (self._asker, self._answerer)]
        asker = await self._told(self._asker, order)
        return asker - before[0], await self._told(self._answerer, "cpu") - before[1]

    @staticmethod
    async def _told(process: _Process, order: str) -> float:
        process.order(order)
        cpu_s: float = (await process.answer())["cpu_s"]
        return cpu_s


async def _keys(extent: _Extent) -> dict[str, float]:
    """What keys cost, beside sockets without."""
    orders = {"ask": f"ask {extent.asks}", "tell": f"tell {10 * extent.asks}"}
    ratios: dict[str, list[float]] = {what: [] for what in orders}
    async with AsyncExitStack() as stack:
        couples = {mode: await _Couple.start(mode, stack) for mode in ("plain", "curve")}
        for number in range(extent.rounds):
            for what, order in orders.items():
                modes = sorted(couples, reverse=number % 2 == 0)
                used = {mode: sum(await couples[mode].cpu_s(order)) for mode in modes}
                ratios[what].append(used["curve"] / used["plain"])
        greet = f"greet {extent.handshakes}"
        servers = {mode: (await couple.cpu_s(greet))[1] for mode, couple in couples.items()}
    scale = 9000 / extent.handshakes
    return {
        "curve_ask_cpu_ratio": statistics.median(ratios["ask"]),
        "curve_tell_cpu_ratio": statistics.median(ratios["tell"]),
        "handshakes_cpu_s_9000": scale * servers["curve"],
        "handshakes_plain_cpu_s_9000": scale * servers["plain"],
    }


def _alone(extent: _Extent) -> Iterator[tuple[str, float]]:
    """What is measured in this process."""
    yield from double_loss(extent.lost).items()
    yield "draw_ms_1m", _draw_ms(1_000_000)
    yield "choose_cpu_s_10k", _choose_cpu_s(10_000)
    yield "publication_cpu_s_1000", _publication_cpu_s(1000)
    yield from _rows_per_second(extent.window_s / 5).items()


async def _measure(extent: _Extent) -> AsyncIterator[tuple[str, float]]:
    """Figures, each as soon as it is there."""
    for name, value in _alone(extent):
        yield name, value
    for name, value in (await _keys(extent)).items():
        yield name, value
    fewest, most = min(extent.workers), max(extent.workers)
    yield "workers", most
    found = {}
    for workers in extent.workers:
        found[workers] = each = await _rolls_out(workers, extent)
        yield f"idle_share_{workers}", each["idle_share"]
        yield f"cpu_us_per_report_{workers}", each["cpu_us_per_report"]
        yield f"reports_per_s_{workers}", each["reports_per_s"]
        yield f"leases_held_{workers}", each["held"]
        yield f"grants_timed_{workers}", each["grants"]
        yield f"grant_cpu_us_p99_{workers}", each["grant_cpu_us_p99"]
    growth = found[most]["cpu_us_per_report"] / found[fewest]["cpu_us_per_report"]
    yield "report_cpu_growth", growth
    for name in (
        "grant_cpu_us_median",
        "grant_cpu_us_p99",
        "grant_inside_p99_ms",
        "grant_median_ms",
        "grant_p99_ms",
        "heartbeat_p99_ms",
        "join_seconds",
        "bytes_per_worker",
    ):
        yield name, found[most][name]
    for name, value in (await _explores(most, extent)).items():
        yield name, value


async def _all(report: Report, extent: _Extent) -> None:
    async for name, value in _measure(extent):
        report.add({name: value})
        if report.is_time_up():
            return


def main() -> None:
    """Print the figures, each when it is there."""
    report = Report("control_plane", __doc__, minutes=5)
    random.seed(0)
    asyncio.run(_all(report, _QUICK if report.begin().quick else _FULL))
    report.finish()


if __name__ == "__main__":
    main()
