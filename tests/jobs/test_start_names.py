"""What `model.start` names."""

from __future__ import annotations

from pathlib import Path

import pytest

from spotlight.errors import JobError
from spotlight.jobs import parse_job
from spotlight.jobs.start_names import StartName, Which
from tests.small_run import small_job


@pytest.mark.parametrize(
    ("text", "path", "which"),
    [
        ("/runs/a", "/runs/a", None),
        ("/runs/a@best", "/runs/a", "best"),
        ("/runs/a@last", "/runs/a", "last"),
        ("/runs/a@15", "/runs/a", 15),
        ("/runs/me@home/a", "/runs/me@home/a", None),
        ("/runs/a@b@7", "/runs/a@b", 7),
        ("/runs/a@first", "/runs/a@first", None),
    ],
)
def test_what_follows_the_last_at_names_a_checkpoint(text: str, path: str, which: Which) -> None:
    assert StartName.parse(text) == (Path(path), which)


def test_a_path_in_a_job_file_begins_at_the_file(tmp_path: Path) -> None:
    text = """
name: a
model: {checkpoint: 'builtin:ocr-tiny', start: runs/a@best}
prompts: {train: 'builtin:ocr-tiny/train', validation: 'builtin:ocr-tiny/validation'}
sampler: {height: 16, width: 48}
"""
    assert parse_job(text, base=tmp_path).model.start == f"{tmp_path}/runs/a@best"


def test_the_optimizer_is_taken_over_with_weights_only() -> None:
    with pytest.raises(JobError, match=r"model.start_optimizer: needs `start`"):
        small_job(model={"checkpoint": "builtin:ocr-tiny", "start_optimizer": True})
