"""Makes a run folder for `tests/data/runs`, as this version leaves one behind that was killed.

    python tools/make_run_folder.py tests/data/runs/VERSION

Run it at every release, with the code of the release, and commit what it makes: later versions must
go on with it (`tests/integration/test_earlier_runs.py`). It takes half a minute and two cores.

Everything that belongs to the run is killed in the middle of training, the run is gone on with, and
killed again. So the journal has been opened before, and ends where no one closed it. Logs are left
out.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
import yaml

JOB = {
    "name": "earlier-run",
    "model": {
        "checkpoint": "builtin:ocr-tiny",
        "tuning": "lora",
        "lora": {"rank": 1, "alpha": 2, "targets": ["to_q"]},
    },
    "prompts": {
        "train": "builtin:ocr-tiny/train",
        "validation": "builtin:ocr-tiny/validation",
        "per_iteration": 2,
    },
    "sampler": {"height": 16, "width": 48, "steps": 2, "micro_batch": 4},
    "iterations": 4,
    "group_size": 2,
    "checkpoint_every": 1,
    "keep_checkpoints": 1,
    "training": {"micro_batch": 4},
    "exploration": {"budget": "fixed", "candidates": 2},
    "validation": {"seeds": 1, "every": 4},
}
LIMIT_S = 300.0


def main(target: Path) -> None:
    """Make the folder at `target`, which must not be there."""
    if target.exists():
        sys.exit(f"{target} is there already; the folder of a release is never made anew")
    with tempfile.TemporaryDirectory(prefix="spotlight-") as place:
        run = Path(place) / "run"
        job = Path(place) / "job.yaml"
        job.write_text(yaml.safe_dump(JOB))
        kill_in_training([str(job), "--run-folder", str(run)], run, iteration=1)
        kill_in_training(["--resume", str(run)], run, iteration=2)
        shutil.copytree(run, target, ignore=shutil.ignore_patterns("logs", ".lock"))


def kill_in_training(arguments: list[str], run: Path, iteration: int) -> None:
    """Start a run, and kill all its processes at once when it trains in this iteration."""
    environment = os.environ | {"SPOTLIGHT_METADATA_URL": "http://127.0.0.1:9"}
    started = subprocess.Popen(
        [sys.executable, "-m", "spotlight.cli", "run", *arguments],
        env=environment,
        stdout=subprocess.DEVNULL,
    )
    deadline = time.monotonic() + LIMIT_S
    while not trains(run, iteration):
        if started.poll() is not None or time.monotonic() > deadline:
            sys.exit(f"the run did not come to train in iteration {iteration}")
        time.sleep(0.01)
    processes = [psutil.Process(started.pid), *psutil.Process(started.pid).children(recursive=True)]
    for process in processes:  # at one moment, so that none sees another's end
        process.suspend()
    for process in processes:
        process.kill()
    started.wait()
    psutil.wait_procs(processes, timeout=10)


def trains(run: Path, iteration: int) -> bool:
    """Whether the run has begun to train in an iteration."""
    events = run / "events.jsonl"
    lines = events.read_text().splitlines(keepends=True) if events.exists() else []
    found = [json.loads(line) for line in lines if line.endswith("\n")]
    return any(
        event["event"] == "phase" and (event["phase"], event["iteration"]) == ("train", iteration)
        for event in found
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
