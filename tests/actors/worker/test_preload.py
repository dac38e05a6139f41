"""What workers are forked from."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest

from spotlight.actors.runtime.fork_launcher import ForkedProcess, ForkLauncher
from spotlight.actors.runtime.fork_owner import TemplateOwner

WORKER = """
import os, sys
before = set(sys.modules)
import torch
import spotlight.actors.worker.process
import spotlight.actors.worker.group_leader, spotlight.actors.worker.member
import spotlight.actors.worker.trainer_rank, spotlight.actors.worker.torch_engine
import spotlight.transport.control
from spotlight.diffusion.checkpoints import load_model
from spotlight.diffusion.samplers import sample
from spotlight.types import SamplingSettings
from spotlight.jobs import ModelSpec

model = load_model(ModelSpec(checkpoint="builtin:ocr-tiny"))
settings = SamplingSettings(kind="ode", steps=2, height=16, width=48, micro_batch=1)
model.decode(sample(model, ['the number "12"'], [1], settings).latents, 16, 48)
new = {name for name in set(sys.modules) - before if not name.startswith("spotlight.")}
print("new", sorted(new))
print("cuda", torch.cuda.is_initialized(), torch.cuda._is_in_bad_fork())
one = torch.ones(256, 256) @ torch.ones(256, 256)
print("threads", torch.get_num_threads(), len(os.listdir("/proc/self/task")))
torch.set_num_threads(2)
two = torch.ones(256, 256) @ torch.ones(256, 256)
print("threads", torch.get_num_threads(), torch.equal(one, two))
"""


@pytest.mark.timeout(120)
async def test_a_forked_worker_has_its_imports_and_torch_as_it_was_never_used(
    tmp_path: Path,
) -> None:
    (tmp_path / "forked_worker.py").write_text(WORKER)
    path = os.pathsep.join([str(tmp_path), *filter(None, sys.path)])
    env = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    owner = TemplateOwner("spotlight.actors.worker.preload", env, tmp_path / "template.log")
    owner.start()
    launcher = ForkLauncher(owner.address)
    try:
        argv = [sys.executable, "-m", "forked_worker"]
        process = await launcher.start(argv, env, "worker", tmp_path / "log")
        assert await process.wait() == 0
        assert isinstance(process, ForkedProcess)
    finally:
        await launcher.aclose()
        await owner.aclose()
    assert (tmp_path / "log").read_text().splitlines() == [
        "new []",
        "cuda False False",
        "threads 1 1",
        "threads 2 True",
    ]


WITH_A_GPU = """
import torch
from spotlight.actors.worker.preload import prepare_to_fork

asked = []
torch.cuda._is_compiled = lambda: True
torch.cuda._device_count_nvml = lambda: 1
torch.accelerator.current_accelerator = lambda *_: torch.device("cuda")
torch._C._cuda_getCurrentRawStream = lambda device: 0
torch._C._cuda_getDeviceCount = lambda: asked.append("by CUDA") or 1
torch.cuda._lazy_init = lambda: asked.append("more")
is_available = torch.cuda.is_available
torch.cuda.is_available = lambda: asked.append("whether") or is_available()
prepare_to_fork()
print(sorted(set(asked)))
"""


@pytest.mark.slow
@pytest.mark.timeout(120)
async def test_what_is_imported_asks_for_a_gpu_without_initialising_cuda() -> None:
    """CUDA's own way of counting GPUs initialises it."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", WITH_A_GPU), stdout=subprocess.PIPE
    )
    output, _ = await process.communicate()
    assert process.returncode == 0
    assert output.decode().splitlines() == ["['whether']"]
