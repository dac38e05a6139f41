"""The imports that all workers of a machine share before they are started.

A template process does these once, and forks the workers (`ForkLauncher`). The libraries of models
load a class, and all that it needs, only when it is first named; so every class that a checkpoint
may name is named here. onnxruntime is left to the workers: importing it starts a thread.
"""

from __future__ import annotations

import importlib.util
import os

_ENVIRONMENT = {
    # Until a job says otherwise; torch reads it as it is loaded.
    "OMP_NUM_THREADS": "1",
    # Whether there is a GPU is asked of the driver's own library: diffusers asks as it is loaded,
    # and the usual way of asking initialises CUDA, which no forked process could then use.
    "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
}


def prepare_to_fork() -> None:
    """Import what every worker needs. Raises `RuntimeError` if that has touched CUDA: a forked
    process could not use it any more."""
    os.environ.update(_ENVIRONMENT)
    import torch

    import spotlight.actors.runtime
    import spotlight.actors.worker.torch_engine
    import spotlight.actors.worker.worker_actors
    import spotlight.transport.listening  # noqa: F401
    from spotlight.diffusion.checkpoints import import_model_classes

    import_model_classes()
    if importlib.util.find_spec("cv2") is not None:  # for those rewards that read pictures
        importlib.import_module("cv2")
    pid = os.fork()
    if pid == 0:
        os._exit(int(torch.cuda._is_in_bad_fork()))
    _, status = os.waitpid(pid, 0)
    if status:
        raise RuntimeError("an import has touched CUDA, so no worker can be forked from here")
