"""Time to target by the wall clock: the same job with exploration and without it, as real processes
on two cores, one reserved and one spot worker.

The target is what the job without exploration reaches, 95 % of its way. Runs follow each other,
since it is the clock that counts, and both of a seed count only if they are of the same machine.
Their checkpoints are scored when they are over: validation is the experimenter's measurement, and
would take a quarter of the time of two cores.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

import msgspec

from benchmarks.exploration.kept_runs import KeptRuns, Made, Run
from benchmarks.exploration.ratios import Arrival, arrival, estimate, speedup
from benchmarks.exploration.rivals import OURS, RIVALS, two_core_job
from benchmarks.report import machine
from benchmarks.time_to_target import LEVELS, SMOOTHED, milestones
from benchmarks.validation_sampler import held_out_score
from spotlight.jobs import JobSpec, ValidationSpec, job_to_yaml
from spotlight.report.run_reading import read_run
from spotlight.run_events import WeightsPublished

_TASK = "ocr"
_MEASURED = ValidationSpec(seeds=4)
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
        published = {one.version: one.time_s for one in ran.events_of(WeightsPublished)}
        points = [
            (published[version], version, round(score, 6))
            for version, score in _scores(job, folder)
        ]
    return {"validation": points, "iterations": len(ran.iterations)}


def _scores(job: JobSpec, folder: Path) -> Iterator[tuple[int, float]]:
    """Of the initial weights, and of those of every checkpoint."""
    from spotlight.studies.one_process import OneProcess  # torch: not for --help
    from spotlight.training.checkpoints import load_checkpoint

    whole = msgspec.structs.replace(job, validation=_MEASURED)
    engine = OneProcess(whole)
    yield 0, held_out_score(engine, whole, engine.trainer.evaluation_state())
    for path in sorted((folder / "checkpoints").glob("iteration-*.safetensors")):
        state, metadata = load_checkpoint(path)
        engine.trainer.load_state_dict(state)
        score = held_out_score(engine, whole, engine.trainer.evaluation_state())
        yield int(metadata["completed"]), score


def _shortened(job: JobSpec) -> JobSpec:
    training = msgspec.structs.replace(job.training, warmup_updates=0)
    return msgspec.structs.replace(job, iterations=SMOOTHED, checkpoint_every=1, training=training)
