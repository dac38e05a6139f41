"""A submission names files: they are read beside everything else, within a time, and told to
nobody. Real threads, so on a real clock.
"""

from __future__ import annotations

import asyncio
import errno
import json
import os
import random
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest
from job_kit import job
from runtime_kit import Cluster

from spotlight import failpoints
from spotlight.actors.coordinator import coordinator as module
from spotlight.actors.coordinator.coordinator import MOST_SUBMISSIONS, Coordinator
from spotlight.actors.coordinator.job.job_runner import JobRunner
from spotlight.actors.coordinator.submissions import read_interrupted, read_submission
from spotlight.actors.coordinator.tenant.job_journal import require_same_prompts
from spotlight.actors.protocol.down import NodePlan
from spotlight.actors.protocol.up import NodeReport
from spotlight.actors.protocol.users import (
    CancelJob,
    GetStatus,
    JobAccepted,
    JobList,
    JobRefused,
    JobStatus,
    ListJobs,
    NodeUnknown,
    PreemptNode,
    SubmitJob,
)
from spotlight.actors.runtime import Actor, ActorSystem
from spotlight.errors import JournalError, UserError
from spotlight.jobs import JobSpec, job_from_data, job_to_yaml
from spotlight.jobs.resuming import job_with
from spotlight.permissions import Permissions
from spotlight.preflight.checks import read_job_files
from spotlight.store.run_folder import RunFolder, read_config
from spotlight.store.runs_folder import RunsFolder
from spotlight.timings import CoordinatorTimings, Timings
from spotlight.transport.tensors import BundleStore
from spotlight.types import StoreEndpoint
from spotlight_simulation.key_for_everybody import KeyForEverybody

SECRET = "canary-6f1d"


class Office:
    """A coordinator without nodes, and a user's way to it."""

    def __init__(self, system: ActorSystem, runs: Path, timings: Timings) -> None:
        self.system = system
        self.timings = timings
        self.runs = runs

    async def open(self) -> None:
        def coordinator() -> Coordinator:
            keys = KeyForEverybody(self.system.post.transport)
            return Coordinator(
                RunsFolder(self.runs), random.Random(0), _open_store, keys, self.timings
            )

        self.ref = await self.system.spawn(coordinator, "coordinator")

    async def ask(self, message: Any) -> Any:
        return await self.system.ask(self.ref, message, timeout_s=30.0)

    async def join(self, name: str, system: ActorSystem) -> None:
        """A node that is its process, without workers."""
        node = Actor()
        ref = await system.spawn(lambda: node, "node")
        store = StoreEndpoint("127.0.0.1", 1, "token", "machine", "/nowhere")
        report = NodeReport(1, name, "reserved", ref, (), store)
        assert isinstance(await node.ask(self.ref, report, timeout_s=30.0), NodePlan)

    async def nodes(self) -> tuple[str, ...]:
        """Those that the coordinator takes for there: what it says of one that is not."""
        answer = await self.ask(PreemptNode("nobody", 0.0, False))
        assert isinstance(answer, NodeUnknown)
        return answer.nodes

    async def submit(
        self, spec: JobSpec | None = None, run_folder: str = "", *, resume: bool = False
    ) -> Any:
        return await self.ask(SubmitJob(spec or job(), run_folder, resume))


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    async with Cluster() as cluster:
        yield cluster


@pytest.fixture
def timings() -> Timings:
    """Of the coordinator; a test that needs others names them."""
    return Timings()


@pytest.fixture
async def office(cluster: Cluster, tmp_path: Path, timings: Timings) -> Office:
    office = Office(await cluster.system("coordinator"), tmp_path / "runs", timings)
    await office.open()
    return office


class _Usage(NamedTuple):
    total: int
    used: int
    free: int


def _open_store(folder: Path, token: str) -> BundleStore:
    return BundleStore(folder, token=token)


class SlowDisk:
    """Reading a submission waits until the disk answers."""

    def __init__(self) -> None:
        self.answers = threading.Event()
        self.asked = threading.Event()
        self.reads = 0

    def __call__(self, *asked: Any) -> Any:
        self.reads += 1
        self.asked.set()
        assert self.answers.wait(30.0)
        return read_submission(*asked)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[SlowDisk]:
    disk = SlowDisk()
    monkeypatch.setattr(module, "read_submission", disk)
    yield disk
    disk.answers.set()


