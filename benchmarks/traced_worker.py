"""A worker process that writes down every denoising step it takes, for `benchmarks.preemption`."""

from __future__ import annotations

import json
import os

from spotlight.actors import worker
from spotlight.diffusion.samplers import Denoising

TRACE_VARIABLE = "SPOTLIGHT_STEP_TRACE"


def main() -> None:
    """Entry point of the process."""
    trace = os.open(os.environ[TRACE_VARIABLE], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    plain_step = Denoising.step

    def traced_step(denoising: Denoising) -> None:
        plain_step(denoising)
        seeds = denoising._seeds[: denoising._count]
        line = json.dumps({"seeds": seeds, "step": denoising.steps_taken}) + "\n"
        os.write(trace, line.encode())

    Denoising.step = traced_step  # type: ignore[method-assign]
    worker.main()


if __name__ == "__main__":
    main()
