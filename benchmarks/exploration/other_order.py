"""Runs that train on the same samples in another order: by how much their curves lie apart is the
noise that no number of samples per iteration removes.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from spotlight.testing.fingerprints import Row
from spotlight.testing.numerics import Update
from spotlight.testing.real_numerics import RealNumerics


class OtherOrder(RealNumerics):
    """The same samples and advantages, shuffled before each training: they come into other updates,
    unless each part of an iteration has one of its own, and get other flow times and noise there.
    """

    def trained(
        self,
        iteration: int,
        weights: str,
        samples: Sequence[tuple[Row, float]],
        chance: str,
        first: int = 0,
    ) -> Update:
        """See `Numerics`."""
        rng = random.Random(f"other order {iteration}")
        parts = [list(samples[:first]), list(samples[first:])]
        for part in parts:
            rng.shuffle(part)
        return super().trained(iteration, weights, [*parts[0], *parts[1]], chance, first)
