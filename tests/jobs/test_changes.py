"""`--set path=value` changes a job file, and nothing that a job does not have."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from spotlight.errors import JobError
from spotlight.jobs import load_job
from spotlight.jobs.changes import changed
from spotlight.jobs.loading import job_paths

JOB = """\
name: small
model: {checkpoint: builtin:ocr-tiny}
prompts: {train: builtin:ocr-tiny/train, validation: builtin:ocr-tiny/validation}
sampler: {height: 16, width: 48}
trackers:
  - kind: tensorboard
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "job.yaml"
    path.write_text(JOB)
    return path


def test_values_are_read_as_yaml_and_sections_need_not_be_there(file: Path) -> None:
    job = load_job(
        file,
        [
            "sampler.steps=12",
            "training.learning_rate = 1e-4",
            "training.adam_betas=[0.8, 0.95]",
            "exploration={mode: none}",
            "sampler.shift=null",
            'name="007"',
            "trackers[0].kind=wandb",
        ],
    )
    assert job.sampler.steps == 12
    assert job.training.learning_rate == 1e-4
    assert job.training.adam_betas == (0.8, 0.95)
    assert job.exploration.mode == "none"
    assert job.name == "007"
    assert [tracker.kind for tracker in job.trackers] == ["wandb"]
    assert job.sampler.height == 16


def test_of_two_changes_to_a_field_the_later_one_counts(file: Path) -> None:
    assert load_job(file, ["seed=1", "seed=2"]).seed == 2


def test_relative_paths_start_at_the_job_file(file: Path) -> None:
    job = load_job(file, ["prompts.train=mine.txt"])
    assert job.prompts.train == str(file.parent / "mine.txt")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("sampler.stpes=12", "a job has no field `sampler.stpes`; did you mean `sampler.steps`"),
        ("learning_rate=1", "no field `learning_rate`; did you mean `training.learning_rate`"),
        ("sampler.steps", "has no value; write path=value"),
        ("=3", "has no value"),
        ("zzz=3", "a job has no field `zzz`"),
        ("seed=[", "--set seed: the value is not valid YAML"),
        ("trackers[1].kind=wandb", "no item [1] there; set the whole list"),
        ("sampler[0]=3", "a job has no field `sampler[0]`"),
        ("sampler.steps=many", "sampler.steps: must be a whole number"),
        ("training.loss=best", "training.loss: must be `awm`, `diffusion_nft`"),
        ("sampler.steps=.nan", "sampler.steps: must be a finite number"),
    ],
)
def test_what_cannot_be_set_is_named(file: Path, change: str, words: str) -> None:
    with pytest.raises(JobError) as refused:
        load_job(file, [change])
    assert words in str(refused.value)


def test_the_data_and_what_aliases_share_stay_as_they_are() -> None:
    shared: dict[str, Any] = {"nodes": 1}
    data: dict[str, Any] = {"pools": {"reserved": shared, "spot": shared}}
    result = changed(data, ["pools.spot.nodes=3"], job_paths())
    assert result["pools"] == {"reserved": {"nodes": 1}, "spot": {"nodes": 3}}
    assert data["pools"]["spot"] == {"nodes": 1}


def test_what_stands_above_a_field_must_be_a_section() -> None:
    with pytest.raises(JobError, match="is not a section"):
        changed({"sampler": 3}, ["sampler.steps=1"], job_paths())


def test_every_field_of_a_job_has_a_path() -> None:
    paths = job_paths()
    assert {"name", "sampler", "sampler.window.length", "model.lora.targets"} <= set(paths)
    assert {"trackers", "trackers[]", "trackers[].kind"} <= set(paths)
    assert len(paths) == len(set(paths))
