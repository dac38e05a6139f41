"""A small job, what is left of its run folder, and a record, for the tests of run folders."""

from __future__ import annotations

import json

from spotlight.jobs import JobSpec, job_from_data
from spotlight.store.run_folder import RunFolder


def job(**changes) -> JobSpec:
    return job_from_data(
        {
            "name": "ocr-tiny",
            "model": {"checkpoint": "builtin:ocr-tiny"},
            "prompts": {"train": "builtin:train", "validation": "builtin:validation"},
            "sampler": {"height": 32, "width": 64},
            **changes,
        }
    )


def reopened(path, spec: JobSpec | None = None):
    """What is there after a crash: (job, last time)."""
    folder, found = RunFolder.reopen(path, spec)
    try:
        return found, folder.last_moment().time_s
    finally:
        folder.close()


def lines(file) -> list[dict]:
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


def iteration(number: int) -> dict:
    return {"kind": "iteration", "iteration": number}
