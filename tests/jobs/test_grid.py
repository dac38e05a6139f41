"""The jobs of a sweep: every combination once, under a name that tells."""

from __future__ import annotations

import pytest

from spotlight.errors import UserError
from spotlight.jobs.grid import MOST_JOBS, grid
from spotlight.jobs.loading import parse_job


def test_every_combination_of_values_and_seeds_is_a_job() -> None:
    jobs = grid("ocr", ["training.learning_rate=1e-4,3e-4", "sampler.steps=4,8"], "0..1")
    assert len(jobs) == 8
    assert jobs[0].name == "ocr-learning_rate-0.0001-steps-4-seed-0"
    assert jobs[-1].name == "ocr-learning_rate-0.0003-steps-8-seed-1"
    assert len({job.name for job in jobs}) == 8
    assert jobs[-1].changes == (
        "training.learning_rate=0.0003",
        "sampler.steps=8",
        "seed=1",
        'name="ocr-learning_rate-0.0003-steps-8-seed-1"',
    )


@pytest.mark.parametrize(
    ("seeds", "found"), [("4", [4]), ("0..2", [0, 1, 2]), ("1,5,7..8", [1, 5, 7, 8])]
)
def test_seeds_are_ranges_and_lists(seeds: str, found: list[int]) -> None:
    assert [job.changes[0] for job in grid("ocr", [], seeds)] == [f"seed={one}" for one in found]


@pytest.mark.parametrize(
    ("over", "labels"),
    [
        ("exploration.mode=none,bandit", ["mode-none", "mode-bandit"]),
        ("model.lora.targets=[a, b],[c]", ["targets-a-b", "targets-c"]),
        ("rewards[0].weight=0.5,1", ["weight-0.5", "weight-1"]),
        ("training.learning_rate=3e-5", ["learning_rate-3e-5"]),
        ("training.sharded=true,false", ["sharded-True", "sharded-False"]),
        ("sampler.shift=null,3", ["shift-None", "shift-3"]),
    ],
)
def test_names_say_the_values(over: str, labels: list[str]) -> None:
    assert [job.name for job in grid("a", [over], "")] == [f"a-{label}" for label in labels]


def test_what_a_sweep_sets_a_job_has() -> None:
    text = """\
name: small
model: {checkpoint: builtin:ocr-tiny}
prompts: {train: builtin:ocr-tiny/train, validation: builtin:ocr-tiny/validation}
sampler: {height: 16, width: 48}
"""
    (one, _) = grid("small", ["training.learning_rate=3e-4,1e-4"], "7")
    job = parse_job(text, changes=one.changes)
    assert (job.name, job.seed, job.training.learning_rate) == (one.name, 7, 3e-4)


@pytest.mark.parametrize(
    ("over", "seeds", "said"),
    [
        ([], "", "what is to differ"),
        (["sampler.steps"], "", "write PATH=VALUE,VALUE"),
        (["sampler.steps="], "", "write PATH=VALUE,VALUE"),
        (["=4,8"], "", "write PATH=VALUE,VALUE"),
        (["sampler.steps=[4"], "", "--over sampler.steps: the list of values"),
        (["sampler.steps=4,4"], "", "two of the values"),
        (["sampler.steps=4", "sampler.steps=8"], "", "--over sampler.steps: is given twice"),
        (["seed=1,2"], "0..1", "--over seed: is given twice"),
        ([], "3..1", "--seeds 3..1: write FIRST..LAST"),
        ([], "a", "--seeds a: write FIRST..LAST"),
        ([], "-1", "--seeds -1: write FIRST..LAST"),
        ([], "1,1", "a seed is given twice"),
        ([], "0..999999999", f"more than {MOST_JOBS}"),
        (["sampler.steps=1,2,3"], "0..99", f"300 jobs, and a sweep has at most {MOST_JOBS}"),
        ([f"sampler.{'x' * 70}=1"], "", "give a shorter --name"),
    ],
)
def test_what_is_no_sweep_is_refused_in_one_line(over: list[str], seeds: str, said: str) -> None:
    with pytest.raises(UserError) as refused:
        grid("ocr", over, seeds)
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)
