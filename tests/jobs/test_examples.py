"""The example jobs are jobs."""

from __future__ import annotations

from pathlib import Path

import pytest

from spotlight.jobs import load_job

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


@pytest.mark.parametrize("path", sorted(EXAMPLES.rglob("*.yaml")), ids=lambda path: path.stem)
def test_an_example_can_be_loaded(path: Path) -> None:
    load_job(path)
