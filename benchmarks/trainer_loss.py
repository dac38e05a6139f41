"""What the loss of trainers costs a run: `python -m benchmarks.trainer_loss --json`.

A small job runs with real processes (`spotlight run`): two reserved nodes of one worker each, of
which one or both train, and a spot node. A worker that trains, its node, or all reserved nodes and
the coordinator at once are killed (SIGKILL) at random moments of rollout, training, publication and
saving. Every killed process is started again by whoever keeps it, so all runs finish by themselves;
their last checkpoints are held against that of an undisturbed run, bit by bit.
"""

from __future__ import annotations

import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import torch
import yaml
from safetensors.torch import load_file

from benchmarks.report import Report
from spotlight.store.record_files import whole_event_lines

VICTIMS = ("rank", "node", "all")
"""A worker that trains (the rank's own process), its node with all that it started, and all
reserved nodes with the coordinator."""
MOMENTS = {"rollout": 0.4, "train": 0.4, "publish": 0.05, "save": 0.15}
"""When to kill: up to so many seconds, at random, after the phase has begun; saving begins when the
weights are published."""
KILLS = 7
"""Kills of each kind of victim and number of ranks: with 3 kinds, 21 per number of ranks."""
KILLS_PER_RUN = 4
"""A daemon that is killed more often is given up by `spotlight run`."""
FIRST = 2
"""Iteration in which trainers are lost first: before it there is only the job's model."""
ITERATIONS_PER_KILL = 2
LIMIT_S = 240.0


@dataclass
class Kill:
    """One, and what followed."""

    victim: str
    moment: str
    recovery_s: float = 0.0
    """Seconds until trainers stood where those that were lost stood last."""
    source: str = ""
    """What they began from."""


@dataclass
class Trial:
    """A run with its kills."""

    ranks: int
    kills: list[Kill]
    equal: bool = False
    lost: list[str] = field(default_factory=list)


