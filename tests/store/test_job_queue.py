"""No job of a queue is lost, and none is there twice, whatever happens while it is written."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import msgspec
import pytest
from journal_kit import copied, opened
from run_folder_kit import job as job_spec

from spotlight import failpoints
from spotlight.errors import JournalError, RequestRefused, UnknownJob
from spotlight.store import job_queue
from spotlight.store.job_queue import JobQueue, discard
from spotlight.store.journal import NAME as JOURNAL
from spotlight.store.queued_job import QueuedJob
from spotlight.store.run_folder import RunFolder
from spotlight.store.running_note import NOTE

PLACES = (
    "queue.write",
    "journal.before_commit",
    "journal.commit",
    "journal.after_commit",
    "queue.written",
)
"""All failpoints of a write, in their order."""


class Killed(BaseException):
    """Stands for the end of the process."""


@dataclass
class Faults:
    """What happens at a place, when it is reached for the `countdown`-th time from now."""

    place: str = ""
    countdown: int = 1
    error: BaseException = field(default_factory=Killed)
    reached: list[str] = field(default_factory=list)

    def __call__(self, name: str) -> None:
        self.reached.append(name)
        if name == self.place:
            self.countdown -= 1
            if self.countdown == 0:
                raise self.error


@pytest.fixture
def faults() -> Iterator[Faults]:
    faults = Faults()
    failpoints.install(faults)
    yield faults
    failpoints.install(None)


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    runs = tmp_path / "runs"
    runs.mkdir()
    return runs


@pytest.fixture
def queue(runs: Path) -> Iterator[JobQueue]:
    queue = JobQueue.open(runs)
    yield queue
    queue.close()


def entry(id: str, **changes: object) -> QueuedJob:
    job = QueuedJob(
        id=id,
        name=id.rpartition("-")[0] or id,
        kind="job",
        owner="operator",
        weight=1.0,
        priority=0,
        ranks=1,
        run_folder=f"/runs/{id}",
        submitted_at=1.0,
    )
    return msgspec.structs.replace(job, **changes)


def ended(job: QueuedJob, at: float = 2.0) -> QueuedJob:
    return msgspec.structs.replace(job, state="finished", ended_at=at)


def after_a_kill(runs: Path, folder: Path) -> JobQueue:
    """What the next coordinator finds if this one is killed now."""
    folder.mkdir()
    for file in runs.iterdir():
        if file.is_file():
            copied(file, folder)
    return JobQueue.open(folder)


def ids(jobs: tuple[QueuedJob, ...]) -> list[str]:
    return [job.id for job in jobs]


# --------------------------------------------------------------------------------- what is there


def test_a_new_queue_is_empty(queue: JobQueue) -> None:
    assert (queue.live(), queue.ended()) == ((), ())


def test_what_was_added_and_changed_is_there_after_a_kill(queue, runs, tmp_path) -> None:
    job = entry("a-1", kind="session", weight=0.0, priority=-3, iterations=40)
    queue.add(job)
    running = msgspec.structs.replace(job, state="running", began_at=5.0, iteration=7)
    queue.changed(running)
    again = after_a_kill(runs, tmp_path / "next")
    assert again.live() == (running,)
    again.close()


def test_live_ones_come_by_priority_and_then_as_they_were_submitted(queue, runs) -> None:
    """Whatever a clock said that was set back."""
    for id, priority, at in (("a-1", 0, 9.0), ("b-1", 5, 8.0), ("c-1", 0, 7.0), ("d-1", 5, 6.0)):
        queue.add(entry(id, priority=priority, submitted_at=at))
    queue.changed(entry("c-1", state="running"))
    assert ids(queue.live()) == ["b-1", "d-1", "a-1", "c-1"]
    queue.close()
    again = JobQueue.open(runs)
    assert ids(again.live()) == ["b-1", "d-1", "a-1", "c-1"]
    again.close()


def test_the_latest_that_ended_comes_first_and_a_bounded_number_stays(
    queue, runs, monkeypatch
) -> None:
    monkeypatch.setattr(job_queue, "MOST_ENDED", 3)
    for number in range(6):
        queue.add(entry(f"a-{number}"))
    for number in (3, 0, 5, 1, 4):
        queue.changed(ended(entry(f"a-{number}"), at=20.0 - len(queue.live())))
    assert ids(queue.ended()) == ["a-4", "a-1", "a-5"]
    assert ids(queue.live()) == ["a-2"]
    queue.close()
    with opened(runs / job_queue.NAME, "queue") as journal:
        assert len(journal.items()) == 4


def test_a_change_that_says_nothing_new_writes_nothing(queue, faults) -> None:
    queue.add(entry("a-1"))
    faults.reached.clear()
    queue.changed(entry("a-1"))
    assert faults.reached == []


def test_a_run_that_goes_on_after_its_end_is_there_once_and_at_the_end(queue) -> None:
    queue.add(entry("a-1"))
    queue.add(entry("b-1"))
    queue.changed(ended(entry("a-1")))
    queue.add(entry("a-1", submitted_at=3.0))
    assert ids(queue.live()) == ["b-1", "a-1"]
    assert queue.ended() == ()


@pytest.mark.parametrize(
    "again", [entry("a-1"), entry("b-1", run_folder="/runs/a-1"), entry("a-1", run_folder="/copy")]
)
def test_a_run_is_in_the_queue_once(queue, again: QueuedJob) -> None:
    """Nor is a copy of its folder, which has its id."""
    queue.add(entry("a-1"))
    with pytest.raises(RequestRefused, match="is in the queue already, as the job a-1"):
        queue.add(again)
    assert ids(queue.live()) == ["a-1"]


def test_the_job_of_a_folder_is_found_until_it_ends(queue) -> None:
    queue.add(entry("a-1"))
    assert queue.live_in("/runs/a-1") == queue.live_in(Path("/runs/a-1")) == entry("a-1")
    queue.changed(ended(entry("a-1")))
    assert queue.live_in("/runs/a-1") is None


def test_one_too_many_is_refused_until_another_ends(queue, monkeypatch) -> None:
    monkeypatch.setattr(job_queue, "MOST_LIVE", 2)
    queue.add(entry("a-1"))
    queue.add(entry("b-1"))
    with pytest.raises(RequestRefused, match="2 jobs wait or run, and no more may"):
        queue.add(entry("c-1"))
    queue.changed(ended(entry("a-1")))
    queue.add(entry("c-1"))


def test_a_discarded_queue_is_empty(queue, runs) -> None:
    queue.add(entry("a-1"))
    queue.close()
    (runs / NOTE).write_text(str(runs / "b"))
    discard(runs)
    again = JobQueue.open(runs)
    assert again.live() == ()
    again.close()


def test_a_closed_queue_takes_nothing_and_may_be_closed_again(queue) -> None:
    queue.close()
    queue.close()
    with pytest.raises(JournalError, match="is closed"):
        queue.add(entry("a-1"))


# -------------------------------------------------------------------------------------- by words


@pytest.fixture
def three(queue: JobQueue) -> JobQueue:
    """Two are called `a`, of which one has ended."""
    for id in ("a-1111aa", "a-1111bb", "b-2222"):
        queue.add(entry(id))
    queue.changed(ended(entry("a-1111aa")))
    return queue


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("a-1111aa", "a-1111aa"),
        ("a-1111b", "a-1111bb"),
        ("b-22", "b-2222"),
        ("b", "b-2222"),
        ("a", "a-1111bb"),
    ],
)
def test_a_job_is_found_by_its_id_the_beginning_of_it_or_its_name(three, text, found) -> None:
    assert three.find(text).id == found


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a-1111", "2 jobs begin with `a-1111`: a-1111bb, a-1111aa; give the id"),
        ("b-2", "no job `b-2`; there are: a-1111bb, b-2222, a-1111aa"),
        ("", "no job ``; there are: a-1111bb, b-2222, a-1111aa"),
        ("c\x1b[2J\n", "no job `c`; there are: a-1111bb, b-2222, a-1111aa"),
    ],
)
def test_one_that_is_not_known_or_several_are_said_in_one_line(three, text, said) -> None:
    with pytest.raises(UnknownJob) as unknown:
        three.find(text)
    assert (str(unknown.value), unknown.value.exit_code) == (said, 4)


def test_several_of_one_name_are_told_apart_by_their_ids(three) -> None:
    three.add(entry("a-3333"))
    with pytest.raises(UnknownJob) as several:
        three.find("a")
    assert str(several.value) == "3 jobs are called `a`: a-1111bb, a-3333, a-1111aa; give the id"


def test_several_of_one_name_that_have_ended_are_told_apart_by_their_ids(three) -> None:
    three.changed(ended(entry("a-1111bb"), at=3.0))
    with pytest.raises(UnknownJob, match="2 jobs are called `a`: a-1111bb, a-1111aa; give the id"):
        three.find("a")


def test_of_many_jobs_only_some_are_named(queue) -> None:
    for number in range(15):
        queue.add(entry(f"a-{number:04}"))
    with pytest.raises(UnknownJob, match=r"there are: a-0000, .*a-0009 and 5 more$"):
        queue.find("other")


def test_an_empty_queue_says_so(queue) -> None:
    with pytest.raises(UnknownJob, match=r"^no job `a`; there are none$"):
        queue.find("a")


# ------------------------------------------------------------------------------- kills and disks


STEPS = (
    ("add", entry("c-1")),
    ("changed", entry("a-1", state="running", began_at=4.0)),
    ("changed", ended(entry("b-1"))),
    ("add", entry("d-1", submitted_at=9.0)),
)
"""`d-1` has ended before."""


@pytest.fixture
def busy(queue: JobQueue) -> JobQueue:
    for id in ("a-1", "b-1", "d-1"):
        queue.add(entry(id))
    queue.changed(ended(entry("d-1")))
    return queue


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("step", range(len(STEPS)), ids=lambda step: f"step {step}")
def test_a_kill_in_a_write_loses_no_job_and_leaves_none_twice(
    busy, runs, tmp_path, faults, step, place
) -> None:
    before = {job.id: job for job in (*busy.live(), *busy.ended())}
    how, job = STEPS[step]
    faults.place = place
    with pytest.raises(Killed):
        getattr(busy, how)(job)
    failpoints.install(None)
    again = after_a_kill(runs, tmp_path / "next")
    found = [*again.live(), *again.ended()]
    is_there = PLACES.index(place) >= PLACES.index("journal.after_commit")
    assert len({job.id for job in found}) == len(found)
    assert {job.id: job for job in found} == (before | {job.id: job} if is_there else before)
    again.close()


def test_every_place_of_a_write_is_tried(busy, faults) -> None:
    busy.add(entry("c-1"))
    assert tuple(faults.reached) == PLACES


@pytest.mark.parametrize("step", range(len(STEPS)), ids=lambda step: f"step {step}")
def test_a_full_disk_refuses_one_write_and_the_next_goes_through(busy, runs, faults, step) -> None:
    before = (busy.live(), busy.ended())
    how, job = STEPS[step]
    faults.place, faults.error = "journal.commit", OSError(errno.ENOSPC, "No space left on device")
    with pytest.raises(JournalError) as refused:
        getattr(busy, how)(job)
    assert str(refused.value) == (
        f"{runs / job_queue.NAME}: No space left on device; free some space or repair the disk,"
        " then try again"
    )
    assert (busy.live(), busy.ended()) == before
    getattr(busy, how)(job)
    after = (busy.live(), busy.ended())
    assert after != before
    busy.close()
    again = JobQueue.open(runs)
    assert (again.live(), again.ended()) == after
    again.close()


def test_a_disk_that_stays_full_is_said_at_every_write(busy, runs, monkeypatch) -> None:
    def full(fd: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(os, "fdatasync", full)
        for _ in range(3):
            with pytest.raises(JournalError, match="No space left on device; free some space"):
                busy.add(entry("c-1"))
    busy.add(entry("c-1"))
    assert ids(busy.live()) == ["a-1", "b-1", "c-1"]


def test_what_a_refused_write_left_on_disk_does_not_come_back(busy, runs, monkeypatch) -> None:
    """The disk takes the bytes, says that it did not, and does not let them be cut off."""
    real = os.truncate

    def bad(*_: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patched:
        patched.setattr(os, "fdatasync", bad)
        patched.setattr(os, "truncate", bad)
        with pytest.raises(JournalError, match="Input/output error"):
            busy.add(entry("c-1"))
    assert os.truncate is real
    busy.changed(entry("a-1", state="running"))
    busy.close()
    again = JobQueue.open(runs)
    assert ids(again.live()) == ["a-1", "b-1"]
    again.close()


def test_random_kills_and_full_disks_lose_nothing_that_was_acknowledged(
    runs, tmp_path, faults
) -> None:
    chance, known, queue, kills = Random(3), {}, JobQueue.open(runs), 0
    for number in range(300):
        queue_place = chance.choice(PLACES)
        error = chance.choice([Killed(), OSError(errno.ENOSPC, "full"), None])
        is_at_disk = queue_place.startswith("journal") and "after" not in queue_place
        faults.place = "" if error is None else queue_place
        faults.error = error if isinstance(error, Killed) or is_at_disk else Killed()
        faults.countdown = 1
        live = [job for job in known.values() if not job.has_ended]
        if live and chance.random() < 0.5:
            job, change = ended(chance.choice(live), at=float(number)), queue.changed
        else:
            job, change = entry(f"j-{number}"), queue.add
        allowed = [known, known | {job.id: job}]
        try:
            change(job)
            allowed = allowed[1:]
        except JournalError:
            allowed = allowed[:1]
        except Killed:
            kills += 1
            faults.place = ""
            runs = shutil.copytree(runs, tmp_path / f"after {kills}")
            queue.close()
            queue = JobQueue.open(runs)
        found = [*queue.live(), *queue.ended()]
        known = {job.id: job for job in found}
        assert len(known) == len(found)
        assert known in allowed
    queue.close()
    assert kills > 50


# ---------------------------------------------------------------------------------------- damage


def test_a_torn_tail_is_a_write_that_was_not_acknowledged(busy, runs, tmp_path) -> None:
    kept = ids(busy.live())
    busy.add(entry("c-1"))
    torn = tmp_path / "torn"
    torn.mkdir()
    file = copied(runs / job_queue.NAME, torn)
    os.truncate(file, file.stat().st_size - 3)
    again = JobQueue.open(torn)
    assert ids(again.live()) == kept
    again.close()


def test_a_byte_that_was_flipped_in_the_middle_is_said_in_one_line_and_kept(busy, runs) -> None:
    busy.close()
    file = runs / job_queue.NAME
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    with pytest.raises(JournalError) as damaged:
        JobQueue.open(runs)
    text = str(damaged.value)
    assert text.startswith(f"{file} is damaged at byte ") and "\n" not in text
    assert text.endswith(
        "; put it back from a copy, or move it away and resume its jobs from their run folders"
    )
    assert file.read_bytes() == data


@pytest.mark.parametrize(
    ("key", "body"),
    [("queued/0000000001", b'{"id": "a-1", "colour": "red"}'), ("drained", b'{"a": "today"}')],
)
def test_a_record_of_a_later_version_is_refused_with_the_version(queue, runs, key, body) -> None:
    queue.close()
    with opened(runs / job_queue.NAME, "queue") as journal:
        journal.write({key: body})
    with pytest.raises(JournalError, match=rf"queue\.records: the record {key} of Spotlight \d"):
        JobQueue.open(runs)


def test_a_record_of_an_earlier_version_lacks_the_later_fields(queue, runs) -> None:
    queue.close()
    later = {"state", "began_at", "ended_at", "reason", "iteration", "iterations"}
    fields = msgspec.to_builtins(entry("a-1"))
    body = msgspec.json.encode({k: v for k, v in fields.items() if k not in later})
    with opened(runs / job_queue.NAME, "queue") as journal:
        journal.write({"queued/0000000001": body})
    again = JobQueue.open(runs)
    assert again.live() == (entry("a-1"),)
    again.close()


def test_a_queue_of_another_coordinator_is_said_in_one_line(busy, runs) -> None:
    with pytest.raises(JournalError, match=r"in use by another coordinator; stop that one first$"):
        JobQueue.open(runs)


def test_a_queue_that_cannot_be_read_is_said_in_one_line(runs) -> None:
    (runs / job_queue.NAME).mkdir()
    with pytest.raises(JournalError, match=r"queue\.records: Is a directory; free some space"):
        JobQueue.open(runs)


def test_a_queue_opens_on_a_full_disk_and_writes_nothing_until_there_is_a_job(
    busy, runs, tmp_path, faults
) -> None:
    faults.place, faults.error = "journal.commit", OSError(errno.ENOSPC, "No space left on device")
    again = after_a_kill(runs, tmp_path / "next")
    assert ids(again.live()) == ids(busy.live())
    again.close()


def test_a_job_that_did_not_come_into_the_queue_after_all_is_forgotten(busy, runs) -> None:
    busy.take_back("a-1", None)
    busy.close()
    again = JobQueue.open(runs)
    assert (ids(again.live()), ids(again.ended())) == (["b-1"], ["d-1"])
    again.close()


# ------------------------------------------------------- what a coordinator without a queue left


def noted(runs: Path, folder: Path) -> None:
    (runs / NOTE).write_text(str(folder))


def run_of_an_earlier_coordinator(runs: Path) -> Path:
    folder = RunFolder.create(runs / "mine", job_spec())
    identity = {"job_id": "mine-0a0b", "token": "t", "sorts_prompts": False, "owner": "s-1"}
    folder.journal.write({"identity": msgspec.json.encode(identity)})
    folder.close()
    return folder.path


def test_the_run_that_an_earlier_coordinator_left_goes_on(runs) -> None:
    folder = run_of_an_earlier_coordinator(runs)
    noted(runs, folder)
    spec = job_spec()
    queue = JobQueue.open(runs)
    (job,) = queue.live()
    assert (job.id, job.name, job.owner) == ("mine-0a0b", spec.name, "s-1")
    assert (job.kind, job.state, job.run_folder) == ("job", "running", str(folder))
    assert (job.ranks, job.iterations) == (spec.training.ranks, spec.iterations)
    assert job.began_at == job.submitted_at == (folder / "config.yaml").stat().st_mtime
    assert not (runs / NOTE).exists()
    queue.close()


def test_the_run_of_the_first_release_goes_on(runs) -> None:
    earlier = Path(__file__).parents[1] / "data" / "runs" / "0.1.0"
    folder = shutil.copytree(earlier, runs / "earlier")
    noted(runs, folder)
    queue = JobQueue.open(runs)
    assert [(job.name, job.owner) for job in queue.live()] == [("earlier-run", "operator")]
    assert queue.live()[0].id.startswith("earlier-run-")
    assert (folder / "journal.sqlite").exists(), "it is as it was until the run is opened"
    queue.close()


def test_the_session_that_an_earlier_coordinator_left_goes_on(runs) -> None:
    folder = runs / "session-5e55"
    folder.mkdir(parents=True)
    (folder / "session.json").write_text('{"session": "5e55", "owner": "s-2", "token": "t"}')
    noted(runs, folder)
    queue = JobQueue.open(runs)
    (job,) = queue.live()
    assert (job.id, job.kind, job.owner, job.ranks) == ("5e55", "session", "s-2", 0)
    queue.close()


@pytest.mark.parametrize("left", ["nothing", "an empty folder", "a damaged journal"])
def test_a_run_of_which_little_can_be_read_is_kept_all_the_same(runs, left) -> None:
    """Whoever goes on with it says what is wrong."""
    folder = runs / "mine"
    if left == "an empty folder":
        folder.mkdir(parents=True)
    elif left == "a damaged journal":
        run_of_an_earlier_coordinator(runs)
        (folder / JOURNAL).write_bytes(b"\0")
    noted(runs, folder)
    queue = JobQueue.open(runs)
    (job,) = queue.live()
    assert job.run_folder == str(folder)
    assert job.id.startswith("mine-")
    assert ids((queue.find(job.id),)) == [job.id]
    queue.close()


@pytest.mark.parametrize("place", PLACES)
def test_a_kill_while_the_note_is_taken_over_leaves_the_run_once(runs, faults, place) -> None:
    noted(runs, run_of_an_earlier_coordinator(runs))
    faults.place = place
    with pytest.raises(Killed):
        JobQueue.open(runs)
    faults.place = ""
    queue = JobQueue.open(runs)
    assert ids(queue.live()) == ["mine-0a0b"]
    assert not (runs / NOTE).exists()
    queue.close()


def test_a_node_that_a_user_drained_is_known_after_a_kill(runs: Path, queue: JobQueue) -> None:
    queue.add(entry("mine-0a0b"))
    queue.drain("a", cancel=False)
    queue.drain("b", cancel=False)
    queue.drain("a", cancel=True)
    later = after_a_kill(runs, runs.parent / "later")
    assert later.drained == {"b"}
    assert ids(later.live()) == ["mine-0a0b"]
    later.close()


def test_a_drain_that_the_disk_refuses_is_no_drain(queue: JobQueue, faults: Faults) -> None:
    queue.drain("a", cancel=False)
    faults.place, faults.error = "journal.commit", OSError(errno.ENOSPC, "No space left on device")
    with pytest.raises(JournalError):
        queue.drain("a", cancel=True)
    assert queue.drained == {"a"}
    queue.drain("a", cancel=True)
    assert queue.drained == frozenset()
