"""What embedding costs: `python -m benchmarks.embedding --json`.

The same rollouts are made twice, with as many workers of this machine: by `spotlight run`, and by a
plain loop in this process through `Rollouts.local()`, which publishes weights and takes every
group with its tensors. Both begin to count when the iteration's weights can be pulled, and end
with the last sample; figures are medians over iterations, the first left out, of several turns
each.
"""

from __future__ import annotations

import asyncio
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import yaml

from benchmarks.report import Report
from spotlight.assets import read_prompts
from spotlight.diffusion.checkpoints import load_model
from spotlight.jobs import JobSpec, job_from_data, job_to_yaml, load_job
from spotlight.report.run_reading import read_run
from spotlight.rollouts.groups import RolloutRequest
from spotlight.rollouts.rollouts import Rollouts

ROOT = Path(__file__).parent.parent
EXAMPLE = ROOT / "examples" / "ocr-tiny.yaml"
OWN_LOOP = ROOT / "examples" / "own_loop.py"
WORKERS = 2


def embedding_job(*, iterations: int, prompts: int) -> JobSpec:
    """The example without exploration, in iterations of so many prompts."""
    data = yaml.safe_load(job_to_yaml(load_job(EXAMPLE)))
    data |= {"iterations": iterations, "exploration": {"mode": "none", "probes": 0}}
    data["prompts"]["per_iteration"] = prompts
    data["sampler"]["degree"] = 1
    data["validation"] = {"seeds": 1, "every": iterations}
    return job_from_data(data)


def run_job(job: JobSpec, folder: Path) -> list[float]:
    """Images per second of every iteration but the first, as `spotlight run` makes them."""
    file, run = folder / "job.yaml", folder / "run"
    folder.mkdir()
    file.write_text(job_to_yaml(job))
    command = [sys.executable, "-m", "spotlight.cli", "run", str(file), "--run-folder", str(run)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, timeout=900)
    return [each.images_per_s or 0.0 for each in read_run(run).iterations[1:]]


async def run_loop(job: JobSpec) -> dict[str, list[float]]:
    """The same, and seconds of every publication, by a plain loop."""
    model = load_model(job.model)
    prompts = read_prompts(job.prompts.train)
    found: dict[str, list[float]] = {"images_per_s": [], "publish_s": []}
    async with Rollouts.local(
        workers=WORKERS, model=job.model, sampler=job.sampler, rewards=job.rewards
    ) as rollouts:
        for iteration in range(job.iterations):
            began = time.monotonic()
            await rollouts.publish(model.transformer.state_dict(), iteration)
            published = time.monotonic()
            first = iteration * job.prompts.per_iteration % len(prompts)
            batch = prompts[first : first + job.prompts.per_iteration]
            seeds = range(iteration * job.group_size, (iteration + 1) * job.group_size)
            stream = rollouts.rollout([RolloutRequest(prompt, seeds) for prompt in batch])
            images = sum([len(group.samples) async for group in stream])
            seconds = time.monotonic() - published
            if iteration > 0:
                found["images_per_s"].append(images / seconds)
                found["publish_s"].append(published - began)
    return found


def main() -> None:
    """Print both paces, and the one over the other."""
    report = Report("embedding", __doc__, minutes=5)
    quick = report.begin().quick
    job = embedding_job(iterations=2 if quick else 8, prompts=4 if quick else 16)
    by_job: list[float] = []
    by_loop: dict[str, list[float]] = {"images_per_s": [], "publish_s": []}
    with tempfile.TemporaryDirectory() as folder:
        for turn in range(report.times(3, quick=1)):
            by_job += run_job(job, Path(folder) / f"turn-{turn}")
            for name, values in asyncio.run(run_loop(job)).items():
                by_loop[name] += values
    loop, run = statistics.median(by_loop["images_per_s"]), statistics.median(by_job)
    figures: dict[str, Any] = {
        "ratio": loop / run,
        "loop_images_per_s": loop,
        "run_images_per_s": run,
        "publish_s": statistics.median(by_loop["publish_s"]),
        "example_lines": len(OWN_LOOP.read_text(encoding="utf-8").splitlines()),
    }
    report.add(figures)
    report.finish()


if __name__ == "__main__":
    main()
