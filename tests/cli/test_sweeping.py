"""`spotlight sweep`: all is checked before the first job is submitted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from spotlight.actors.protocol.users import JobAccepted
from spotlight.errors import RequestRefused
from spotlight.jobs import JobSpec, job_to_yaml
from tests.cli.stand_in import StandIn
from tests.small_run import small_job


class Coordinator(StandIn):
    """See `StandIn`. It has room for so many jobs."""

    room = 100

    async def submit(self, job: JobSpec, run_folder: str, **options: Any) -> JobAccepted:
        if len(self.asked) == self.room:
            self.error = RequestRefused("the disk is full")
        asked = (job.name, job.seed, job.sampler.steps, options)
        return self.answer(asked, JobAccepted(job.name, f"/runs/{job.name}-001"))


@pytest.fixture
def coordinator(reached_by_join: Any) -> Coordinator:
    one = reached_by_join(Coordinator())
    Path("job.yaml").write_text(job_to_yaml(small_job()))
    return one


GRID = ("sweep", "job.yaml", "--over", "sampler.steps=2,3", "--seeds", "0..1")
NAMES = [f"small-steps-{steps}-seed-{seed}" for steps in (2, 3) for seed in (0, 1)]


def test_the_whole_grid_is_submitted(coordinator: Coordinator, spotlight: Any) -> None:
    code, out, err = spotlight(*GRID, "--weight", "2", "--priority", "1", "--set", "iterations=3")
    assert (code, err) == (0, "")
    options = {"resume": False, "weight": 2.0, "priority": 1}
    assert coordinator.asked == [
        (f"small-steps-{steps}-seed-{seed}", seed, steps, options)
        for steps in (2, 3)
        for seed in (0, 1)
    ]
    assert out.splitlines()[-1] == f"compare them with: spotlight compare {' '.join(NAMES)}"


def test_a_dry_run_lists_the_jobs_and_asks_nobody(coordinator: Coordinator, spotlight: Any) -> None:
    assert spotlight(*GRID, "--dry-run") == (0, "\n".join(NAMES) + "\n", "")
    assert json.loads(spotlight(*GRID, "--dry-run", "--json")[1]) == NAMES
    assert coordinator.asked == []


def test_another_name_begins_all_names(coordinator: Coordinator, spotlight: Any) -> None:
    _, out, _ = spotlight(*GRID, "--dry-run", "--name", "x")
    assert out.splitlines()[0] == "x-steps-2-seed-0"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--over", "sampler.step=4"), "a job has no field `sampler.step`; did you mean"),
        (("--over", "sampler.steps=4,0"), "sampler.steps"),
        (("--over", "sampler.steps=4", "--weight", "-2"), "--weight -2: must be from 0"),
        ((), "what is to differ"),
    ],
    ids=["field", "value", "weight", "nothing"],
)
def test_one_job_that_cannot_be_keeps_all_from_the_queue(
    coordinator: Coordinator, spotlight: Any, words: tuple[str, ...], said: str
) -> None:
    code, out, err = spotlight("sweep", "job.yaml", *words)
    assert (code, out) == (2, "")
    assert said in err and len(err.splitlines()) == 1
    assert coordinator.asked == []


def test_a_refusal_in_the_middle_says_how_many_are_in_the_queue(
    coordinator: Coordinator, spotlight: Any
) -> None:
    coordinator.room = 3
    code, out, err = spotlight(*GRID)
    assert code == 2 and len(out.splitlines()) == 3
    assert "small-steps-3-seed-1: the disk is full (3 of 4 jobs are in the queue)" in err
