"""From the `trackers` of a job to callbacks. What is wrong with one is said before the job starts.

Imports a tracker's package only when it is made, in the thread of the callbacks.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from spotlight.errors import JobError, MissingDependency, how_to_install
from spotlight.jobs import TrackerSpec
from spotlight.own_classes import require_class
from spotlight.text import error_text
from spotlight.trackers.callback import Callback
from spotlight.trackers.callback_thread import NamedCallback
from spotlight.trackers.tracked_run import TrackedRun
from spotlight.trackers.wandb_login import may_log_in

_OWN = "spotlight.trackers."
_KNOWN = {
    "tensorboard": ("tensorboardX", f"{_OWN}tensorboard_tracker:TensorBoardTracker"),
    "wandb": ("wandb", f"{_OWN}wandb_tracker:WandbTracker"),
    "trackio": ("trackio", f"{_OWN}trackio_tracker:TrackioTracker"),
}
"""Package and class of each kind that Spotlight knows."""
_METHODS = {"on_iteration": 2, "on_validation": 1, "on_event": 1}
"""What a callback must have, and of how many arguments."""


def check_trackers(trackers: Sequence[TrackerSpec]) -> None:
    """Raise `MissingDependency` for a package that is not installed here, and `JobError` for a
    class of your own that is not there or is no callback, as far as can be told without running any
    of its code, and for Weights & Biases without a key.
    """
    for index, tracker in enumerate(trackers):
        if tracker.kind not in _KNOWN:
            require_class(f"trackers[{index}].kind", tracker.kind, _METHODS)
            continue
        package, _ = _KNOWN[tracker.kind]
        if find_spec(package) is None:
            raise MissingDependency(
                f"`trackers[{index}].kind: {tracker.kind}` needs {package}, which is not installed"
                f" where the coordinator runs: {how_to_install('trackers')}"
            )
        if tracker.kind == "wandb" and not may_log_in():
            raise JobError(
                f"trackers[{index}].kind",
                "`wandb` has no key where the coordinator runs: set WANDB_API_KEY or run"
                " `wandb login` there, or set WANDB_MODE=offline to upload the run later with"
                " `wandb sync`",
            )


def named_trackers(runs: Sequence[TrackedRun]) -> list[NamedCallback]:
    """The trackers of a job, one for each of these, to be made by the thread that calls them."""
    return [NamedCallback(run.tracker.kind, partial(_make, run)) for run in runs]


def _make(run: TrackedRun) -> Callback:
    kind = run.tracker.kind
    if kind not in _KNOWN:
        return _own_class("trackers", kind)(run)
    module, _, name = _KNOWN[kind][1].partition(":")
    made: Callback = getattr(import_module(module), name)(run)
    return made


def _own_class(field: str, target: str) -> Callable[[TrackedRun], Callback]:
    """A class that somebody else wrote; only one with the three methods is ever called."""
    module, _, name = target.partition(":")
    try:
        with _working_folder_importable():
            found: Any = getattr(import_module(module), name)
    except Exception as error:  # a module may raise anything while it is imported
        raise JobError(
            field,
            f"`{target}` cannot be imported ({error_text(error)}); install its package"
            " where the coordinator runs, or start that in the folder that holds it",
        ) from error
    missing = [method for method in _METHODS if not callable(getattr(found, method, None))]
    if missing or not isinstance(found, type):
        raise JobError(
            field,
            f"`{target}` is not a class with the methods {', '.join(_METHODS)}; see"
            " `spotlight.trackers.Callback`",
        )
    make: Any = found
    return make  # type: ignore[no-any-return]


@contextmanager
def _working_folder_importable() -> Iterator[None]:
    """A coordinator finds modules of the folder that it was started in, as workers do."""
    here = str(Path.cwd())
    sys.path.append(here)
    try:
        yield
    finally:
        sys.path.remove(here)
