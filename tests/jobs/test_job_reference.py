"""The job reference follows the code."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import msgspec

from spotlight.jobs import JobSpec

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
    assert set(rows) == set(_leaves(JobSpec, ""))
    assert all(rows.values()), [path for path, meaning in rows.items() if not meaning]


def _leaves(spec: type, prefix: str) -> list[str]:
    leaves = []
    for field in msgspec.structs.fields(spec):
        path = f"{prefix}{field.name}"
        if isinstance(field.type, type) and issubclass(field.type, msgspec.Struct):
            leaves += _leaves(field.type, f"{path}.")
        else:
            leaves.append(path)
    return leaves
