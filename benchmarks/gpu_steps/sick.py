"""Step 5: what becomes of a worker whose GPU fails, or is full.

Each error is raised in a process of its own, as one that a kernel raised makes CUDA useless there.
Then a run is started on a GPU that something else has filled.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import torch

from benchmarks.families import ROOT, SPOTLIGHT, job_of, make_checkpoint
from benchmarks.gpu_steps.site import Site
from benchmarks.report import Figure

_LIMIT_S = 300.0
_CAUSES = {
    "device_assert": "torch.zeros(1, device=device)[torch.tensor([5], device=device)].item()",
    "out_of_memory": "torch.empty(2**60, dtype=torch.uint8, device=device)",
}
_RAISE = """
import sys, torch
from spotlight.actors.worker.torch_faults import fault_of
device = sys.argv[1]
try:
    {cause}
except Exception as error:
    print(type(error).__name__, fault_of(error) or "none")
"""
_BALLAST = """
import sys, torch
free, _ = torch.cuda.mem_get_info()
held = torch.empty(free - 300 * 2**20, dtype=torch.uint8, device="cuda")
print("full", flush=True)
sys.stdin.read()
"""


def measure(site: Site) -> dict[str, Figure]:
    """See the module's docstring."""
    figures: dict[str, Figure] = {}
    for name, cause in _CAUSES.items():
        done = subprocess.run(
            [sys.executable, "-c", _RAISE.format(cause=cause), str(site.device)],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=_LIMIT_S,
            check=False,
        )
        figures[f"fault[{name}]"] = done.stdout.strip() or done.stderr.strip()[-200:]
    return figures | (_run_on_a_full_gpu() if site.is_gpu else {})


def _run_on_a_full_gpu() -> dict[str, Figure]:
    """Whether a run ends, and the last that it says."""
    free, _ = torch.cuda.mem_get_info()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_checkpoint("qwen-image", folder / "checkpoint")
        job = job_of(folder / "checkpoint", "lora", folder / "job", spot_workers=1)
        with subprocess.Popen(
            [sys.executable, "-c", _BALLAST], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        ) as ballast:
            assert ballast.stdout is not None and ballast.stdin is not None
            ballast.stdout.readline()
            done = subprocess.run(
                [*SPOTLIGHT, "run", str(job), "--run-folder", str(folder / "run")],
                cwd=ROOT,
                capture_output=True,
                text=True,
                timeout=_LIMIT_S,
                check=False,
            )
            ballast.stdin.close()
    said = (done.stdout + done.stderr).strip().splitlines()
    return {
        "free_gb_before": free / 1e9,
        "full_gpu_exit_status": done.returncode,
        "full_gpu_says": said[-1][-300:] if said else "",
    }
