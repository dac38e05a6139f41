"""Time to target by the wall clock: the same job with exploration and without it, as real processes
on two cores, one reserved and one spot worker: the example that is shipped.

The target is 95 % of the way of the job without exploration. Runs follow each other, since it is
the clock that counts, and those of a seed count only if they are of the same machine.
Their checkpoints are scored when they are over: validation is the experimenter's measurement, and
would take a quarter of the time of two cores.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import yaml

from benchmarks.exploration.kept_runs import KeptRuns, Made, Run
from benchmarks.exploration.ratios import arrival, estimate, speedup
from benchmarks.exploration.rival_jobs import with_changes
from benchmarks.exploration.rivals import OURS
from benchmarks.report import machine
from benchmarks.time_to_target import LEVELS, SMOOTHED, Curve, milestones
from benchmarks.validation_sampler import held_out_score
from spotlight.jobs import JobSpec, ValidationSpec, job_from_data, job_to_yaml
from spotlight.record.run_events import WeightsPublished
from spotlight.report.run_reading import read_run

_TASK = "ocr"
_EXAMPLE = Path(__file__).parents[2] / "examples" / "ocr-tiny-reuse.yaml"
_MEASURED = ValidationSpec(seeds=4)
_QUICKLY_MEASURED = ValidationSpec(prompts=4, seeds=1)
_KEPT: dict[str, Any] = {
    # Checkpoints are scored afterwards, and by more images than there would be time for.
    "validation.prompts": 1,
    "validation.seeds": 1,
    "validation.every": 60,
    "checkpoint_every": 5,
    "keep_checkpoints": 60,
}
_ALONE = "none"
_JOBS: dict[str, dict[str, Any]] = {
    OURS: {},
    _ALONE: {"exploration.mode": "none", "exploration.reuse": False},
}
"""What changes of the example's exploration."""


def two_core(folder: Path, seeds: Iterable[int], *, quick: bool) -> dict[str, Any]:
    """The figures; runs that are missing are made."""
    kept, seeds = KeptRuns(folder / "two-core"), list(seeds)
    curves = {
        (rival, seed): [*map(_point, _ran(kept, rival, seed, quick)["validation"])]
        for seed in seeds
        for rival in _JOBS
    }
    pairs = [(curves[OURS, seed], curves[_ALONE, seed]) for seed in seeds]
    return compared("speedup_2core", [pair for pair in pairs if milestones(pair[1])])


def two_core_job(rival: str, seed: int) -> JobSpec:
    """One of `_JOBS`."""
    data = yaml.safe_load(_EXAMPLE.read_text())
    named = {"name": f"{_TASK}-two-core-{rival}-{seed}", "seed": seed}
    return job_from_data(with_changes(data | named, _KEPT | _JOBS[rival]))


def compared(name: str, pairs: Sequence[tuple[Curve, Curve]]) -> dict[str, Any]:
    """Of Spotlight's curves with those of another job, one pair for each seed."""
    ratios: dict[int, list[float]] = {level: [] for level in LEVELS}
    seconds = []
    for ours, other in pairs:
        levels = milestones(other)
        times = {level: (arrival(ours, at), arrival(other, at)) for level, at in levels.items()}
        for level, (one, two) in times.items():
            ratios[level].append(speedup(one, two))
        seconds.append([round(each.seconds, 1) for each in times[LEVELS[-1]]])
    estimates = {level: estimate({_TASK: each}) for level, each in ratios.items()}
    whole = estimates[LEVELS[-1]]
    return {
        name: whole and whole.value,
        f"{name}_low": whole and whole.low,
        f"{name}_high": whole and whole.high,
        f"{name}_on_the_way": {
            f"{level} %": msgspec.to_builtins(one) for level, one in estimates.items()
        },
        f"{name}_seconds": seconds,
    }


def _point(validation: tuple[float, int, float]) -> tuple[float, float]:
    return validation[0], validation[2]


def _ran(kept: KeptRuns, rival: str, seed: int, quick: bool) -> Run:
    job = two_core_job(rival, seed)
    made = Made(_shortened(job) if quick else job, {"machine": machine()})
    run = kept.read(job.name, made)
    if run is None:
        run = _run(made.job, _QUICKLY_MEASURED if quick else _MEASURED)
        kept.keep(job.name, made, run)
    return run


def _run(job: JobSpec, measured: ValidationSpec) -> Run:
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
            for version, score in _scores(job, measured, folder)
        ]
    return {"validation": points, "iterations": len(ran.iterations)}


def _scores(job: JobSpec, measured: ValidationSpec, folder: Path) -> Iterator[tuple[int, float]]:
    """Of the initial weights, and of those of every checkpoint."""
    from spotlight.training.checkpoints import load_checkpoint
    from spotlight_simulation.one_process import OneProcess  # torch: not for --help

    whole = msgspec.structs.replace(job, validation=measured)
    engine = OneProcess(whole)
    yield 0, held_out_score(engine, whole, engine.trainer.evaluation_state())
    for path in sorted((folder / "checkpoints").glob("iteration-*.safetensors")):
        state, metadata = load_checkpoint(path)
        engine.trainer.load_state_dict(state)
        score = held_out_score(engine, whole, engine.trainer.evaluation_state())
        yield int(metadata["completed"]), score


def _shortened(job: JobSpec) -> JobSpec:
    training = msgspec.structs.replace(job.training, warmup_updates=0)
    prompts = msgspec.structs.replace(job.prompts, per_iteration=2)
    return msgspec.structs.replace(
        job, iterations=SMOOTHED, checkpoint_every=1, training=training, prompts=prompts
    )
