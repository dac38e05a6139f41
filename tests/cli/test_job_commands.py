"""The verbs of people with jobs: what they ask the coordinator, what they print and refuse."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from spotlight.actors.protocol.users import JobAccepted, JobEntry, JobList, JobStatus
from spotlight.cli.jobs import job_table
from spotlight.errors import NotAllowed, RequestRefused, UnknownJob
from spotlight.jobs import JobSpec, job_to_yaml
from spotlight.running import following
from tests.cli.stand_in import StandIn
from tests.small_run import small_job, write_run

NOW = 1_800_000_000.0
RUNS = JobStatus(job="small", id="small-3f9a", iteration=1, iterations=4, run_folder="/runs/small")


def entry(name: str, state: Any, **changes: Any) -> JobEntry:
    fields = {
        "id": f"{name}-3f9a",
        "name": name,
        "kind": "job",
        "owner": "operator",
        "state": state,
        "weight": 1.0,
        "priority": 0,
        "submitted_at": NOW - 7200.0,
    }
    return JobEntry(**(fields | changes))


RUNNING = entry("signs", "running", began_at=NOW - 600.0, iteration=3, iterations=40, nodes=5)
QUEUED = entry("big", "queued", iterations=8, note="waits for 2 reserved workers")
FAILED = entry("old", "failed", began_at=NOW - 7000.0, ended_at=NOW - 3600.0, note="no rewards")


class Coordinator(StandIn):
    """See `StandIn`."""

    def __init__(self) -> None:
        super().__init__()
        self.specs: list[JobSpec] = []
        self.statuses = [RUNS]
        self.listed: tuple[JobEntry, ...] = (RUNNING, QUEUED, FAILED)

    async def submit(self, job: JobSpec, run_folder: str, **options: Any) -> JobAccepted:
        self.specs.append(job)
        accepted = JobAccepted(f"{job.name}-3f9a", f"/runs/{job.name}-001")
        return self.answer(("submit", job.name, run_folder, options), accepted)

    async def jobs(self) -> JobList:
        return self.answer(("jobs",), JobList(self.listed))

    async def status(self, job: str = "", *, timeout_s: float = 10.0) -> JobStatus:
        status = self.statuses.pop(0) if len(self.statuses) > 1 else self.statuses[0]
        return self.answer(("status", job), status)

    async def cancel(self, job: str = "") -> JobStatus:
        return self.answer(("cancel", job), self.statuses[0])


@pytest.fixture
def coordinator(reached_by_join: Any, monkeypatch: pytest.MonkeyPatch) -> Coordinator:
    monkeypatch.setattr(following, "POLL_S", 0.0)
    return reached_by_join(Coordinator())


@pytest.fixture
def job(coordinator: Coordinator) -> str:
    Path("job.yaml").write_text(job_to_yaml(small_job()))
    return "job.yaml"


def shown(jobs: list[JobEntry], width: int = 80) -> list[str]:
    console = Console(width=width, color_system=None)
    with console.capture() as captured:
        console.print(job_table(jobs, NOW))
    return [line.rstrip() for line in captured.get().splitlines()]


# --- submit ---


def test_a_job_is_submitted_with_its_share(
    coordinator: Coordinator, spotlight: Any, job: str
) -> None:
    words = ("--name", "mine", "--weight", "2.5", "--priority", "-3", "--set", "iterations=7")
    code, out, err = spotlight("submit", job, *words)
    assert (code, err) == (0, "")
    assert out == "submitted as mine-3f9a; its files are in /runs/mine-001\n"
    options = {"resume": False, "weight": 2.5, "priority": -3}
    assert coordinator.asked == [("submit", "mine", "", options)]
    assert coordinator.specs[0].iterations == 7


def test_a_run_goes_on_with_changes(
    coordinator: Coordinator, spotlight: Any, tmp_path: Path
) -> None:
    run = write_run(tmp_path / "run")
    code, out, err = spotlight("resume", str(run), "--set", "iterations=80", "--weight", "2")
    assert (code, err) == (0, "")
    assert out.startswith("submitted as small-3f9a")
    ((verb, name, folder, options),) = coordinator.asked
    assert (verb, name, folder) == ("submit", "small", str(run))
    assert (options["resume"], options["changes"]) == (True, ("iterations=80",))
    assert options["weight"] == 2
    assert coordinator.specs[0].iterations == 80


def test_a_run_is_named_by_its_job_too(
    coordinator: Coordinator, spotlight: Any, tmp_path: Path
) -> None:
    run = write_run(tmp_path / "run")
    coordinator.statuses = [JobStatus(job="small", id="small-3f9a", run_folder=str(run))]
    code, _, err = spotlight("resume", "small")
    assert (code, err) == (0, "")
    assert [asked[:3] for asked in coordinator.asked] == [
        ("status", "small"),
        ("submit", "small", str(run)),
    ]


def test_a_program_gets_the_id_as_json(coordinator: Coordinator, spotlight: Any, job: str) -> None:
    _, out, _ = spotlight("submit", job, "--json")
    assert json.loads(out)["job_id"] == "small-3f9a"


@pytest.mark.parametrize("shown", ["--wait", "--watch"])
@pytest.mark.parametrize(
    ("outcome", "code"), [("finished", 0), ("failed", 1), ("cancelled", 3)], ids=str
)
def test_whoever_waits_learns_by_the_exit_code_how_it_ended(
    coordinator: Coordinator, spotlight: Any, job: str, outcome: Any, code: int, shown: str
) -> None:
    ended = JobStatus(job="small", id="small-3f9a", outcome=outcome, reason="so it was")
    coordinator.statuses = [RUNS, RUNS, ended]
    ended_with, out, _ = spotlight("submit", job, shown)
    assert ended_with == code
    assert f"{outcome}: so it was" in out
    assert coordinator.asked[1:] == [("status", "small-3f9a")] * 3


def test_ctrl_c_leaves_the_job_running_and_says_so(
    coordinator: Coordinator, spotlight: Any, job: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(following, "follow", interrupted)
    code, _, err = spotlight("submit", job, "--wait")
    assert code == 130
    assert err == "the job goes on; see it with: spotlight watch small-3f9a\n"
    assert [asked[0] for asked in coordinator.asked] == ["submit"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--weight", "-1"), "--weight -1: must be from 0 to 1000"),
        (("--weight", "nan"), "--weight nan: must be from 0 to 1000"),
        (("--priority", "101"), "--priority 101: must be from -100 to 100"),
        (("--name", "a b"), "name: use letters, digits"),
        (("--set", "iterations=0"), "iterations"),
    ],
    ids=lambda words: words[0] if isinstance(words, tuple) else "",
)
def test_what_no_job_can_be_is_refused_before_anybody_is_asked(
    coordinator: Coordinator, spotlight: Any, job: str, words: tuple[str, ...], said: str
) -> None:
    code, out, err = spotlight("submit", job, *words)
    assert (code, out) == (2, "")
    assert said in err and len(err.splitlines()) == 1
    assert coordinator.asked == []


@pytest.mark.parametrize("named", ["a run folder", "a run", "a job"])
def test_a_run_that_has_ended_goes_on(
    coordinator: Coordinator, spotlight: Any, tmp_path: Path, named: str
) -> None:
    (tmp_path / "runs").mkdir()
    run = write_run(tmp_path / "runs" / "small-001", iterations=2)
    coordinator.statuses = [JobStatus(job="other", run_folder=str(run))]
    name = {"a run folder": str(run), "a run": "small", "a job": "other"}[named]
    code, out, err = spotlight("resume", name, "--set", "iterations=9", "--priority", "1")
    assert (code, err) == (0, "")
    assert out == "submitted as small-3f9a; its files are in /runs/small-001\n"
    options = {"resume": True, "changes": ("iterations=9",), "weight": 1.0, "priority": 1}
    assert coordinator.asked[-1] == ("submit", "small", str(run), options)
    assert coordinator.specs[0].iterations == 9


def test_whoever_resumes_a_run_may_wait_for_it(
    coordinator: Coordinator, spotlight: Any, tmp_path: Path
) -> None:
    run = write_run(tmp_path / "run")
    coordinator.statuses = [JobStatus(job="small", id="small-3f9a", outcome="failed")]
    code, out, _ = spotlight("resume", str(run), "--wait")
    assert code == 1 and out.splitlines()[-1] == "small: failed"


# --- list ---


def test_jobs_that_have_not_ended_are_listed(coordinator: Coordinator, spotlight: Any) -> None:
    code, out, _ = spotlight("list")
    assert code == 0
    assert "signs" in out and "big" in out and "old" not in out
    _, everything, _ = spotlight("list", "--all")
    assert "old: no rewards" in everything


def test_the_list_is_there_as_json(coordinator: Coordinator, spotlight: Any) -> None:
    _, out, _ = spotlight("list", "--json")
    assert [job["name"] for job in json.loads(out)] == ["signs", "big"]


def test_without_jobs_the_list_says_where_the_others_are(
    coordinator: Coordinator, spotlight: Any
) -> None:
    coordinator.listed = (FAILED,)
    assert "`spotlight list --all` has those that ended" in spotlight("list")[1]
    coordinator.listed = ()
    assert spotlight("list")[1] == "no job runs or waits\n"


def test_a_row_says_how_a_job_is() -> None:
    lines = shown([RUNNING, QUEUED, FAILED])
    assert lines[0].split() == ["job", "state", "done", "nodes", "since"]
    assert [line.split() for line in lines[2:5]] == [
        ["signs", "running", "3/40", "5", "10", "m"],
        ["big", "queued", "0/8", "0", "2", "h"],
        ["old", "failed", "0", "1", "h"],
    ]
    assert lines[-2:] == ["big: waits for 2 reserved workers", "old: no rewards"]


def test_owner_weight_and_priority_are_shown_where_they_differ() -> None:
    others = [entry("a", "queued", owner="k9s8tm"), entry("b", "queued", weight=0.5, priority=-1)]
    lines = shown([RUNNING, *others])
    assert lines[0].split()[4:] == ["owner", "weight", "priority", "since"]
    assert lines[3].split()[3:6] == ["k9s8tm", "1", "0"]
    assert lines[4].split()[3:6] == ["operator", "0.5", "-1"]


def test_two_of_one_name_are_listed_by_their_ids() -> None:
    twins = [entry("a", "running", id="a-1234"), entry("a", "queued", id="a-5678")]
    assert [line.split()[0] for line in shown([*twins, RUNNING])[2:5]] == [
        "a-1234",
        "a-5678",
        "signs",
    ]


@pytest.mark.parametrize("width", [60, 80, 120])
def test_the_list_fits_the_terminal(width: int) -> None:
    long = entry("x" * 64, "running", owner="k9s8tm", weight=2, priority=50, began_at=NOW - 9e5)
    lines = shown([long, RUNNING, FAILED], width)
    assert max(map(len, lines)) <= width
    assert "".join(line.split("  ")[0].strip() for line in lines[2:]).count("x") == 64


def test_names_and_notes_are_never_read_as_markup() -> None:
    lines = shown([entry("[b]a[/]", "failed", ended_at=NOW, note="[red]x[/nothing]")])
    assert "[b]a[/]: [red]x[/nothing]" in lines


# --- status and cancel ---


@pytest.mark.parametrize("verb", ["status", "cancel"])
@pytest.mark.parametrize("words", [(), ("small",)], ids=["the only one", "by name"])
def test_a_job_is_asked_for_by_its_name(
    coordinator: Coordinator, spotlight: Any, verb: str, words: tuple[str, ...]
) -> None:
    code, out, _ = spotlight(verb, *words)
    assert code == 0 and "small" in out
    assert coordinator.asked == [(verb, *(words or ("",)))]


def test_the_status_says_how_long_it_still_takes(coordinator: Coordinator, spotlight: Any) -> None:
    coordinator.statuses = [JobStatus(job="a", iteration=10, iterations=40, elapsed_s=600.0)]
    assert "10 m 00 s, about 30 m 00 s left" in spotlight("status")[1]


def test_a_job_that_has_ended_is_not_cancelled_again(
    coordinator: Coordinator, spotlight: Any
) -> None:
    coordinator.statuses = [JobStatus(job="small", outcome="finished")]
    code, _, err = spotlight("cancel", "small")
    assert code == 2 and "`small` has ended already: finished" in err
    coordinator.statuses = [JobStatus()]
    assert "no job is running" in spotlight("cancel")[2]


# --- what the coordinator refuses ---


@pytest.mark.parametrize(
    "words",
    [("status", "x"), ("cancel", "x"), ("watch", "x"), ("list",), ("submit", "job.yaml")],
    ids=lambda words: words[0],
)
@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (UnknownJob("no job `x`; there are: signs"), 4, "no job `x`; there are: signs"),
        (UnknownJob("2 jobs are called `x`: a, b; give the id"), 4, "2 jobs are called `x`"),
        (RequestRefused("--priority 9: at most 3"), 2, "--priority 9: at most 3"),
        (NotAllowed("x"), 2, "this join token (oper01) does not allow that"),
    ],
    ids=["unknown", "two of one name", "priority", "role"],
)
def test_a_refusal_is_one_line_with_an_exit_code_of_its_kind(
    coordinator: Coordinator,
    spotlight: Any,
    job: str,
    words: tuple[str, ...],
    error: Exception,
    code: int,
    said: str,
) -> None:
    coordinator.error = error
    ended_with, out, err = spotlight(*words)
    assert (ended_with, out) == (code, "")
    assert said in err and len(err.splitlines()) == 1
