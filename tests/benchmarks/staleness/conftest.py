"""A small run, and small studies of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks.staleness.staleness_plan import StalenessPlan, plan_staleness
from tests.small_run import Brightness, write_run


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return write_run(tmp_path / "run")


@pytest.fixture
def brightness(monkeypatch: pytest.MonkeyPatch) -> Brightness:
    """Is what every study scores with."""
    scorer = Brightness()
    monkeypatch.setattr("spotlight_simulation.one_process.build_scorer", lambda *_: scorer)
    return scorer


@pytest.fixture
def plan(run: Path) -> Callable[..., StalenessPlan]:
    """A small study of the run; options replace its own."""

    def make(**options: Any) -> StalenessPlan:
        small: dict[str, Any] = {"seeds": 4, "prompts": 2, "lags": "1,2", "seed": 0}
        return plan_staleness(run, **{**small, **options})

    return make
