"""A job with real processes whose spot worker computes gradients and is killed: `gradients` runs
it, and holds what comes of it against a run in which the reserved worker computes everything."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import msgspec
import yaml

from benchmarks.live.run_comparison import differences
from benchmarks.live.tiny_jobs import job_data
from benchmarks.trainer_loss import LIMIT_S, Run

SLICES = 4
UPDATES = 2
SPOT = "spot-0"
DAEMONS = 3
"""How often the node's own process is killed at most: `spotlight run` starts it again so often."""


def real_processes(iterations: int, kills: int) -> dict[str, Any]:
    """Run the job alone and with a spot node of one worker. That, or its node with it, is killed so
    often at random moments of training, and comes back by itself. Raises `RuntimeError` if a run
    does not finish."""
    rng = random.Random(0)
    with tempfile.TemporaryDirectory() as base:
        folder = Path(base)
        alone, helped = folder / "alone", folder / "helped"
        _finish(Run(_job(folder, iterations, spot=0), alone))
        run = Run(_job(folder, iterations, spot=1), helped)
        try:
            killed = _disturb(run, kills, rng)
        finally:
            _finish(run)
        found = differences(alone, helped, iterations)
        counted, by_others = _slices(helped)
        joined = sum(event["event"] == "node_joined" for event in run.events())
    return {
        "real_processes_equal": int(not found),
        "real_processes_differ_in": found,
        "slices_elsewhere_fraction": by_others / counted,
        "real_processes_slices": counted,
        "real_processes_kills": killed,
        "real_processes_joined": joined - 1,  # the reserved node has joined, too
    }


def _job(folder: Path, iterations: int, *, spot: int) -> Path:
    """Updates of some seconds, so that there is time to help."""
    data = job_data(
        folder,
        "gradients",
        iterations=iterations,
        group_size=16,
        checkpoint_every=iterations,
        sampler={"height": 32, "width": 64, "steps": 4, "micro_batch": 8},
        training={
            "slices": SLICES,
            "updates_per_iteration": UPDATES,
            "micro_batch": 4,
            "kl": 0.01,
            "options": {"times": 4},
        },
        exploration={"mode": "none"},
        pools={"spot": {"nodes": spot}},
    )
    path = folder / f"spot-{spot}.yaml"
    path.write_text(yaml.safe_dump(data))
    return path


def _disturb(run: Run, kills: int, rng: random.Random) -> int:
    """Kill while it trains; returns how often it came to that."""
    done, daemons = 0, 0
    run.until("training", lambda events: any(map(_trains, events)))
    while done < kills and run.process.poll() is None:
        time.sleep(rng.uniform(0.5, 4.0))
        takes_node = daemons < DAEMONS and rng.random() < 0.3
        found = run.named(SPOT) if takes_node else run.named(f"{SPOT}/0")
        if found and run.process.poll() is None:
            daemons, done = daemons + takes_node, done + 1
            for process in found:
                _kill(process.pid)
    return done


def _trains(event: dict[str, Any]) -> bool:
    return (event["event"], event.get("phase")) == ("phase", "train")


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def _finish(run: Run) -> None:
    try:
        code = run.process.wait(LIMIT_S)
    except subprocess.TimeoutExpired:
        run.process.terminate()
        run.process.wait(LIMIT_S)
        raise RuntimeError(f"{run.folder.name}: it did not finish in {LIMIT_S:g} s") from None
    if code:
        log = (run.folder.parent / f"{run.folder.name}.log").read_text()
        raise RuntimeError(f"{run.folder.name} ended with {code}: {log[-2000:]}")


def _slices(folder: Path) -> tuple[int, int]:
    """How many were added, and how many of them others have computed."""
    lines = (folder / "metrics.jsonl").read_bytes().splitlines()
    found = [each for each in map(msgspec.json.decode, lines) if each.get("kind") == "iteration"]
    return sum(it["slices"] for it in found), sum(it["slices_by_others"] for it in found)
