"""Whole runs of a tiny Wan whose previews a tiny AnyFlow makes."""

from __future__ import annotations

from pathlib import Path

import pytest

from spotlight_simulation.tiny_families import make_tiny_checkpoint
from tests.integration.conftest import Workplace, metrics

pytestmark = [pytest.mark.slow, pytest.mark.timeout(480)]

SAMPLES = 8


def _job(workplace: Workplace, finish: str) -> Path:
    for name in ("wan", "anyflow"):
        make_tiny_checkpoint(name, workplace.folder / name)
    return workplace.job(
        model={"checkpoint": "wan", "tuning": "lora", "lora": {"rank": 2}},
        sampler={"height": 32, "width": 64, "frames": 5, "guidance": 2.0, "degree": 2},
        exploration={
            "preview_checkpoint": "anyflow",
            "preview_steps": 2,
            "candidates": 2,
            "finish": finish,
        },
        validation={"every": 2},
        pools={"spot": {"workers": 2}},
    )


@pytest.mark.parametrize(("finish", "older"), [("newest", 0), ("previous", SAMPLES)])
def test_its_seeds_are_denoised_in_full_and_trained_on(
    workplace: Workplace, finish: str, older: int
) -> None:
    run = workplace.folder / "run"
    done = workplace.spotlight("run", _job(workplace, finish), "--run-folder", run)
    assert done.code == 0, done.errors
    logs = "".join(path.read_text() for path in (run / "logs").glob("*.log"))
    assert logs.count('"previewer_loaded"') == 3  # once in every worker
    last = metrics(run, "iteration")[-1]
    assert (last["previews"], last["samples"], last["samples_reused"]) == (16, SAMPLES, older)
