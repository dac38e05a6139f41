"""Does the model game its reward? What it is trained on rises, and what it is not trained on falls.

A validation scores its images also by rewards that nobody trains on. A model that gets better does
not get worse by these; one that has found a weakness of its reward does.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

NOISE = 3.0
"""Standard errors of a difference: about one in a thousand differences is larger by chance, so that
a job of many validations is hardly ever stopped for nothing."""


@dataclass(frozen=True)
class Estimate:
    """A mean over images, with its standard error."""

    mean: float
    error: float


@dataclass(frozen=True)
class Validation:
    """What was measured of one weights version."""

    version: int
    score: Estimate
    """The estimate of what is trained on."""
    checks: Mapping[str, Estimate]
    """The estimate of each reward that is not trained on, by its name."""


@dataclass(frozen=True)
class Fall:
    """A reward that fell while the score rose."""

    reward: str
    since: int
    """The weights version that had the most of it."""
    before: float
    after: float


def find_falls(earlier: Sequence[Validation], latest: Validation) -> list[Fall]:
    """The rewards of which the latest validation has less, beyond noise, than the earlier one that
    had the most, although its score is higher than that one's.

    Images are the same in all validations, so taking the two means as independent overstates the
    noise of their difference: a fall that is found is one.
    """
    falls = []
    for name, now in latest.checks.items():
        known = [one for one in earlier if name in one.checks]
        if not known:
            continue
        best = max(known, key=lambda one: one.checks[name].mean)
        before = best.checks[name]
        noise = NOISE * math.hypot(before.error, now.error)
        if before.mean - now.mean > noise and latest.score.mean > best.score.mean:
            falls.append(Fall(name, best.version, before.mean, now.mean))
    return falls
