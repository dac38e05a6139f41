"""A worker process that writes down, with the time on CLOCK_MONOTONIC, what a benchmark wants to
see of it: one JSON object a line.

Every line has `pid` and `t` in seconds. Kinds of lines, by the key that only they have:
- `step`: the leading rank completed this step of the batch with `seeds`, in the group of `epoch`
  with so many `members`.
- `formed`: this rank's group of that epoch can denoise; it took `seconds` from the order.
- `met`: this rank connected to the others of that epoch, in `seconds`.
- `loaded_s`: weights were copied into the model, in that time.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from spotlight.actors import group_connector, worker
from spotlight.actors.group_seat import GroupSeat
from spotlight.actors.messages import GroupFailed, GroupReady
from spotlight.diffusion.lockstep import Alone, Lockstep
from spotlight.diffusion.qwen_image import QwenImageModel
from spotlight.diffusion.samplers import Denoising
from spotlight.transport.collectives import Group

TRACE_VARIABLE = "SPOTLIGHT_STEP_TRACE"

_Note = Callable[..., None]


def main() -> None:
    """Entry point of the process."""
    trace = os.open(os.environ[TRACE_VARIABLE], os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def note(**fields: Any) -> None:
        line = json.dumps({"pid": os.getpid(), "t": time.monotonic(), **fields}) + "\n"
        os.write(trace, line.encode())

    _trace_steps(note)
    _trace_groups(note)
    _trace_weights(note)
    worker.main()


def _trace_steps(note: _Note) -> None:
    def traced(step: Callable[[Any, Denoising], None]) -> Callable[[Any, Denoising], None]:
        def traced_step(company: Any, denoising: Denoising) -> None:
            step(company, denoising)
            note(
                seeds=denoising._seeds[: denoising._count],
                step=denoising.steps_taken,
                members=company.members,
                epoch=getattr(company, "epoch", 0),
            )

        return traced_step

    Alone.step = traced(Alone.step)  # type: ignore[method-assign]
    Lockstep.step = traced(Lockstep.step)  # type: ignore[method-assign]


def _trace_groups(note: _Note) -> None:
    plain_tell = GroupSeat._tell_leader
    plain_meet = group_connector.meet

    def traced_tell(seat: GroupSeat, message: GroupReady | GroupFailed) -> None:
        if isinstance(message, GroupReady):
            company: Any = seat._company
            company.epoch = message.epoch
            note(
                formed=message.epoch,
                rank=seat._rank(),
                members=company.members,
                seconds=message.seconds,
            )
        plain_tell(seat, message)

    def traced_meet(rank: int, world: int, store: Any, where: str, **options: Any) -> Group:
        began = time.monotonic()
        group = plain_meet(rank, world, store, where, **options)
        note(met=int(where.rpartition(" ")[2]), rank=rank, seconds=time.monotonic() - began)
        return group

    GroupSeat._tell_leader = traced_tell  # type: ignore[method-assign]
    group_connector.meet = traced_meet  # type: ignore[assignment]


def _trace_weights(note: _Note) -> None:
    plain_load = QwenImageModel.load_trainable_state

    def traced_load(model: QwenImageModel, state: Mapping[str, Tensor]) -> None:
        began = time.monotonic()
        plain_load(model, state)
        note(loaded_s=time.monotonic() - began)

    QwenImageModel.load_trainable_state = traced_load  # type: ignore[method-assign]


if __name__ == "__main__":
    main()