async def asked(disk: SlowDisk) -> None:
    await asyncio.to_thread(disk.asked.wait, 30.0)


async def test_while_a_disk_is_slow_the_coordinator_serves_others(
    office: Office, disk: SlowDisk
) -> None:
    submitting = asyncio.ensure_future(office.submit())
    await asked(disk)
    status = await office.ask(GetStatus())
    assert isinstance(status, JobStatus) and status.job == ""
    await office.join("node", office.system)
    assert not submitting.done()
    disk.answers.set()
    assert isinstance(await submitting, JobAccepted)


async def test_of_submissions_at_once_one_begins_and_all_are_taken(
    office: Office, disk: SlowDisk
) -> None:
    submissions = [asyncio.ensure_future(office.submit(job(name="same"))) for _ in range(3)]
    await asked(disk)
    disk.answers.set()
    accepted = [await each for each in submissions]
    assert all(isinstance(each, JobAccepted) for each in accepted)
    assert len({each.run_folder for each in accepted}) == 3, "each has a folder of its own"
    listed = (await office.ask(ListJobs())).jobs
    assert sorted(each.state for each in listed) == ["queued", "queued", "running"]


async def test_more_submissions_at_once_than_can_be_read_are_refused(
    office: Office, disk: SlowDisk
) -> None:
    submissions = [asyncio.ensure_future(office.submit()) for _ in range(MOST_SUBMISSIONS)]
    await asked(disk)
    refused = await office.submit()
    assert isinstance(refused, JobRefused) and "try again in a moment" in refused.reason
    disk.answers.set()
    assert all([isinstance(await each, JobAccepted) for each in submissions])


async def test_a_refused_submission_makes_room_for_the_next(office: Office) -> None:
    for _ in range(2):
        refused = await office.submit(job(model={"checkpoint": "/nowhere"}))
        assert isinstance(refused, JobRefused) and "/nowhere" in refused.reason
    assert isinstance(await office.submit(), JobAccepted)


