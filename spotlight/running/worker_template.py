"""The template that workers of this machine are forked from (`runtime.fork_owner`)."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from spotlight.actors.runtime.fork_owner import TemplateOwner

LOG = "template.log"
VARIABLE = "SPOTLIGHT_TEMPLATE"
"""The environment variable with the address of a template that stays: what begins and ends often,
as tests do, then imports torch once."""


@asynccontextmanager
async def worker_template(logs: Path, shared: str = "") -> AsyncIterator[str]:
    """The address of one that another process owns, if it is `shared` or in the environment; else
    of one of this process, which ends at the end, and logs into this folder."""
    if shared := shared or os.environ.get(VARIABLE, ""):
        yield shared
        return
    owner = TemplateOwner("spotlight.actors.worker.preload", os.environ, logs / LOG)
    owner.start()
    try:
        yield owner.address
    finally:
        await owner.aclose()
