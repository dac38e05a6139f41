"""The main job, as a newcomer runs it: `python -m benchmarks.main_job --json`.

Runs `spotlight run examples/ocr-tiny.yaml` as a command, for several job seeds, and reads the
figures from its run folder. Run time counts from the start of the job to its end, validation and
everything else included; starting the processes is reported beside it.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import yaml

from benchmarks.report import arguments, finish
from spotlight.jobs import job_to_yaml, load_job
from spotlight.report.metrics import read_run, summarise

EXAMPLE = Path(__file__).parent.parent / "examples" / "ocr-tiny.yaml"


def run_seed(seed: int, folder: Path, *, iterations: int | None = None) -> dict[str, Any]:
    """Run the example with another seed; returns the run's figures."""
    job = yaml.safe_load(job_to_yaml(load_job(EXAMPLE)))
    job["seed"] = seed
    if iterations is not None:
        job["iterations"] = iterations
    job_file = folder / f"seed-{seed}.yaml"
    job_file.write_text(yaml.safe_dump(job))
    run = folder / f"seed-{seed}"
    started = time.monotonic()
    command = [sys.executable, "-m", "spotlight.cli", "run", str(job_file)]
    subprocess.run(
        [*command, "--run-folder", str(run)], check=True, stdout=subprocess.DEVNULL, timeout=900
    )
    figures = summarise(read_run(run))
    figures["command_seconds"] = time.monotonic() - started
    return figures


def main() -> None:
    """Print medians over the seeds, and every seed's own figures."""
    options = arguments(__doc__)
    seeds = [0] if options.quick else [0, 1, 2]
    with tempfile.TemporaryDirectory() as folder:
        runs = [
            run_seed(seed, Path(folder), iterations=6 if options.quick else None) for seed in seeds
        ]
    names = ("validation_start", "validation_end", "run_seconds", "command_seconds")
    figures: dict[str, Any] = {name: statistics.median(run[name] for run in runs) for name in names}
    figures["per_seed"] = [
        {name: run[name] for name in (*names, "images_per_s", "samples", "previews")}
        for run in runs
    ]
    finish("main_job", figures, options.json)


if __name__ == "__main__":
    main()
