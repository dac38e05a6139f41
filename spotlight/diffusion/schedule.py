"""Which sigmas a denoising visits: exactly those of the checkpoint's scheduler in diffusers.

The sigmas 1, ..., 1/n, spaced evenly or by the scheduler itself, are shifted as its configuration
says. With dynamic shifting the family says the shift, which depends on the number of image
tokens. Of a scheduler for a solver of its own (UniPC, for Wan) the sigmas alone are used.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from spotlight.errors import JobError

Scheduler = Any
"""One of diffusers, which declares no types for what it adds at run time."""


def shifts_dynamically(scheduler: Scheduler) -> bool:
    """Whether its shift depends on the number of image tokens; not every class can."""
    return bool(scheduler.config.get("use_dynamic_shifting", False))


def flow_sigmas(
    scheduler: Scheduler,
    steps: int,
    mu: float | None,
    shift: float | None = None,
    *,
    own_spacing: bool = False,
) -> Tensor:
    """Sigmas [steps + 1], float32 on the CPU, from the highest down to 0.

    `mu` is the shift of a scheduler that shifts dynamically, and no other looks at it. `shift`
    replaces the checkpoint's shift, dynamic or not, by s -> shift * s / (1 + (shift - 1) * s).
    With `own_spacing` the scheduler spaces the sigmas that are shifted; else they are spaced
    evenly. Raises `JobError` naming `sampler.shift` when float32 cannot tell the sigmas apart.
    """
    config, changes = scheduler.config, dict[str, Any]()
    if shift is not None:
        name = "flow_shift" if "flow_shift" in config else "shift"
        changes = {"use_dynamic_shifting": False, name: shift}
    if steps == 1:
        # The only sigma is the first one. To stretch it to a terminal one, too, divides 0 by 0.
        changes["shift_terminal"] = None
    # One of its own for every call: a scheduler keeps what it was asked last.
    known = {name: value for name, value in changes.items() if name in config}
    scheduler = type(scheduler).from_config(config, **known)
    dynamic = {"mu": mu} if shifts_dynamically(scheduler) else {}
    if own_spacing:
        scheduler.set_timesteps(steps, device="cpu", **dynamic)
    else:
        scheduler.set_timesteps(sigmas=np.linspace(1.0, 1 / steps, steps), device="cpu", **dynamic)
    sigmas: Tensor = scheduler.sigmas
    if not torch.all(sigmas.diff() < 0):
        raise JobError(
            "sampler.shift",
            f"{shift if shift is not None else 'the one of the checkpoint'} makes some of"
            f" {steps} steps so short that they lead nowhere; use one nearer to 1, or fewer steps",
        )
    return sigmas.to(torch.float32, copy=True)