@pytest.mark.parametrize("timings", [Timings(coordinator=CoordinatorTimings(read_limit_s=1.0))])
async def test_a_disk_that_does_not_answer_in_time_is_said_and_left_alone(
    office: Office, disk: SlowDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = await office.submit()
    assert isinstance(refused, JobRefused)
    assert "could not be read within 1 s" in refused.reason
    monkeypatch.setattr(module, "read_submission", read_submission)
    assert isinstance(await office.submit(), JobAccepted), "while the first one still waits"


async def test_an_error_that_nobody_thought_of_ends_no_coordinator(
    office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read(message: SubmitJob, runs: Path) -> Any:
        raise LookupError(SECRET)

    monkeypatch.setattr(module, "read_submission", read)
    refused = await office.submit()
    assert refused == JobRefused("the job could not be started; the coordinator's log says why")
    monkeypatch.setattr(module, "read_submission", read_submission)
    assert isinstance(await office.submit(), JobAccepted)


async def test_nodes_that_come_and_go_as_a_job_begins_are_known_to_it(
    office: Office, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()

    class SlowRunner(JobRunner):
        async def started(self) -> None:
            begun.set()
            await go_on.wait()
            await super().started()

    monkeypatch.setattr(module, "JobRunner", SlowRunner)
    stays, goes = await cluster.system("stays"), await cluster.system("goes")
    await office.join("goes", goes)
    submitting = asyncio.ensure_future(office.submit())
    await begun.wait()
    await office.join("stays", stays)
    await goes.abort()
    async with asyncio.timeout(30.0):
        while await office.nodes() != ("stays",):  # noqa: ASYNC110 (it tells nobody)
            await asyncio.sleep(0)
    go_on.set()
    accepted = await submitting
    assert await _node_events(accepted.run_folder, 3) == [
        ("node_joined", "goes"),
        ("node_lost", "goes"),
        ("node_joined", "stays"),
    ]


async def test_a_job_that_the_queue_cannot_take_leaves_no_folder_behind(office: Office) -> None:
    def full(name: str) -> None:
        if name == "queue.write":
            raise JournalError("the disk is full")

    failpoints.install(full)
    try:
        refused = await office.submit()
    finally:
        failpoints.install(None)
    assert isinstance(refused, JobRefused) and "the disk is full" in refused.reason
    assert not list(office.runs.glob("*"))


async def test_a_refused_job_leaves_nothing_behind(office: Office, tmp_path: Path) -> None:
    (tmp_path / "train.txt").write_text("no quotes\n")
    bad = job(prompts={"train": str(tmp_path / "train.txt")})
    for run_folder in ("", str(tmp_path / "run")):
        assert isinstance(await office.submit(bad, run_folder), JobRefused)
    assert not office.runs.exists() and not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "content",
    [
        SECRET,
        f"{SECRET}: 1",
        f"name: !{SECRET} x",
        f"name: *{SECRET}",
        f"{SECRET}: 1\n{SECRET}: 2",
        "BASE\nsampler: {height: 32, width: 64, kind: SECRET}",
        f"BASE\n{SECRET}: 1",
    ],
)
async def test_nothing_of_a_file_that_is_no_run_is_told_to_who_would_resume_it(
    office: Office, tmp_path: Path, content: str
) -> None:
    base = job_to_yaml(job()).partition("sampler:")[0]
    text = content.replace("BASE", base).replace("SECRET", SECRET)
    run = tmp_path / "runs" / "run"
    run.mkdir(parents=True)
    (run / "config.yaml").write_text(text)
    refused = await office.submit(run_folder=str(run), resume=True)
    assert isinstance(refused, JobRefused)
    assert (
        f"{run}/config.yaml is not a valid job" in refused.reason and SECRET not in refused.reason
    )


async def test_another_job_is_not_told_by_its_name(office: Office, tmp_path: Path) -> None:
    run = tmp_path / "runs" / "run"
    run.mkdir(parents=True)
    (run / "config.yaml").write_text(job_to_yaml(job(name=SECRET)))
    refused = await office.submit(run_folder=str(run), resume=True)
    assert isinstance(refused, JobRefused)
    assert "belongs to another job" in refused.reason and SECRET not in refused.reason


async def test_a_run_whose_damage_is_mended_can_be_resumed(office: Office, tmp_path: Path) -> None:
    run = tmp_path / "runs" / "run"
    RunFolder.create(run, job()).close()
    events = run / "events.jsonl"
    events.write_text(f'{{"time_s": "{SECRET}"}}\n')
    refused = await office.submit(run_folder=str(run), resume=True)
    assert isinstance(refused, JobRefused)
    assert f"{events} has a damaged line" in refused.reason and SECRET not in refused.reason
    assert (await office.ask(GetStatus())).job == ""
    events.write_text("")
    accepted = await office.submit(run_folder=str(run), resume=True)
    assert isinstance(accepted, JobAccepted), "nothing holds on to the folder"


@pytest.mark.parametrize("field", ["train", "validation"])
async def test_a_run_is_not_resumed_with_other_prompts(
    office: Office, tmp_path: Path, field: str
) -> None:
    prompts = tmp_path / "prompts.txt"
    prompts.write_text('the number "1111"\nthe number "2222"\n')
    run, spec = tmp_path / "runs" / "run", job(prompts={field: str(prompts), "per_iteration": 2})
    folder = RunFolder.create(run, spec)
    require_same_prompts(folder.journal, read_job_files(spec).prompt_digests)
    folder.close()
    prompts.write_text('the number "1111"\nthe number "3333"\n')
    refused = await office.submit(run_folder=str(run), resume=True, spec=spec)
    assert isinstance(refused, JobRefused)
    assert f"prompts.{field}: these are other prompts than those" in refused.reason
    assert "begin a new run" in refused.reason and "3333" not in refused.reason
    # What stands around the prompts is none of them.
    prompts.write_text('\ufeff\r\nthe number "1111" \r\nthe number "2222"', encoding="utf-8")
    accepted = await office.submit(run_folder=str(run), resume=True, spec=spec)
    assert isinstance(accepted, JobAccepted), "nothing holds on to the folder"


@pytest.mark.parametrize(
    ("run_folder", "problem"),
    [("a\0b", "control characters"), ("x" * 5000, "at most 4096 bytes"), ("a\nb", "control")],
)
async def test_a_run_folder_that_cannot_be_is_refused(
    office: Office, run_folder: str, problem: str
) -> None:
    for resume in (False, True):
        refused = await office.submit(run_folder=run_folder, resume=resume)
        assert isinstance(refused, JobRefused)
        assert "run folder" in refused.reason and problem in refused.reason


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="needs /proc")
@pytest.mark.parametrize("field", ["train", "validation"])
async def test_the_environment_of_the_coordinator_is_told_to_nobody(
    office: Office, field: str
) -> None:
    refused = await office.submit(job(prompts={field: "/proc/self/environ"}))
    assert isinstance(refused, JobRefused)
    assert f"prompts.{field}: /proc/self/environ does not have the length" in refused.reason
    assert not any(value in refused.reason for value in os.environ.values() if len(value) > 12)


async def test_a_named_pipe_keeps_nobody_waiting(office: Office, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    run = tmp_path / "runs" / "run"
    run.mkdir(parents=True)
    os.mkfifo(run / "config.yaml")
    for spec, run_folder in (
        (job(prompts={"train": str(tmp_path / "pipe")}), ""),
        (job(), str(run)),
    ):
        refused = await office.submit(spec, run_folder, resume=bool(run_folder))
        assert isinstance(refused, JobRefused) and "is a named pipe" in refused.reason


def test_a_run_goes_on_without_being_checked_again(tmp_path: Path) -> None:
    """What was right when it began must not end it: a disk that is nearly full, say."""
    spec = msgspec.structs.replace(job(), iterations=10**6)
    prompts = msgspec.structs.replace(spec.prompts, validation=spec.prompts.train)
    spec = job_from_data(msgspec.to_builtins(msgspec.structs.replace(spec, prompts=prompts)))
    run = tmp_path / "run"
    run.mkdir()
    (run / "config.yaml").write_text(job_to_yaml(spec))
    with pytest.raises(UserError):
        read_submission(SubmitJob(spec, str(run), True), RunsFolder(tmp_path), Permissions())
    assert read_interrupted(run, Permissions()).job == spec


@pytest.mark.parametrize("wanted", ["/tmp/elsewhere", "../above", ".", ".running", "link/run"])
async def test_a_run_lies_below_the_folder_of_runs_at_a_place_of_its_own(
    office: Office, tmp_path: Path, wanted: str
) -> None:
    office.runs.mkdir()
    (office.runs / "link").symlink_to(tmp_path)
    for resume in (False, True):
        refused = await office.submit(run_folder=wanted, resume=resume)
        assert isinstance(refused, JobRefused) and "the run folder" in refused.reason
    inner = await office.submit(run_folder="mine")
    assert isinstance(inner, JobAccepted)
    assert inner.run_folder == str(office.runs / "mine")


async def test_a_run_inside_of_another_run_is_refused(office: Office) -> None:
    RunFolder.create(office.runs / "outer", job()).close()
    refused = await office.submit(run_folder="outer/artifacts.d/inner")
    assert isinstance(refused, JobRefused) and "inside of another run" in refused.reason


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"trackers": [{"kind": "own_code:Mine"}]}, "trackers[0].kind"),
        ({"training": {"loss": "own_code:Mine"}}, "training.loss"),
        ({"rewards": [{"kind": "python", "python": "own_code:Mine"}]}, "rewards[0].python"),
    ],
)
async def test_code_that_the_operator_did_not_allow_is_refused_and_not_imported(
    office: Office,
    changes: dict[str, Any],
    field: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "own_code.py").write_text("raise SystemExit('it was run')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    refused = await office.submit(job(**changes))
    assert isinstance(refused, JobRefused)
    assert refused.reason.startswith(f"{field}: `own_code:Mine` is code of your own")
    assert "--allow-code own_code" in refused.reason


async def _node_events(run_folder: str, count: int) -> list[tuple[str, str]]:
    """What the job wrote down of its nodes, once it is so much."""
    found: list[tuple[str, str]] = []
    async with asyncio.timeout(30.0):
        while len(found) < count:
            await asyncio.sleep(0.01)
            lines = (Path(run_folder) / "events.jsonl").read_text().splitlines()
            events = [json.loads(line) for line in lines]
            found = [(one["event"], one["node"]) for one in events if "node" in one]
    return found


class _Broken:
    """Refuses what is written to journals of runs once the queue says that a job runs."""

    def __init__(self, office: Office, error: int) -> None:
        self._queue = office.runs / "queue.records"
        self._error = error

    def __call__(self, name: str) -> None:
        queue = self._queue
        if name == "journal.commit" and queue.exists() and b'"running"' in queue.read_bytes():
            raise OSError(self._error, os.strerror(self._error))


async def _status_when(office: Office, so: Callable[[JobStatus], bool]) -> JobStatus:
    async with asyncio.timeout(30.0):
        status: JobStatus = await office.ask(GetStatus())
        while not so(status):
            await asyncio.sleep(0.01)
            status = await office.ask(GetStatus())
    return status


async def test_a_job_that_ends_as_it_starts_is_seen_to_have_ended(office: Office) -> None:
    """Its disk is broken by then: nobody has heard of the job runner that says so."""
    failpoints.install(_Broken(office, errno.EIO))
    try:
        assert isinstance(await office.submit(), JobAccepted)
        status = await _status_when(office, lambda now: bool(now.outcome))
    finally:
        failpoints.install(None)
    assert status.outcome == "failed"
    assert "Input/output error" in status.reason


QUICK = CoordinatorTimings(full_disk_s=0.5, full_disk_pause_s=0.05)


@pytest.mark.parametrize("timings", [Timings(coordinator=QUICK)])
async def test_a_job_whose_disk_stays_full_fails_after_a_while(office: Office) -> None:
    failpoints.install(_Broken(office, errno.ENOSPC))
    try:
        assert isinstance(await office.submit(), JobAccepted)
        waiting = await _status_when(office, lambda now: bool(now.note))
        status = await _status_when(office, lambda now: bool(now.outcome))
    finally:
        failpoints.install(None)
    assert waiting.note.startswith("goes on when the disk has room: ")
    assert status.outcome == "failed"
    assert "No space left on device" in status.reason


@pytest.mark.parametrize("timings", [Timings(coordinator=QUICK)])
async def test_a_job_whose_disk_is_full_as_it_starts_begins_when_there_is_room(
    office: Office,
) -> None:
    failpoints.install(_Broken(office, errno.ENOSPC))
    try:
        answer = await office.submit()
        await _status_when(office, lambda now: bool(now.note))
    finally:
        failpoints.install(None)
    status = await _status_when(office, lambda now: "disk has room" not in now.note)
    assert (status.outcome, status.id) == ("", answer.job_id)
    assert await _state_of(office, answer.job_id) == "running"
    await office.ask(CancelJob(answer.job_id, "enough"))
    await _becomes(office, answer.job_id, "cancelled")


@pytest.mark.parametrize("timings", [Timings(coordinator=CoordinatorTimings(remind_s=0.5))])
async def test_a_job_that_waits_for_room_can_be_cancelled(office: Office) -> None:
    failpoints.install(_Broken(office, errno.ENOSPC))
    try:
        answer = await office.submit()
        await _status_when(office, lambda now: bool(now.note))
        await office.ask(CancelJob(answer.job_id, "enough"))
    finally:
        failpoints.install(None)
    await _becomes(office, answer.job_id, "cancelled")


class FullDisk:
    """Refuses one write of the queue, the first being 1, and takes all others."""

    def __init__(self, refused: int) -> None:
        self.refused = refused
        self.writes = 0
        self._is_writing = False

    def __call__(self, name: str) -> None:
        if name in ("queue.write", "queue.written"):
            self._is_writing = name == "queue.write"
            self.writes += self._is_writing
        elif name == "journal.commit" and self._is_writing and self.writes == self.refused:
            self._is_writing = False
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize(
    ("refused", "which"), [(1, ["first"]), (2, ["first"]), (3, ["second"])], ids=str
)
async def test_a_disk_that_is_full_in_a_write_of_the_queue_refuses_that_job_alone(
    office: Office, refused: int, which: list[str]
) -> None:
    """As it comes into the queue, as it begins, or while another runs."""
    failpoints.install(FullDisk(refused))
    try:
        answers = {name: await office.submit(job(name=name)) for name in ("first", "second")}
    finally:
        failpoints.install(None)
    bad = {name: answer for name, answer in answers.items() if isinstance(answer, JobRefused)}
    assert list(bad) == which
    for answer in bad.values():
        assert answer.reason == (
            f"{office.runs / 'queue.records'}: No space left on device; free some space or repair"
            " the disk, then try again"
        )
    listed = [each.name for each in (await office.ask(ListJobs())).jobs]
    assert listed == [name for name in answers if name not in bad]
    assert isinstance(await office.submit(job(name=which[0])), JobAccepted)
    assert sorted(each.name for each in (await office.ask(ListJobs())).jobs) == ["first", "second"]
    assert len(list(office.runs.glob("*-*"))) == 2, "a refused job leaves no folder"


class _FullAt:
    """Refuses that write of a journal, the first being 1, and counts them."""

    def __init__(self, refused: int) -> None:
        self.refused = refused
        self.writes = 0

    def __call__(self, name: str) -> None:
        if name == "journal.commit":
            self.writes += 1
            if self.writes == self.refused:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _settings(run: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in run.glob("config*")}


async def _known(office: Office) -> list[tuple[str, str]]:
    return [(each.id, each.state) for each in (await office.ask(ListJobs())).jobs]


@pytest.mark.parametrize("refused", range(1, 5))
async def test_a_run_whose_resumption_is_refused_is_as_it_was(office: Office, refused: int) -> None:
    """As the folder is opened, as the queue takes it, as it begins to run, or as its segment
    does."""
    accepted = await office.submit()
    await office.ask(CancelJob(accepted.job_id, "enough"))
    await _becomes(office, accepted.job_id, "cancelled")
    run, change = Path(accepted.run_folder), "iterations=9"
    before, known = _settings(run), await _known(office)
    spec = job_with(read_config(run), [change])
    failpoints.install(_FullAt(refused))
    try:
        answer = await office.ask(SubmitJob(spec, str(run), True, changes=(change,)))
    finally:
        failpoints.install(None)
    assert isinstance(answer, JobRefused) and "No space left on device" in answer.reason
    assert (_settings(run), await _known(office)) == (before, known)
    assert isinstance(await office.submit(None, str(run), resume=True), JobAccepted)
    assert _settings(run) == before, "nor is it half in the journal"


@pytest.fixture
async def next_without_room(office: Office, monkeypatch: pytest.MonkeyPatch) -> str:
    """The id of a job whose turn it is while the disk has no room for it."""
    await office.submit(job(name="first"))
    answer = await office.submit(job(name="second"))
    assert isinstance(answer, JobAccepted)
    monkeypatch.setattr("shutil.disk_usage", lambda path: _Usage(1 << 30, 1 << 30, 0))
    await office.ask(CancelJob("first", "enough"))
    async with asyncio.timeout(30.0):
        status = await office.ask(GetStatus(answer.job_id))
        while "free some space" not in status.note:
            await asyncio.sleep(0.01)
            status = await office.ask(GetStatus(answer.job_id))
    return answer.job_id


async def _state_of(office: Office, job_id: str) -> str:
    jobs: JobList = await office.ask(ListJobs())
    return next(each.state for each in jobs.jobs if each.id == job_id)


async def _becomes(office: Office, job_id: str, state: str) -> None:
    async with asyncio.timeout(30.0):
        now = await _state_of(office, job_id)
        while now != state:
            await asyncio.sleep(0.01)
            now = await _state_of(office, job_id)


async def test_a_job_whose_turn_it_is_waits_for_room_on_the_disk(
    office: Office, next_without_room: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert await _state_of(office, next_without_room) == "queued"
    monkeypatch.undo()
    await _becomes(office, next_without_room, "running")


async def test_a_job_that_is_cancelled_as_it_is_about_to_begin_does_not_begin(
    office: Office, next_without_room: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await office.ask(CancelJob(next_without_room, "enough"))
    monkeypatch.undo()
    await _becomes(office, next_without_room, "cancelled")
