"""One template that the workers of many nodes are forked from, in place of one for each node: to
import torch and diffusers takes several seconds of a core.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from spotlight.actors.runtime.fork_owner import TemplateOwner
from spotlight.running.loop_thread import LoopThread
from spotlight.running.worker_template import VARIABLE


def apart() -> dict[str, str]:
    """The environment of a command that has a template of its own: its workers are processes below
    it, and find the modules that it finds."""
    return {name: value for name, value in os.environ.items() if name != VARIABLE}


@contextmanager
def shared_template(
    folder: Path, preload: str = "spotlight.actors.worker.preload"
) -> Iterator[str]:
    """Its address, for `--template` of nodes; it logs into the folder."""

    async def begin() -> TemplateOwner:
        owner = TemplateOwner(preload, os.environ, folder / "template.log")
        owner.start()
        return owner

    with LoopThread() as loop:
        owner = loop.call(begin())
        yield owner.address
        loop.call(owner.aclose())
