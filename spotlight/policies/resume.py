"""Where a run goes on when its coordinator comes back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class ResumePoint:
    """Iterations completed, and whether the trainers are still there with their weights; if not,
    they are built anew from the checkpoint.
    """

    completed: int
    warm: bool


def resume_point(
    newest: int, checkpoint: int, trainers: Sequence[int], published: frozenset[int]
) -> ResumePoint:
    """Go on with the newest iteration if the trainers can, else from the checkpoint.

    Args:
        newest: iterations completed according to the journal.
        checkpoint: iterations in the durable checkpoint; 0 for none.
        trainers: iterations that each rank has trained, -1 for one that is not a trainer.
        published: weights versions that nodes can still pull.

    Trainers may be one iteration ahead of the journal: their update ended while the coordinator was
    away. Its samples were made with weights that must then still be published. So must those be
    whose validation is still open, which is so only after the checkpoint.
    """
    standing = set(trainers)
    if standing == {newest} and (published or newest == checkpoint):
        return ResumePoint(newest, warm=True)
    if standing == {newest + 1} and newest in published:
        return ResumePoint(newest, warm=True)
    return ResumePoint(checkpoint, warm=False)
