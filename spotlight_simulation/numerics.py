"""What scoring and training come to in a simulated cluster.

Between the processes of a cluster only fingerprints travel: the name of a sample is a function of
the weights' name and the request, that of new weights a function of the samples they were trained
on. What lies behind the names is the matter of a `Numerics`: nothing at all (`Fingerprints`), or
tensors (`real_numerics`). One is shared by all workers of a cluster.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from spotlight.jobs import JobSpec
from spotlight.policies.exploration.reuse import MOST_DRIFT
from spotlight_simulation import fingerprints
from spotlight_simulation.fingerprints import Row


class Update(NamedTuple):
    """What training an iteration came to."""

    weights: str
    """The name of the new ones."""
    metrics: dict[str, float]


class Batch(NamedTuple):
    """What an iteration is trained on."""

    iteration: int
    weights: str
    """Those that are trained; they made the samples, or those before them did."""
    samples: Sequence[tuple[Row, float]]
    """The samples with their advantages."""
    chance: str
    """The chance that `fingerprints.trained` takes."""
    first: int = 0
    """How many of the samples, in front, are those of the first part; 0 where the iteration is
    trained in one."""

    @property
    def name(self) -> str:
        """Of the weights that come of it."""
        samples = [(row.latents, advantage) for row, advantage in self.samples]
        return fingerprints.trained(self.weights, samples, self.chance)


class Numerics(Protocol):
    """See the module's docstring."""

    def initial_weights(self, job: JobSpec) -> str:
        """The name of the weights that the job begins with."""

    def rewards(self, rows: Sequence[Row]) -> tuple[float, ...]:
        """Of finished samples, in [0, 1]. Raises `ScoringError`."""

    def trained(self, batch: Batch) -> Update:
        """The optimizer steps of an iteration on these samples, in this order; every rank of a job
        asks for the same. Raises `SpotlightError`."""


class Fingerprints:
    """Nothing is computed: a sample's reward follows from its name."""

    def initial_weights(self, job: JobSpec) -> str:
        """See `Numerics`."""
        return fingerprints.initial_weights(job.seed)

    def rewards(self, rows: Sequence[Row]) -> tuple[float, ...]:
        """See `Numerics`."""
        return tuple(fingerprints.reward(row.latents) for row in rows)

    def trained(self, batch: Batch) -> Update:
        """See `Numerics`."""
        after = batch.name
        # Now and then the weights move too far for previews to be trained on.
        drift = 1.2 * MOST_DRIFT * fingerprints.reward(after)
        return Update(after, {"loss": 0.5, "drift": drift})