class Run:
    """A `spotlight run` that goes on, and what it has written so far."""

    def __init__(self, job: Path, folder: Path) -> None:
        self.folder = folder
        command = [sys.executable, "-m", "spotlight.cli", "run", str(job), "--run-folder"]
        with (folder.parent / f"{folder.name}.log").open("wb") as log:
            self.process = subprocess.Popen(
                [*command, str(folder)], stdout=log, stderr=subprocess.STDOUT, cwd=folder.parent
            )

    def events(self) -> list[dict[str, Any]]:
        """Those of the run so far."""
        return [json.loads(line) for line in whole_event_lines(self.folder)]

    def until(self, what: str, there: Callable[[list[dict[str, Any]]], bool]) -> None:
        """Poll the events; raises `RuntimeError` after a limit that only a hang exceeds."""
        end = time.monotonic() + LIMIT_S
        while not there(self.events()):
            if time.monotonic() > end or self.process.poll() is not None:
                raise RuntimeError(f"{self.folder}: waited for {what}")
            time.sleep(0.01)

    def processes(self) -> list[psutil.Process]:
        """All below it."""
        return psutil.Process(self.process.pid).children(recursive=True)

    def named(self, word: str) -> list[psutil.Process]:
        """Those with a word like this in their commands."""
        return [p for p in self.processes() if any(word in part for part in _command(p))]

    def kill(self, victim: str, trains: str) -> None:
        """SIGKILL; `trains` is the name of a worker that does."""
        node = trains.partition("/")[0]
        roots = {
            "rank": lambda: [p for p in self.processes() if trains in _command(p)],
            "node": lambda: self._node(node),
            "all": lambda: [
                *self._node("reserved-0"),
                *self._node("reserved-1"),
                *self.named("import coordinator"),
            ],
        }[victim]()
        for process in roots:
            try:
                os.kill(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                continue

    def _node(self, name: str) -> list[psutil.Process]:
        """Its daemon and its workers."""
        return [p for p in self.processes() if any(_is_of(name, it) for it in _command(p))]


def _is_of(node: str, word: str) -> bool:
    return word == node or word.startswith(f"{node}/")


def _command(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def make_job(folder: Path, ranks: int, iterations: int) -> Path:
    """Seconds long; its result does not depend on time."""
    for name, numbers in (("train", range(16)), ("validation", range(100, 102))):
        text = "".join(f'the number "{n * 617 % 10000:04d}"\n' for n in numbers)
        (folder / f"{name}.txt").write_text(text)
    job = {
        "name": "trainer-loss",
        "model": {"checkpoint": "builtin:ocr-tiny"},
        "prompts": {"train": "train.txt", "validation": "validation.txt", "per_iteration": 2},
        "sampler": {"height": 16, "width": 48, "steps": 4, "micro_batch": 4},
        "iterations": iterations,
        "group_size": 4,
        "checkpoint_every": 3,
        "training": {"micro_batch": 4, "options": {"times": 2}, "ranks": ranks},
        "exploration": {"budget": "fixed", "candidates": 2},
        "validation": {"seeds": 1, "every": iterations},
        "pools": {"reserved": {"nodes": 2, "workers": 1}, "spot": {"nodes": 1, "workers": 1}},
    }
    path = folder / f"ranks-{ranks}-{iterations}.yaml"
    path.write_text(yaml.safe_dump(job))
    return path


def _is(event: dict[str, Any], moment: str, iteration: int) -> bool:
    if moment == "save":
        return event["event"] == "weights_published" and int(event["version"]) > iteration
    after = iteration + (moment == "publish")
    is_phase = event["event"] == "phase" and event["phase"] == moment
    return is_phase and int(event["iteration"]) >= after


def strike(run: Run, kill: Kill, iteration: int, rng: random.Random) -> None:
    """Kill at a moment of that iteration, and wait until it is trained by others."""
    run.until(
        f"{kill.moment} of iteration {iteration}",
        lambda events: any(_is(event, kill.moment, iteration) for event in events),
    )
    time.sleep(rng.uniform(0.0, MOMENTS[kill.moment]))
    before = run.events()
    run.kill(kill.victim, trainer_of(before, rng))
    began = time.monotonic()
    count = len(before)
    run.until("new trainers", lambda es: any(e["event"] == "trainers_built" for e in es[count:]))
    kill.recovery_s = time.monotonic() - began
    built = next(e for e in run.events()[count:] if e["event"] == "trainers_built")
    kill.source = built["source"]


def trainer_of(events: Sequence[dict[str, Any]], rng: random.Random) -> str:
    """A worker that trains."""
    built = [event for event in events if event["event"] == "trainers_built"]
    return str(rng.choice(built[-1]["workers"]))


def run_trial(trial: Trial, folder: Path, reference: dict[str, torch.Tensor], job: Path) -> None:
    """One run with its kills, a few iterations apart."""
    rng = random.Random(f"{trial.ranks} {[(k.victim, k.moment) for k in trial.kills]}")
    run = Run(job, folder)
    try:
        for number, kill in enumerate(trial.kills):
            strike(run, kill, FIRST + ITERATIONS_PER_KILL * number, rng)
        run.process.wait(LIMIT_S)
    finally:
        if run.process.poll() is None:
            run.process.terminate()
            run.process.wait(60.0)
    trial.lost = [e["reason"] for e in run.events() if e["event"] == "trainers_lost"]
    trial.equal = run.process.returncode == 0 and same(final_state(folder), reference)


def final_state(run: Path) -> dict[str, torch.Tensor]:
    """The last checkpoint."""
    return load_file(max((run / "checkpoints").glob("iteration-*.safetensors")))


def same(found: dict[str, torch.Tensor], wanted: dict[str, torch.Tensor]) -> bool:
    """To the bit."""
    return found.keys() == wanted.keys() and all(
        torch.equal(found[name], tensor) for name, tensor in wanted.items()
    )


def measure(report: Report, per_victim: int, ranks: Sequence[int], folder: Path) -> dict[str, Any]:
    """All kills, as many in one run as may be."""
    trials: list[Trial] = []
    count = per_victim * len(VICTIMS)
    iterations = FIRST + ITERATIONS_PER_KILL * min(count, KILLS_PER_RUN) + 1
    for world in ranks:
        job = make_job(folder, world, iterations)
        calm = Run(job, folder / f"calm-{world}")
        if calm.process.wait(LIMIT_S) != 0:
            raise RuntimeError(f"the undisturbed run failed; see {calm.folder}.log")
        reference = final_state(calm.folder)
        moments = [list(MOMENTS)[n % len(MOMENTS)] for n in range(per_victim)]
        kills = [Kill(victim, moment) for moment in moments for victim in VICTIMS]
        for first in range(0, len(kills), KILLS_PER_RUN):
            trial = Trial(world, kills[first : first + KILLS_PER_RUN])
            trials.append(trial)
            run_trial(trial, folder / f"run-{len(trials)}", reference, job)
            said = ", ".join(f"{kill.victim} in {kill.moment}" for kill in trial.kills)
            report.note(f"killed in a run of {world} ranks: {said}; runs: {len(trials)}")
    kills = [kill for trial in trials for kill in trial.kills]
    single = [kill for kill in kills if kill.victim != "all"]
    return {
        "kills": len(kills),
        "bit_equal_fraction": statistics.fmean(trial.equal for trial in trials),
        "recovery_s_median": statistics.median(kill.recovery_s for kill in single),
        "recovery_s_max": max(kill.recovery_s for kill in single),
        "recovery_all_s_median": statistics.median(
            [kill.recovery_s for kill in kills if kill.victim == "all"]
        ),
        "recovered_from_memory": statistics.fmean(kill.source == "state" for kill in single),
        "sources": dict(Counter(f"{kill.victim} {kill.source}" for kill in kills)),
    }


def main() -> None:
    """Kill, and print what it cost."""
    report = Report("trainer_loss", __doc__, minutes=20)
    ranks = [1] if report.begin().quick else [1, 2]
    with tempfile.TemporaryDirectory() as folder:
        report.add(measure(report, report.times(KILLS, quick=1), ranks, Path(folder)))
    report.finish()


if __name__ == "__main__":
    main()
