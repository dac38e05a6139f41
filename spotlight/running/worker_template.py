"""The template that workers of this machine are forked from (`runtime.fork_owner`)."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from spotlight.actors.runtime.fork_owner import TemplateOwner

LOG = "template.log"


@asynccontextmanager
async def worker_template(logs: Path, shared: str = "") -> AsyncIterator[str]:
    """The address of one that another process owns, if it is `shared`; else of one of this process,
    which ends at the end, and logs into this folder."""
    if shared:
        yield shared
        return
    owner = TemplateOwner("spotlight.actors.worker.preload", os.environ, logs / LOG)
    owner.start()
    try:
        yield owner.address
    finally:
        await owner.aclose()
