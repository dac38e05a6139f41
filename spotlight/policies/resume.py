"""Where a run goes on when its coordinator comes back, or when trainers were lost."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal

Origin = Literal["trainers", "state", "checkpoint"]


@dataclass(frozen=True)
class ResumePoint:
    """Iterations completed, and what holds the weights after them: the trainers, which are still
    there; the state that they left in stores; or the checkpoint on disk.
    """

    completed: int
    origin: Origin


def resume_point(
    newest: int,
    checkpoint: int,
    trainers: Sequence[int],
    published: Collection[int],
    *,
    state: int | None = None,
    held: Collection[int] = (),
    unvalidated: Collection[int] = (),
    reuses: bool = True,
) -> ResumePoint:
    """Go on with the newest iteration if the trainers can, else from the state that they left, else
    from the checkpoint.

    Args:
        newest: iterations completed according to the journal.
        checkpoint: iterations in the durable checkpoint; 0 for none.
        trainers: iterations that each rank has trained, -1 for one that is not a trainer.
        published: weights versions that nodes can still pull.
        state: iterations in the state of training that can be had from a store; None if none can.
        held: weights versions that a node holds that is there.
        unvalidated: versions that are to be validated and have no score yet.
        reuses: whether previews are trained on.

    Trainers may be one iteration ahead of the journal: their update ended while the coordinator was
    away. Its samples were made with weights that must then still be published: those before it, or
    where previews are trained on the ones before those; trainers then remember what they have
    published since. So must those be whose validation is still open, which is so only after the
    checkpoint. The state may be one iteration behind, or two where previews are trained on, and
    then the samples of these iterations are still there.
    """
    standing = set(trainers)
    if standing == {newest} and (published or newest == checkpoint):
        return ResumePoint(newest, "trainers")
    made_by = {newest, newest - 1} if reuses else {newest}
    if standing == {newest + 1} and not made_by.isdisjoint(published):
        return ResumePoint(newest, "trainers")
    if state is not None and state >= checkpoint:
        before = {version for version in unvalidated if version < state}
        if before <= set(held):
            return ResumePoint(state, "state")
    return ResumePoint(checkpoint, "checkpoint")
