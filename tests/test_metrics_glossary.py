"""The glossary of metrics follows the records, and explains each of their fields."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import msgspec

from spotlight.record.run_events import EVENTS
from spotlight.record.run_metrics import IterationMetrics, ValidationMetrics

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "metrics.md"


def test_the_page_is_up_to_date() -> None:
    tool = ROOT / "tools" / "make_metrics_glossary.py"
    done = subprocess.run([sys.executable, str(tool), "--check"], timeout=30, check=False)
    assert done.returncode == 0, "run: python tools/make_metrics_glossary.py"


def test_every_field_of_every_record_is_explained() -> None:
    rows = [
        [cell.strip() for cell in line.replace("\\|", "/").split("|")[1:-1]]
        for line in PAGE.read_text(encoding="utf-8").splitlines()
        if line.startswith("| `")
    ]
    records = [IterationMetrics, ValidationMetrics, *EVENTS.values()]
    fields = [
        f"`{field.name}`"
        for record in records
        for field in msgspec.structs.fields(record)
        if field.name not in ("time_s", "at")
    ]
    assert [name for name, _ in rows] == fields
    assert all(len(meaning.split()) >= 2 for _, meaning in rows)
