"""Says what torch is and which GPUs it sees, as JSON on standard output: the process that
`spotlight doctor` starts. It has torch, and the command line has not.
"""

from __future__ import annotations

import sys

import msgspec
import torch

from spotlight.preflight.machine import Gpu, TorchFacts
from spotlight.text import error_text


def facts() -> TorchFacts:
    """Of this process."""
    version = str(torch.__version__)
    built_for = torch.version.cuda or torch.version.hip or ""
    try:
        found = range(torch.cuda.device_count())
        gpus = tuple(_gpu(torch.cuda.get_device_properties(index)) for index in found)
        if built_for and not gpus:
            torch.cuda.init()
    except (RuntimeError, AssertionError) as error:
        return TorchFacts(version, built_for, problem=error_text(error))
    return TorchFacts(version, built_for, gpus)


def _gpu(properties: torch.cuda._CudaDeviceProperties) -> Gpu:
    return Gpu(properties.name, properties.total_memory)


if __name__ == "__main__":
    sys.stdout.write(msgspec.json.encode(facts()).decode())
