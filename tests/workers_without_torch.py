"""What the workers of daemons are forked from where no test has them do anything: they come up, and
cannot denoise. To import torch takes several seconds of a core.
"""

from __future__ import annotations

import sys
from typing import Any


class TorchEngine:
    """In place of the real one, while a worker waits for work."""

    device = "none"

    def __init__(self, *arguments: Any, **options: Any) -> None:
        """It is called as the real one is."""

    def limit_threads(self, threads: int) -> None:
        """There are none."""

    def fault_of(self, error: BaseException) -> None:
        """Nothing fails."""


def prepare_to_fork() -> None:
    """Called by the template, before any worker is forked."""
    import spotlight.actors.worker.process
    import spotlight.actors.worker.worker_actors
    import spotlight.transport.listening  # noqa: F401

    sys.modules["spotlight.actors.worker.torch_engine"] = sys.modules[__name__]
