"""Make reward tables for `python -m benchmarks.exploration_planner`: a row per prompt, a column per
seed, every reward that of a full-step preview.

A job is trained without exploration, in one process, and the same seeds of the same prompts are
scored at the start and after the iterations asked for; a file is written for each. Two minutes to
ten on one CPU core.

    python tools/make_reward_tables.py examples/ocr-tiny.yaml --name ocr --folder /tmp/tables \\
        --job-seed 1 --first-prompt 40 --prompts 32 --first-seed 2000 --iterations 20,40
"""

from __future__ import annotations

import argparse
from pathlib import Path

import msgspec

from benchmarks.staleness.staleness_plan import StalenessPlan
from benchmarks.staleness.study import StalenessStudy
from spotlight.assets import read_prompts
from spotlight.jobs import load_job

SEEDS = 64


def main() -> None:
    """Train, score, write."""
    options = _arguments()
    job = load_job(options.job)
    job = msgspec.structs.replace(
        job,
        seed=options.job_seed,
        exploration=msgspec.structs.replace(job.exploration, mode="none"),
    )
    prompts = read_prompts(job.prompts.train)[options.first_prompt :: options.every]
    prompts = prompts[: options.prompts]
    iterations = sorted({0, *map(int, options.iterations.split(","))})
    seeds = tuple(range(options.first_seed, options.first_seed + SEEDS))
    plan = StalenessPlan(
        run="",
        job=job,
        checkpoint="",
        prompts=tuple(prompts),
        seeds=(seeds,) * len(prompts),
        lags=tuple(iterations[-1] - iteration for iteration in reversed(iterations[:-1])),
        seed=0,
    )
    options.folder.mkdir(parents=True, exist_ok=True)
    for scoring in StalenessStudy(plan, print).carry_out().scorings:
        if scoring.treatment == "rollout":
            stage = f"iteration-{iterations[-1] - scoring.lag}".replace("iteration-0", "start")
            rows = ",\n".join(msgspec.json.encode(row).decode() for row in scoring.rewards)
            (options.folder / f"{options.name}-{stage}.json").write_text(f"[\n{rows}\n]\n")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("job", type=Path, help="a job file")
    parser.add_argument("--name", required=True, help="what the files' names begin with")
    parser.add_argument("--folder", required=True, type=Path, help="where they are written")
    parser.add_argument("--job-seed", type=int, default=0, help="of the training")
    parser.add_argument("--first-prompt", type=int, default=0, help="in the job's training prompts")
    parser.add_argument("--every", type=int, default=1, help="take one prompt in so many")
    parser.add_argument("--prompts", type=int, default=32, help="rows")
    parser.add_argument("--first-seed", type=int, default=1000, help=f"of {SEEDS}")
    parser.add_argument("--iterations", required=True, help="as `20,40`; the start always counts")
    return parser.parse_args()


if __name__ == "__main__":
    main()
