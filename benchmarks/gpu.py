"""What only a GPU can show, in six steps: `python -m benchmarks.gpu --json [--budget S] [--quick]`.

1. `truth`: equal bits, the samplers beside the pipelines of diffusers, which attention kernels run,
   and a whole run that is killed and resumed.
2. `size`: a transformer of Qwen-Image's size: seconds per step, share of the limit of matrix
   multiplication, memory, LoRA training with and without activation checkpointing.
3. `publication`: the rate of each pass from GPU to store to GPU.
4. `nccl`: collectives, groups made and closed, a group abandoned in the middle of a collective.
5. `sick`: what is made of a device-side assert and of a full GPU.
6. `loop`: three iterations of a quarter of Qwen-Image.

Each step is a process with a time limit of its own; one that fails, or takes too long, says so as
its figure. The figures of a step are printed to standard error as it ends, as one JSON object, so
that a machine that is taken away costs only the step that runs. `--budget` limits all steps
together: one whose turn comes too late is cut short, and then says so. Needs one NVIDIA GPU.
`--quick` takes tiny sizes, and where there is no GPU the CPU.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu_steps.site import Site
from benchmarks.report import Figure, Report

LIMITS_S = {"truth": 300, "size": 420, "publication": 240, "nccl": 120, "sick": 400, "loop": 600}
"""The longest of each step, in their order."""


def run_step(step: str, limit_s: float, *, quick: bool) -> dict[str, Figure]:
    """The figures of one step, named after it."""
    command = [sys.executable, "-m", "benchmarks.gpu", "--step", step]
    with subprocess.Popen(
        command + ["--quick"] * quick,
        cwd=Path(__file__).parent.parent,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            output, errors = process.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)  # with the run that it may have started
            return {step: f"took longer than {limit_s:.3g} s"}
    if process.returncode:
        print(errors, file=sys.stderr)
        return {step: f"failed: {errors.strip().splitlines()[-1][-300:]}"}
    figures: dict[str, Figure] = json.loads(output.splitlines()[-1])
    return {f"{step}_{name}": value for name, value in figures.items()}


def run_steps(budget_s: float, *, quick: bool) -> dict[str, Figure]:
    """The figures of all steps, each of which also goes to standard error as it ends."""
    end = time.monotonic() + budget_s
    figures: dict[str, Figure] = {}
    for step, most_s in LIMITS_S.items():
        began = time.monotonic()
        limit_s = min(most_s, end - began)
        if limit_s > 0:
            found = run_step(step, limit_s, quick=quick)
        else:
            found = {step: "not run: the budget was spent"}
        seconds = round(time.monotonic() - began, 1)
        line = json.dumps({"step": step, "seconds": seconds, "figures": found})
        print(line, file=sys.stderr, flush=True)
        figures |= found
    return figures


def site_of(options: argparse.Namespace) -> Site:
    """Where the steps run; raises `SystemExit` without a GPU, unless it is to be quick."""
    if torch.cuda.is_available():
        return Site(torch.device("cuda", 0), options.quick)
    if options.quick:
        return Site(torch.device("cpu"), quick=True)
    raise SystemExit("torch sees no NVIDIA GPU here; --quick tries the steps on the CPU")


def main() -> None:
    """Run all steps, or be one of them."""
    report = Report("gpu", __doc__, minutes=25)
    accepted = report.options
    accepted.add_argument("--step", choices=LIMITS_S, help="this one alone, in this process")
    accepted.add_argument(
        "--budget",
        type=float,
        default=sum(LIMITS_S.values()),
        help="seconds that all steps may take together",
    )
    options = report.begin()
    site = site_of(options)
    if options.step:
        step: Any = importlib.import_module(f"benchmarks.gpu_steps.{options.step}")
        print(json.dumps(step.measure(site)))
        return
    report.add(
        {
            "device": torch.cuda.get_device_name(site.device) if site.is_gpu else "cpu",
            "torch": torch.__version__,
        }
    )
    report.add(run_steps(options.budget, quick=options.quick))
    report.finish()


if __name__ == "__main__":
    main()
