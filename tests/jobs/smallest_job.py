"""The smallest job, with one field changed, and what is said of a job that is wrong."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from spotlight.errors import JobError
from spotlight.jobs import job_from_data

SMALLEST = {
    "name": "first",
    "model": {"checkpoint": "builtin:ocr-tiny"},
    "prompts": {"train": "builtin:ocr-tiny/train", "validation": "builtin:ocr-tiny/validation"},
    "sampler": {"height": 32, "width": 64},
}


def with_field(path: str, value: Any, base: dict[str, Any] = SMALLEST) -> dict[str, Any]:
    """The smallest job with one field set, given by its dotted path."""
    data = copy.deepcopy(base)
    *sections, field = path.split(".")
    section = data
    for name in sections:
        section = section.setdefault(name, {})
    section[field] = value
    return data


def problem_of(data: dict[str, Any]) -> JobError:
    with pytest.raises(JobError) as caught:
        job_from_data(data)
    assert str(caught.value) == f"{caught.value.path}: {caught.value.problem}"
    assert "\n" not in str(caught.value)
    return caught.value
