"""The job reference follows the code."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import get_args, get_origin, get_type_hints

import msgspec
import yaml

from spotlight.jobs import JobSpec
from spotlight.jobs.losses import LOSSES, LossFacts

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "job-reference.md"
SERVES = r"\b(is|are) for\b"


def test_the_page_is_up_to_date() -> None:
    tool = ROOT / "tools" / "make_job_reference.py"
    done = subprocess.run([sys.executable, str(tool), "--check"], timeout=30, check=False)
    assert done.returncode == 0, "run: python tools/make_job_reference.py"


def test_every_field_has_a_row_and_a_meaning() -> None:
    rows = _rows()
    options = {f"training.options.{name}" for loss in LOSSES.values() for name in _fields(loss)}
    assert set(rows) == {*_leaves(JobSpec, ""), *options}
    silent = [path for path, (_, meaning) in rows.items() if not meaning]
    assert not silent, silent


def test_a_field_that_no_example_shows_says_whom_it_serves() -> None:
    shown: set[str] = set()
    for example in (ROOT / "examples").rglob("*.yaml"):
        _collect(yaml.safe_load(example.read_text(encoding="utf-8")), "", shown)
    silent = [
        path
        for path, (default, meaning) in _rows().items()
        if path not in shown and default != "required" and not re.search(SERVES, meaning)
    ]
    assert not silent, silent


def _collect(data: object, path: str, found: set[str]) -> None:
    """The paths of all fields that a job file sets."""
    if isinstance(data, dict):
        for name, value in data.items():
            found.add(f"{path}{name}")
            _collect(value, f"{path}{name}.", found)
    for item in data if isinstance(data, list) else ():
        _collect(item, f"{path.removesuffix('.')}[].", found)


def _rows() -> dict[str, tuple[str, str]]:
    """Default and meaning of every field, by its path."""
    rows = {}
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        if line.startswith("| `"):
            path, _, default, _, meaning, _ = line.replace("\\|", "/").split("|")[1:]
            rows[path.strip().strip("`")] = default.strip(), meaning.strip()
    return rows


def _fields(loss: LossFacts) -> tuple[str, ...]:
    return loss.options.__struct_fields__


def _leaves(spec: type, prefix: str) -> list[str]:
    leaves = []
    hints = get_type_hints(spec)
    for field in msgspec.structs.fields(spec):
        path, hint = f"{prefix}{field.name}", hints[field.name]
        inner = [one for one in (hint, *get_args(hint)) if is_section(one)]
        if inner and path != "validation.rewards":  # which are as those of the job
            leaves += _leaves(inner[0], f"{path}[]." if get_origin(hint) is tuple else f"{path}.")
        else:
            leaves.append(path)
    return leaves


def is_section(hint: object) -> bool:
    return isinstance(hint, type) and issubclass(hint, msgspec.Struct)
