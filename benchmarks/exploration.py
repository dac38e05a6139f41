"""What exploration is worth: `python -m benchmarks.exploration --json`.

Three seeds each (not 0, on which the jobs were tuned), two tasks, in four parts (`--part`):

- `staleness`: does the ranking of seeds survive updates? `spotlight study staleness` on the jobs
  below: median Spearman and kept contrast over the best contrast at a lag of one iteration.
- `testbed`: time to target on four reserved and eight spot GPUs, in virtual time with real numerics
  (`benchmarks.virtual_testbed`).
- `two-core`: time to target by the wall clock, one reserved and one spot worker as real processes.
- `planner`: `benchmarks.exploration_planner`.

The target is what the run without exploration reaches at its end; on the test-bed a run with
exploration ends when it is there. Methods and jobs are in `exploration_jobs`; how a score counts as
reached is in `time_to_target`. A speed-up is the median over seeds of the ratio of times with the
same seed: 0 where Spotlight never reaches the target, `null` where the other one never does.

The whole takes more than an hour on two cores. Every run is kept in `--results`, with its job and
target, and is not made again if it is there with the same.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from itertools import product
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import msgspec

from benchmarks import time_to_target
from benchmarks.exploration_chart import draw_curves
from benchmarks.exploration_jobs import METHODS, PLAIN, TASKS, two_core_job, virtual_job
from benchmarks.report import finish, parser
from benchmarks.speedups import Key, Run, best_plain, compare, curve_of
from benchmarks.virtual_testbed import PUBLISHED, run_on_testbed
from spotlight.jobs import JobSpec, job_to_yaml
from spotlight.report.run_reading import read_run
from spotlight.studies.staleness_record import read_record
from spotlight.testing.profile import load_profile

if TYPE_CHECKING:
    from spotlight.testing.real_numerics import RealNumerics

PARTS = ("staleness", "testbed", "two-core", "planner")
_TWO_CORE = (*PLAIN, "spotlight")
_PROMPTS, _SEEDS = 16, 32
"""Of a staleness study."""


def main() -> None:
    """Measure, draw and print."""
    made = parser(__doc__)
    made.add_argument("--part", choices=PARTS, action="append", help="default: all")
    made.add_argument("--task", choices=TASKS, action="append", help="default: both; quick: ocr")
    made.add_argument("--seeds", type=int, default=3)
    made.add_argument("--results", type=Path, help="where runs are kept; default: nowhere")
    made.add_argument("--plots", type=Path, help="where curves are drawn and written to")
    options = made.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        if options.results is None:
            options.results = Path(temporary)
        if options.quick:
            options.results /= "quick"
        options.results.mkdir(parents=True, exist_ok=True)
        finish("exploration", _measure(options), options.json)


def _measure(options: argparse.Namespace) -> dict[str, Any]:
    tasks = options.task or TASKS[: 1 if options.quick else None]
    seeds = range(1, 2 if options.quick else options.seeds + 1)
    figures: dict[str, Any] = {"quick": options.quick}
    parts: dict[str, Callable[[], dict[str, Any]]] = {
        "staleness": lambda: _staleness(options, tasks, seeds),
        "testbed": lambda: _testbed(options, tasks, seeds),
        "two-core": lambda: _two_core(options, tasks, seeds),
        "planner": lambda: _planner(options.quick),
    }
    for part in options.part or PARTS:
        figures |= parts[part]()
    return figures


# --- staleness ---


def _staleness(
    options: argparse.Namespace, tasks: Iterable[str], seeds: Iterable[int]
) -> dict[str, Any]:
    studied = _each("staleness", _study, options, product(tasks, ["spotlight"], seeds))
    figures: dict[str, Any] = {}
    for task in tasks:
        runs = [run for (at, _, _), run in studied.items() if at == task]
        for name in ("spearman_lag1", "contrast_lag1", "random_lag1", "shuffled"):
            figures[f"{name}[{task}]"] = median(run[name] for run in runs)
        figures[f"spearman_by_lag[{task}]"] = {
            lag: round(median(run["spearman_by_lag"][lag] for run in runs), 3)
            for lag in runs[0]["spearman_by_lag"]
        }
        figures[f"staleness_per_seed[{task}]"] = runs
    return figures


def _study(key: Key, results: Path, quick: bool) -> None:
    task, method, seed = key
    folder = results / f"study-{task}-{seed}"
    folder.mkdir(exist_ok=True)
    (folder / "config.yaml").write_text(job_to_yaml(virtual_job(task, method, seed)))
    command = [*_spotlight("study", "staleness", str(folder)), "--seed", str(seed)]
    prompts, seeds, lags = (4, 8, "1,2") if quick else (_PROMPTS, _SEEDS, "1,2,4,8")
    subprocess.run(
        [*command, "--prompts", str(prompts), "--seeds", str(seeds), "--lags", lags],
        check=True,
        stdout=subprocess.DEVNULL,
        timeout=3600,
    )
    fidelity = {(one.treatment, one.lag): one.fidelity for one in read_record(folder).comparisons}
    nearest = fidelity["rollout", 1]
    _keep(
        results,
        "staleness",
        key,
        {
            "seed": seed,
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
        },
    )


# --- time to target ---


def _testbed(
    options: argparse.Namespace, tasks: Iterable[str], seeds: Iterable[int]
) -> dict[str, Any]:
    # The plain runs train alike, so the second of them computes nothing: one process makes both.
    _each("testbed", _plain, options, product(tasks, ["rollouts"], seeds))
    explored = [method for method in METHODS if method not in PLAIN]
    _each("testbed", _explored, options, product(tasks, explored, seeds))
    runs = _kept(options.results, "testbed", product(tasks, METHODS, seeds))
    figures = compare(
        "testbed",
        runs,
        tasks,
        seeds,
        {
            "speedup_vs_best_plain": PLAIN,
            "speedup_vs_inline": ("inline",),
            "speedup_vs_uniform": ("uniform",),
        },
    )
    _draw(options, "testbed", runs, "hours of virtual time", 3600.0)
    figures["profile"] = msgspec.to_builtins(load_profile(PUBLISHED))
    for task in tasks:
        totals = [runs[task, "spotlight", seed]["totals"] for seed in seeds]
        figures[f"spot_idle_share[{task}]"] = median(one["spot_idle_share"] for one in totals)
        figures[f"spot_idle_share_of_all_time[{task}]"] = median(map(_idle_of_all_time, totals))
        figures[f"delayed_iterations[{task}]"] = max(one["delayed"] for one in totals)
        figures[f"publication_delay_share[{task}]"] = median(
            round(one["delay_s"] / one["virtual_s"], 5) for one in totals
        )
        plain = [runs[task, "rollouts", seed]["totals"]["spot_idle_share"] for seed in seeds]
        figures[f"spot_idle_share_unexplored[{task}]"] = median(plain)
    return figures


def _idle_of_all_time(totals: Run) -> float:
    """Of the spot workers, rollouts and publications included."""
    states = totals["pools"]["spot"]
    return float(round(states.get("idle", 0.0) / sum(states.values()), 4))


def _plain(key: Key, results: Path, quick: bool) -> None:
    task, _, seed = key
    numerics = None
    for method in PLAIN[::-1]:
        numerics = _virtual((task, method, seed), results, quick, numerics)


def _explored(key: Key, results: Path, quick: bool) -> None:
    """Its numerics stay in their process."""
    _virtual(key, results, quick)


def _virtual(
    key: Key, results: Path, quick: bool, numerics: RealNumerics | None = None
) -> RealNumerics:
    from spotlight.testing.chaos import scratch_folder
    from spotlight.testing.real_numerics import RealNumerics  # torch: not for --help

    job = virtual_job(*key)
    if quick:
        job = _shortened(job)
    numerics = numerics or RealNumerics(job)
    with scratch_folder() as folder:
        run = run_on_testbed(
            job,
            profile=load_profile(PUBLISHED),
            numerics=numerics,
            folder=folder,
            target=_target(key, results),
        )
    _keep(results, "testbed", key, msgspec.to_builtins(run))
    return numerics


def _shortened(job: JobSpec) -> JobSpec:
    """To see that everything works: as few validations as a curve can have. Such a run says nothing
    about speed.
    """
    validation = msgspec.structs.replace(job.validation, seeds=1, every=1)
    iterations = time_to_target.SMOOTHED - 1
    return msgspec.structs.replace(job, iterations=iterations, validation=validation)


def _target(key: Key, results: Path) -> float | None:
    """What the runs without exploration reached; they have none themselves."""
    task, method, seed = key
    if method in PLAIN:
        return None
    plain = _kept(results, "testbed", [(task, each, seed) for each in PLAIN])
    return time_to_target.final_score(
        best_plain({each: curve_of(run) for (_, each, _), run in plain.items()})
    )


def _two_core(
    options: argparse.Namespace, tasks: Iterable[str], seeds: Iterable[int]
) -> dict[str, Any]:
    keys = [(task, method, seed) for seed, task, method in product(seeds, tasks, _TWO_CORE)]
    for key in _missing(options.results, "two-core", keys):
        _wall_clock(key, options.results, options.quick)  # alone: it is the clock that counts
    runs = _kept(options.results, "two-core", keys)
    _draw(options, "two-core", runs, "minutes", 60.0)
    return compare("two-core", runs, tasks, seeds, {"speedup_2core": PLAIN})


def _wall_clock(key: Key, results: Path, quick: bool) -> None:
    job = two_core_job(*key)
    if quick:
        job = _shortened(job)
    with tempfile.TemporaryDirectory() as temporary:
        file, run = Path(temporary) / "job.yaml", Path(temporary) / "run"
        file.write_text(job_to_yaml(job))
        command = [*_spotlight("run", str(file)), "--run-folder", str(run)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, timeout=3600)
        ran = read_run(run)
    validation = [
        {"time_s": one.time_s, "version": one.weights_version, "score": one.score}
        for one in ran.validations
    ]
    iterations = msgspec.to_builtins(ran.iterations)
    _keep(results, "two-core", key, {"validation": validation, "iterations": iterations})


def _draw(
    options: argparse.Namespace, part: str, runs: dict[Key, Run], unit: str, seconds: float
) -> None:
    if options.plots is None:
        return
    options.plots.mkdir(parents=True, exist_ok=True)
    curves = {
        key: [(time_s / seconds, score) for time_s, score in curve_of(run)]
        for key, run in runs.items()
    }
    for task in {key[0] for key in curves}:
        own = {key[1:]: curve for key, curve in curves.items() if key[0] == task}
        drawn = draw_curves(own, unit)
        (options.plots / f"time-to-target-{part}-{task}.svg").write_text(drawn)
    told = {"/".join(map(str, key)): run["validation"] for key, run in runs.items()}
    (options.plots / f"time-to-target-{part}.json").write_text(json.dumps(told, indent=1) + "\n")


# --- the planner ---


def _planner(quick: bool) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.exploration_planner", "--json"]
    command += ["--quick"] * quick
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=1800)
    figures: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])["figures"]
    return figures


# --- runs that are made once ---


def _each(
    part: str,
    work: Callable[[Key, Path, bool], None],
    options: argparse.Namespace,
    keys: Iterable[Key],
) -> dict[Key, Run]:
    """Make the runs of a part that are missing, one per core at a time; returns all of them."""
    keys = sorted(keys, key=lambda key: key[2])  # whole sets, should it be ended early
    os.environ["OMP_NUM_THREADS"] = "1"
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(max_workers=2, mp_context=spawn, max_tasks_per_child=1) as pool:
        making = [
            pool.submit(work, key, options.results, options.quick)
            for key in _missing(options.results, part, keys)
        ]
        for one in making:
            one.result()
    return _kept(options.results, part, keys)


def _missing(results: Path, part: str, keys: Iterable[Key]) -> list[Key]:
    return [key for key in keys if _read(results, part, key) is None]


def _kept(results: Path, part: str, keys: Iterable[Key]) -> dict[Key, Run]:
    runs = {key: _read(results, part, key) for key in keys}
    lost = [key for key, run in runs.items() if run is None]
    if lost:
        raise SystemExit(f"{part}: {lost} are not in {results}; remove it and begin again")
    return {key: run for key, run in runs.items() if run is not None}


def _read(results: Path, part: str, key: Key) -> Run | None:
    """None if it was not made yet, or of another job."""
    try:
        kept = json.loads(_file(results, part, key).read_text())
    except FileNotFoundError:
        return None
    run: Run | None = kept["run"] if kept["made"] == _what_makes(results, part, key) else None
    return run


def _keep(results: Path, part: str, key: Key, run: Run) -> None:
    kept = {"made": _what_makes(results, part, key), "run": run}
    _file(results, part, key).write_text(json.dumps(kept))


def _what_makes(results: Path, part: str, key: Key) -> Run:
    if part == "two-core":
        return {"job": job_to_yaml(two_core_job(*key))}
    target = _target(key, results) if part == "testbed" else None
    return {"job": job_to_yaml(virtual_job(*key)), "target": target}


def _file(results: Path, part: str, key: Key) -> Path:
    task, method, seed = key
    return results / f"{part}-{task}-{method}-{seed}.json"


def _spotlight(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "spotlight.cli", *arguments]


if __name__ == "__main__":
    main()
