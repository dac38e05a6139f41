"""The learning rate of every update: torch's own schedules, after a warm-up."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch.optim import lr_scheduler
from torch.optim.lr_scheduler import LRScheduler

from spotlight.jobs import TrainingSpec


def learning_rates(training: TrainingSpec, updates: int) -> Iterator[float]:
    """The learning rate of each update, from the first on; `updates` is how many a job makes.

    The warm-up climbs in equal steps and reaches `learning_rate` with the update that follows its
    `warmup_updates`; from there on `linear` and `cosine` fall to 0 at the end of the job. A rate
    depends on the number of its update alone, so a resumed job counts up to where it was.
    """
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=training.learning_rate)
    schedule = _schedule(optimizer, training, updates)
    while True:
        yield optimizer.param_groups[0]["lr"]
        optimizer.step()
        schedule.step()


def _schedule(
    optimizer: torch.optim.Optimizer, training: TrainingSpec, updates: int
) -> LRScheduler:
    warmup = training.warmup_updates
    rest = max(updates - warmup, 1)
    after: LRScheduler
    match training.learning_rate_schedule:
        case "constant":
            after = lr_scheduler.ConstantLR(optimizer, factor=1.0)
        case "linear":
            after = lr_scheduler.LinearLR(optimizer, 1.0, end_factor=0.0, total_iters=rest)
        case "cosine":
            after = lr_scheduler.CosineAnnealingLR(optimizer, T_max=rest)
    if not warmup:
        return after
    climb = lr_scheduler.LinearLR(optimizer, 1 / (warmup + 1), total_iters=warmup)
    return lr_scheduler.SequentialLR(optimizer, [climb, after], [warmup])
