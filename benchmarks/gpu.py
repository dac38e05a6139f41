"""What only a GPU can show, in six steps: `python -m benchmarks.gpu --json [--quick]`.

1. `truth`: equal bits, the samplers beside the pipelines of diffusers, which attention kernels run,
   and a whole run that is killed and resumed.
2. `size`: a transformer of Qwen-Image's size: seconds per step, share of the limit of matrix
   multiplication, memory, LoRA training with and without activation checkpointing.
3. `publication`: the rate of each pass from GPU to store to GPU.
4. `nccl`: collectives, groups made and closed, a group abandoned in the middle of a collective.
5. `sick`: what is made of a device-side assert and of a full GPU.
6. `loop`: three iterations of a quarter of Qwen-Image.

Each step is a process with a time limit of its own; one that fails, or takes too long, says so as
its figure. Needs one NVIDIA GPU. `--quick` takes tiny sizes, and where there is no GPU the CPU.
"""

from __future__ import annotations

import argparse
import importlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu_steps.site import Site
from benchmarks.report import Figure, finish, parser

LIMITS_S = {"truth": 300, "size": 420, "publication": 240, "nccl": 120, "sick": 400, "loop": 600}
"""By step, in their order."""


def run_step(step: str, *, quick: bool) -> dict[str, Figure]:
    """The figures of one step, named after it."""
    command = [sys.executable, "-m", "benchmarks.gpu", "--step", step]
    try:
        done = subprocess.run(
            command + ["--quick"] * quick,
            cwd=Path(__file__).parent.parent,
            capture_output=True,
            text=True,
            timeout=LIMITS_S[step],
            check=False,
        )
    except subprocess.TimeoutExpired:
        return {step: f"took longer than {LIMITS_S[step]} s"}
    if done.returncode:
        print(done.stderr, file=sys.stderr)
        return {step: f"failed: {done.stderr.strip().splitlines()[-1][-300:]}"}
    figures: dict[str, Figure] = json.loads(done.stdout.splitlines()[-1])
    return {f"{step}_{name}": value for name, value in figures.items()}


def site_of(options: argparse.Namespace) -> Site:
    """Where the steps run; raises `SystemExit` without a GPU, unless it is to be quick."""
    if torch.cuda.is_available():
        return Site(torch.device("cuda", 0), options.quick)
    if options.quick:
        return Site(torch.device("cpu"), quick=True)
    raise SystemExit("torch sees no NVIDIA GPU here; --quick tries the steps on the CPU")


def main() -> None:
    """Run all steps, or be one of them."""
    accepted = parser(__doc__)
    accepted.add_argument("--step", choices=LIMITS_S, help="this one alone, in this process")
    options = accepted.parse_args()
    site = site_of(options)
    if options.step:
        step: Any = importlib.import_module(f"benchmarks.gpu_steps.{options.step}")
        print(json.dumps(step.measure(site)))
        return
    figures: dict[str, Figure] = {
        "device": torch.cuda.get_device_name(site.device) if site.is_gpu else "cpu",
        "torch": torch.__version__,
    }
    for step in LIMITS_S:
        figures |= run_step(step, quick=options.quick)
    finish("gpu", figures, options.json)


if __name__ == "__main__":
    main()
