"""The main job, as a newcomer runs it: `python -m benchmarks.main_job --json [--against FOLDER]`.

Runs `spotlight run examples/ocr-tiny.yaml` as a command, for several job seeds, and reads the
figures from its run folder. Run time counts from the start of the job to its end, validation and
everything else included; starting the processes is reported beside it. Processor time is that of
all processes, from the command to the last worker, user and system time together.

With `--against FOLDER`, each run is followed by one of the same job with the code in that folder,
which is a checkout of another commit. `demo_cpu_ratio` is the processor time here over that there.
Exploration fills idle time, so the previews that each had time for are named beside it.
"""

from __future__ import annotations

import ctypes
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import yaml

from benchmarks.report import Report
from spotlight.jobs import job_to_yaml, load_job
from spotlight.report.metrics import read_run, summarise

ROOT = Path(__file__).parent.parent
EXAMPLE = ROOT / "examples" / "ocr-tiny.yaml"
FIGURES = (
    "validation_start",
    "validation_end",
    "run_seconds",
    "command_seconds",
    "processor_seconds",
)
_COUNTS = ("images_per_s", "samples", "previews")
_PR_SET_CHILD_SUBREAPER = 36


def run_seed(
    seed: int, folder: Path, *, iterations: int | None = None, code: Path = ROOT
) -> dict[str, Any]:
    """Run the example with another seed, by the code in a folder; returns the run's figures."""
    job = yaml.safe_load(job_to_yaml(load_job(EXAMPLE)))
    job["seed"] = seed
    if iterations is not None:
        job["iterations"] = iterations
    folder.mkdir()
    job_file, run = folder / "job.yaml", folder / "run"
    job_file.write_text(yaml.safe_dump(job))
    started, used = time.monotonic(), _processor_seconds()
    command = [sys.executable, "-m", "spotlight.cli", "run", str(job_file)]
    subprocess.run(
        [*command, "--run-folder", str(run)],
        check=True,
        stdout=subprocess.DEVNULL,
        timeout=900,
        cwd=code,
        env={**os.environ, "PYTHONPATH": str(code)},
    )
    figures = summarise(read_run(run))
    figures["command_seconds"] = time.monotonic() - started
    figures["processor_seconds"] = _processor_seconds() - used
    return figures


def adopt_orphans() -> None:
    """From now on, descendants whose parent has ended are children of this process, so that none
    is missed."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _processor_seconds() -> float:
    """Of all descendants so far; waits for those that have yet to end."""
    try:
        while True:
            os.waitpid(-1, 0)
    except ChildProcessError:
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        return used.ru_utime + used.ru_stime


def main() -> None:
    """Print medians over the seeds, and every seed's own figures."""
    report = Report("main_job", __doc__, minutes=6)
    report.options.add_argument("--against", type=Path, help="a checkout of another commit")
    options = report.begin()
    adopt_orphans()
    seeds = range(report.times(3, quick=1))
    iterations = 3 if options.quick else None
    runs, others = list[dict[str, Any]](), list[dict[str, Any]]()
    with tempfile.TemporaryDirectory() as name:
        for seed in seeds:
            place = Path(name) / f"seed-{seed}"
            runs.append(run_seed(seed, place, iterations=iterations))
            if options.against is not None:
                code = options.against.resolve()
                other = place.with_name(f"{place.name}-other")
                others.append(run_seed(seed, other, iterations=iterations, code=code))
    figures: dict[str, Any] = {name: _median(runs, name) for name in FIGURES}
    figures["per_seed"] = _of_each(runs)
    if others:
        before = _median(others, "processor_seconds")
        figures["demo_cpu_ratio"] = figures["processor_seconds"] / before
        figures["per_seed_before"] = _of_each(others)
    report.add(figures)
    report.finish()


def _median(runs: list[dict[str, Any]], name: str) -> float:
    return float(statistics.median(run[name] for run in runs))


def _of_each(runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: run[name] for name in (*FIGURES, *_COUNTS)} for run in runs]


if __name__ == "__main__":
    main()
