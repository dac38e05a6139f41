"""Submitting a job to the test-bed."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from benchmarks.exploration.cases import PROFILES, SOL_RL_SPLIT
from benchmarks.exploration.rival_jobs import virtual_job
from benchmarks.exploration.rivals import TASKS
from benchmarks.virtual_testbed import RunFailed, main, run_on_testbed
from spotlight.jobs import JobSpec
from spotlight_simulation.chaos import scratch_folder
from spotlight_simulation.numerics import Fingerprints
from spotlight_simulation.profile import load_profile

SMALL = {
    "iterations": 1,
    "checkpoint_every": 1,
    "training.warmup_updates": 0,
    "validation.prompts": 1,
    "validation.seeds": 1,
}


def run(job: JobSpec) -> int:
    """The iterations that came of it."""
    with scratch_folder() as folder:
        made = run_on_testbed(
            job,
            profile=load_profile(PROFILES[SOL_RL_SPLIT]),
            numerics=Fingerprints(),
            folder=folder,
        )
    return len(made.iterations)


@pytest.mark.parametrize(
    "task", [TASKS[0], *(pytest.param(task, marks=pytest.mark.slow) for task in TASKS[1:])]
)
def test_jobs_of_every_task_are_accepted_whatever_their_rewards_must_know_of_a_prompt(
    task: str,
) -> None:
    assert run(virtual_job(task, "spotlight", 0, SMALL)) == 1


def test_a_job_that_is_refused_ends_with_the_reason() -> None:
    job = virtual_job("ocr", "spotlight", 0, SMALL)
    prompts = msgspec.structs.replace(job.prompts, train="builtin:compositional-tiny/train")
    with pytest.raises(RunFailed, match=r"refused: .*quotes"):
        run(msgspec.structs.replace(job, prompts=prompts))


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (["--preempt", "300"], "`300` must be TIME:NODE:AWAY, in seconds"),
        (["--preempt", "soon:spot-0:60"], "`soon:spot-0:60` must be TIME:NODE:AWAY"),
        (["--set", "training.learning_rate=["], "--set training.learning_rate: the value is"),
        (["--set", "name.foo=1"], "--set: a job has no field `name.foo`"),
        (["--set", "training.learning_rate=-1"], "training.learning_rate: must be above 0, not -1"),
    ],
)
def test_an_option_that_cannot_be_is_refused_in_one_line(
    options: list[str],
    problem: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("sys.argv", ["virtual_testbed", *options])
    with pytest.raises(SystemExit) as ended:
        main()
    told = capsys.readouterr().err if ended.value.code == 2 else str(ended.value.code)
    assert problem in told.splitlines()[-1]


def test_a_profile_without_rows_is_refused_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = PROFILES[SOL_RL_SPLIT].read_text()
    profile = tmp_path / "no-rows.yaml"
    profile.write_text("".join(line for line in text.splitlines(True) if "rows: " not in line))
    monkeypatch.setattr("sys.argv", ["virtual_testbed", "--quick", "--profile", str(profile)])
    with pytest.raises(SystemExit) as ended:
        main()
    (line,) = str(ended.value.code).splitlines()
    assert "no-rows.yaml: Object missing required field `rows`; " in line
