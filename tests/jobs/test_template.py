"""The job file of `spotlight init` is a job, explains every field, and has the defaults."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec

from spotlight.jobs import load_job, parse_job
from spotlight.jobs.template import job_template

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "ocr-tiny.yaml"


def test_the_template_is_a_job_as_it_is() -> None:
    job = parse_job(job_template())
    assert job.model.checkpoint == "builtin:ocr-tiny"


def test_the_template_trains_on_the_task_of_the_example_as_the_example_does() -> None:
    job, example = parse_job(job_template()), load_job(EXAMPLE)
    assert job.training.largest_advantage == example.training.largest_advantage
    training = msgspec.structs.replace(example.training, advantage_clip=None)
    assert job.training == training
    assert (job.prompts, job.sampler) == (example.prompts, example.sampler)
    assert job.samples_per_iteration == example.samples_per_iteration


def test_without_its_comment_marks_it_says_the_same() -> None:
    text = re.sub(r"(?m)^( *)#(?=[\w-])", r"\1", job_template())
    assert parse_job(text) == parse_job(job_template())


def test_every_field_stands_there_with_its_meaning_above_it() -> None:
    lines = job_template().splitlines()
    fields = [number for number, line in enumerate(lines) if re.match(r" *#?\w+:", line)]
    assert len(fields) > 60
    for number in fields:
        assert re.match(r" *# ", lines[number - 1]), lines[number]
    assert all(len(line) <= 100 for line in lines if re.match(r" *# ", line))


def test_choices_are_named() -> None:
    assert "(one of: full, lora)\n  #tuning: full" in job_template()
