"""The imports that all workers of a node share before they are started.

A template process of the node does these once, and forks the workers (`ForkLauncher`).
"""

from __future__ import annotations

import os


def prepare_to_fork() -> None:
    """Import what every worker needs. Raises `RuntimeError` if that has touched CUDA: a forked
    process could not use it any more."""
    import torch

    import spotlight.actors.runtime
    import spotlight.actors.worker.torch_engine
    import spotlight.actors.worker.worker_actors
    import spotlight.transport.listening  # noqa: F401

    pid = os.fork()
    if pid == 0:
        os._exit(int(torch.cuda._is_in_bad_fork()))
    _, status = os.waitpid(pid, 0)
    if status:
        raise RuntimeError("an import has touched CUDA, so no worker can be forked from here")
