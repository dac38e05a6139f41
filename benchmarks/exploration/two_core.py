"""Time to target by the wall clock: the same job with exploration and without it, as real processes
on two cores, one reserved and one spot worker.

The target is what the job without exploration reaches, 95 % of its way. Runs follow each other,
since it is the clock that counts, and both of a seed count only if they are of the same machine.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from statistics import median
from typing import Any

import msgspec

from benchmarks.exploration.kept_runs import KeptRuns, Made, Run
from benchmarks.exploration.ratios import Arrival, arrival, estimate, speedup
from benchmarks.exploration.rivals import OURS, RIVALS, two_core_job
from benchmarks.report import machine
from benchmarks.time_to_target import LEVELS, SMOOTHED, milestones
from spotlight.jobs import JobSpec, job_to_yaml
from spotlight.report.run_reading import read_run

_TASK = "ocr"
_MODES = ("none", RIVALS[OURS].changes["exploration.mode"])


def two_core(folder: Path, seeds: Iterable[int], *, quick: bool) -> dict[str, Any]:
    """The figures; runs that are missing are made."""
    kept = KeptRuns(folder / "two-core")
    by_level: dict[int, list[float]] = {level: [] for level in LEVELS}
    told: list[dict[str, Any]] = []
    for seed in seeds:
        plain, ours = (
            [*map(_point, _ran(kept, mode, seed, quick)["validation"])] for mode in _MODES
        )
        levels = milestones(plain)
        times: dict[int, tuple[Arrival, Arrival]] = {
            level: (arrival(ours, score), arrival(plain, score)) for level, score in levels.items()
        }
        for level, (one, other) in times.items():
            by_level[level].append(speedup(one, other))
        told.append({"seed": seed, "scores": levels, "seconds": msgspec.to_builtins(times)})
    estimates = {level: estimate({_TASK: ratios}) for level, ratios in by_level.items()}
    target = by_level[LEVELS[-1]]
    whole = estimates[LEVELS[-1]]
    return {
        "speedup_2core": whole and whole.value,
        "speedup_2core_low": whole and whole.low,
        "speedup_2core_high": whole and whole.high,
        "speedup_2core_median": round(median(target), 3) if target else None,
        "speedup_2core_on_the_way": {
            f"{level} %": msgspec.to_builtins(one) for level, one in estimates.items()
        },
        "two_core_seeds": told,
    }


def _point(validation: tuple[float, int, float]) -> tuple[float, float]:
    return validation[0], validation[2]


def _ran(kept: KeptRuns, mode: str, seed: int, quick: bool) -> Run:
    job = two_core_job(_TASK, mode, seed)
    made = Made(_shortened(job) if quick else job, {"machine": machine()})
    run = kept.read(job.name, made)
    if run is None:
        run = _run(made.job)
        kept.keep(job.name, made, run)
    return run


def _run(job: JobSpec) -> Run:
    with tempfile.TemporaryDirectory() as temporary:
        file, folder = Path(temporary) / "job.yaml", Path(temporary) / "run"
        file.write_text(job_to_yaml(job))
        command = [sys.executable, "-m", "spotlight.cli", "run", str(file)]
        command += ["--run-folder", str(folder)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, timeout=3600)
        ran = read_run(folder)
    points = [(one.time_s, one.weights_version, one.score) for one in ran.validations]
    return {"validation": points, "iterations": len(ran.iterations)}


def _shortened(job: JobSpec) -> JobSpec:
    validation = msgspec.structs.replace(job.validation, seeds=1, every=1)
    training = msgspec.structs.replace(job.training, warmup_updates=0)
    return msgspec.structs.replace(
        job, iterations=SMOOTHED, validation=validation, training=training
    )
