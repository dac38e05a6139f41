"""Processes that begin with torch and diffusers imported, which takes several seconds of a core.

They are forked from a server that has imported both once, and has done nothing else with them.
"""

from __future__ import annotations

import multiprocessing
from multiprocessing.context import ForkServerContext

IMPORTED = ["torch", "spotlight.training.trainer", "spotlight.diffusion.sequence_parallel"]
FAMILIES = [
    "diffusers.models.transformers.transformer_flux",
    "diffusers.models.transformers.transformer_qwenimage",
    "diffusers.models.transformers.transformer_sd3",
    "diffusers.models.transformers.transformer_wan",
]


def warm_processes() -> ForkServerContext:
    """Where such processes, queues and pipes come from."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(IMPORTED + FAMILIES)
    return context
