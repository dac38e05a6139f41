"""Runs that train on the same samples in another order: by how much their curves lie apart is the
noise that no number of samples per iteration removes.
"""

from __future__ import annotations

import random

from spotlight_simulation.numerics import Batch, Update
from spotlight_simulation.real_numerics import RealNumerics


class OtherOrder(RealNumerics):
    """The same samples and advantages, shuffled before each training: they come into other updates,
    unless each part of an iteration has one of its own, and get other flow times and noise there.
    """

    def trained(self, batch: Batch) -> Update:
        """See `Numerics`."""
        rng = random.Random(f"other order {batch.iteration}")
        parts = [list(batch.samples[: batch.first]), list(batch.samples[batch.first :])]
        for part in parts:
            rng.shuffle(part)
        return super().trained(batch._replace(samples=[*parts[0], *parts[1]]))
