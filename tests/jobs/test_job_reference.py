"""The job reference follows the code."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import get_args, get_origin, get_type_hints

import msgspec

from spotlight.jobs import JobSpec
from spotlight.jobs.losses import LOSSES, LossFacts

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "job-reference.md"


def test_the_page_is_up_to_date() -> None:
    tool = ROOT / "tools" / "make_job_reference.py"
    done = subprocess.run([sys.executable, str(tool), "--check"], timeout=30, check=False)
    assert done.returncode == 0, "run: python tools/make_job_reference.py"


def test_every_field_has_a_row_and_a_meaning() -> None:
    rows = {}
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        if line.startswith("| `"):
            path, *_, meaning, _ = line.replace("\\|", "/").split("|")[1:]
            rows[path.strip().strip("`")] = meaning.strip()
    options = {f"training.options.{name}" for loss in LOSSES.values() for name in _fields(loss)}
    assert set(rows) == {*_leaves(JobSpec, ""), *options}
    assert all(rows.values()), [path for path, meaning in rows.items() if not meaning]


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
