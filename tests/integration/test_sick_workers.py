"""A spot worker whose accelerator fails on every batch, in a job of real processes."""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.integration.conftest import Workplace, events, metrics, wait_until
from tests.worker_templates import apart

pytestmark = [pytest.mark.slow]

SCORER = '''
"""Where a file is named, the accelerator of this process fails whatever it is to do."""
import os
from pathlib import Path
from typing import Any

import torch

from spotlight.diffusion.samplers import Denoising

FAILED = os.environ.get("FAILED_BATCHES", "")


def fail(*_):
    with Path(FAILED).open("a") as file:
        file.write(f"{os.getpid()}\\n")
    raise torch.AcceleratorError("CUDA error: device-side assert triggered")


class Ink:
    def __init__(self):
        if FAILED:
            Denoising.step = fail

    def score(self, images, prompts):
        if FAILED:
            fail()
        return [float((image > 127).mean()) for image in images]
'''


def _daemon(workplace: Workplace, name: str, *arguments: str | Path, **environment: str) -> None:
    script = Path(__file__).parents[2] / "bin" / f"spotlight-{name}"
    path = os.pathsep.join(filter(None, [str(workplace.folder), os.environ.get("PYTHONPATH")]))
    env = {**apart(), "PYTHONPATH": path, **environment}
    workplace.start(sys.executable, script, *arguments, env=env)


def test_a_worker_whose_accelerator_fails_is_gone_and_costs_no_prompt_group(
    workplace: Workplace, monkeypatch: pytest.MonkeyPatch
) -> None:
    (workplace.folder / "ink.py").write_text(SCORER)
    monkeypatch.syspath_prepend(str(workplace.folder))
    failed = workplace.folder / "failed"
    address_file = workplace.folder / "address"
    _daemon(
        workplace, "coordinator", "--listen", "127.0.0.1:0", "--address-file", address_file,
        "--runs", workplace.folder / "runs", "--allow-code", "ink",
    )  # fmt: skip
    wait_until(address_file.exists, "the coordinator")
    for name, pool, environment in (
        ("well", "reserved", {}),
        ("sick", "spot", {"FAILED_BATCHES": str(failed)}),
    ):
        _daemon(
            workplace, "node", "--name", name, "--pool", pool,
            "--logs", workplace.folder / "logs", "--allow-code", "ink", **environment,
        )  # fmt: skip
    job = workplace.job(
        iterations=4,
        group_size=8,
        rewards=[{"kind": "python", "name": "ink", "python": "ink:Ink"}],
    )
    path = os.pathsep.join(filter(None, [str(workplace.folder), os.environ.get("PYTHONPATH")]))
    monkeypatch.setenv("PYTHONPATH", path)

    def status() -> dict[str, Any]:
        answer = workplace.spotlight("status", "--json")
        found: dict[str, Any] = json.loads(answer.output)
        return found

    # Else the other one may have done the whole job before the sick one is there.
    wait_until(lambda: len(status()["workers"]) == 2, "both nodes")
    submitted = workplace.spotlight("submit", job)
    assert submitted.code == 0, submitted.errors + submitted.output
    wait_until(lambda: bool(status()["troubles"]), "the status to name the worker")
    run = Path(str(status()["run_folder"]))
    wait_until(lambda: bool(events(run, "run_finished")), "the end of the job")

    (finished,) = events(run, "run_finished")
    assert finished["outcome"] == "finished", finished
    assert events(run, "group_dropped") == []
    assert [line["samples"] for line in metrics(run, "iteration")] == [16] * 4
    told = events(run, "worker_failed")
    assert {event["worker"] for event in told} == {"sick/0"}
    assert "the accelerator is lost: " in told[0]["reason"]
    assert "CUDA error: device-side assert" in told[0]["reason"]
    batches = Counter(failed.read_text().split())
    assert max(batches.values()) <= 2, "each process is gone within two batches"
    blamed = [*events(run, "denoise_failed"), *events(run, "scorer_failed")]
    assert [event for event in blamed if event["worker"] == "sick/0"] == []
