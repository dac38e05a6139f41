"""A worker process that writes down, with the time on CLOCK_MONOTONIC, what a benchmark wants to
see of it: one JSON object a line.

Every line has `pid` and `t` in seconds. Kinds of lines, by the key that only they have:
- `step`: the leading rank completed this step of the batch with `seeds`, in the group of `epoch`
  with so many `members`.
- `commit`: the progress of the batch with `seeds` after this step was copied, to be delivered.
- `formed`: the group of that epoch can denoise; it took `seconds` from the order.
- `met`: this rank connected to the others of that epoch, in `seconds`.
- `loaded_s`: weights were copied into the model, in that time.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import structlog
from torch import Tensor

from spotlight.actors.worker import process, torch_collective
from spotlight.actors.worker.engine import Origin
from spotlight.actors.worker.step_group import GroupSteps, SoloSteps
from spotlight.actors.worker.torch_engine import TorchEngine
from spotlight.diffusion.flow_model import FlowModel
from spotlight.diffusion.progress import Progress
from spotlight.diffusion.samplers import Denoising
from spotlight.transport.collectives import Group
from spotlight.types import Request

TRACE_VARIABLE = "SPOTLIGHT_STEP_TRACE"

_Note = Callable[..., None]


def main() -> None:
    """Entry point of the process."""
    trace = os.open(os.environ[TRACE_VARIABLE], os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def note(**fields: Any) -> None:
        line = json.dumps({"pid": os.getpid(), "t": time.monotonic(), **fields}) + "\n"
        os.write(trace, line.encode())

    epochs = _trace_groups(note)
    _trace_steps(note, epochs)
    _trace_commits(note)
    _trace_weights(note)
    process.main()


class _Epochs:
    """Of the groups in which this worker denoises."""

    def __init__(self) -> None:
        self.latest = 0
        """The latest group that formed."""
        self.met: WeakKeyDictionary[Group, int] = WeakKeyDictionary()

    def of(self, company: Any) -> int:
        """A group that is left behind may still end a step; one that is alone is the latest."""
        is_group = isinstance(company, GroupSteps)
        return self.met[company.collective.group] if is_group else self.latest


def _trace_steps(note: _Note, epochs: _Epochs) -> None:
    def traced(step: Callable[[Any, Denoising], None]) -> Callable[[Any, Denoising], None]:
        def traced_step(company: Any, denoising: Denoising) -> None:
            step(company, denoising)
            note(
                seeds=denoising.seeds,
                step=denoising.steps_taken,
                members=company.members,
                epoch=epochs.of(company),
            )

        return traced_step

    change(SoloSteps, "step", traced)
    change(GroupSteps, "step", traced)


def _trace_commits(note: _Note) -> None:
    def traced(pack: Callable[..., bytes]) -> Callable[..., bytes]:
        def traced_pack(
            engine: TorchEngine, origin: Origin, requests: Sequence[Request], progress: Progress
        ) -> bytes:
            note(commit=progress.step, seeds=[request.seed for request in requests])
            return pack(engine, origin, requests, progress)

        return traced_pack

    change(TorchEngine, "pack", traced)


def _trace_groups(note: _Note) -> _Epochs:
    epochs = _Epochs()

    def read(
        logger: object, method: str, event: MutableMapping[str, Any]
    ) -> MutableMapping[str, Any]:
        if event["event"] == "group_formed":
            epochs.latest = event["epoch"]
            note(formed=event["epoch"], seconds=event["seconds"])
        return event

    def reads(configure: Callable[[], None]) -> Callable[[], None]:
        def configure_and_read() -> None:
            configure()
            structlog.configure(processors=[read, *structlog.get_config()["processors"]])

        return configure_and_read

    def meets(meet: Callable[..., Group]) -> Callable[..., Group]:
        def traced_meet(rank: int, world: int, store: Any, where: str, **options: Any) -> Group:
            began = time.monotonic()
            group = meet(rank, world, store, where, **options)
            epochs.met[group] = int(where.rpartition(" ")[2])
            note(met=epochs.met[group], rank=rank, seconds=time.monotonic() - began)
            return group

        return traced_meet

    change(process, "log_as_json_lines", reads)
    change(torch_collective, "meet", meets)
    return epochs


def _trace_weights(note: _Note) -> None:
    def traced(load: Callable[..., None]) -> Callable[..., None]:
        def traced_load(model: FlowModel, state: Mapping[str, Tensor]) -> None:
            began = time.monotonic()
            load(model, state)
            note(loaded_s=time.monotonic() - began)

        return traced_load

    change(FlowModel, "load_trainable_state", traced)


def change(owner: object, name: str, change: Callable[[Any], Any]) -> None:
    """Put what is made of a function in its place."""
    setattr(owner, name, change(getattr(owner, name)))


if __name__ == "__main__":
    main()
