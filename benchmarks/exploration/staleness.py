"""Does the ranking of seeds survive updates? `benchmarks.staleness` on Spotlight's jobs of the
test-bed: the median Spearman correlation, and the kept contrast over the best, at a lag of one
iteration."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.exploration.kept_runs import KeptRuns, Made, Run
from benchmarks.exploration.rival_jobs import virtual_job
from benchmarks.staleness.staleness_record import read_record
from spotlight.jobs import job_to_yaml

_SIZE = {"prompts": 16, "seeds": 32, "lags": "1,2,4,8"}
_QUICK_SIZE = {"prompts": 2, "seeds": 8, "lags": "1,2"}
_METHOD = "regenerate"
"""The study makes every seed again, whatever the job does with its previews."""


def staleness(
    folder: Path, tasks: Sequence[str], seeds: Iterable[int], *, quick: bool
) -> dict[str, Any]:
    """The figures; studies that are missing are made, one after the other."""
    kept, size = KeptRuns(folder / "staleness"), _QUICK_SIZE if quick else _SIZE
    figures: dict[str, Any] = {}
    seeds = list(seeds)
    for task in tasks:
        runs = [_studied(kept, task, seed, size) for seed in seeds]
        for name in ("spearman_lag1", "contrast_lag1", "random_lag1", "shuffled"):
            figures[f"{name}[{task}]"] = median(run[name] for run in runs)
        figures[f"spearman_by_lag[{task}]"] = {
            lag: round(median(run["spearman_by_lag"][lag] for run in runs), 3)
            for lag in runs[0]["spearman_by_lag"]
        }
        figures[f"staleness_per_seed[{task}]"] = runs
    return figures


def _studied(kept: KeptRuns, task: str, seed: int, size: dict[str, Any]) -> Run:
    made = Made(virtual_job(task, _METHOD, seed), size)
    name = f"{task}-{seed}"
    run = kept.read(name, made)
    if run is None:
        run = {"seed": seed, **_study(made, seed)}
        kept.keep(name, made, run)
    return run


def _study(made: Made, seed: int) -> Run:
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        (folder / "config.yaml").write_text(job_to_yaml(made.job))
        command = [sys.executable, "-m", "benchmarks.staleness", str(folder)]
        command += ["--seed", str(seed)]
        for option, value in made.facts.items():
            command += [f"--{option}", str(value)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, timeout=3600)
        comparisons = read_record(folder).comparisons
    fidelity = {(one.treatment, one.lag): one.fidelity for one in comparisons}
    nearest = fidelity["rollout", 1]
    return {
        "spearman_lag1": nearest.spearman_median.value,
        "spearman_lag1_interval": nearest.spearman_median.interval,
        "contrast_lag1": nearest.realised_over_oracle.value,
        "contrast_lag1_interval": nearest.realised_over_oracle.interval,
        "random_lag1": nearest.random_over_oracle,
        "shuffled": fidelity["shuffled", 1].spearman_median.value,
        "spearman_by_lag": {
            str(lag): one.spearman_median.value
            for (treatment, lag), one in fidelity.items()
            if treatment == "rollout" and lag
        },
    }
