"""How long the denoising steps of a job's model take: learned from the results of groups, and used
for planning.
"""

from __future__ import annotations

from collections.abc import Sequence

from spotlight.policies.step_times import StepKey, StepTimes
from spotlight.types import SamplingSettings


class StepProfile:
    """See the module's docstring. All times are seconds of one step of one micro-batch.

    Args:
        model: its fingerprint.
        times: what is known so far; learns more.
    """

    def __init__(self, model: str, times: StepTimes) -> None:
        self._model = model
        self.times = times

    def measure(self, settings: SamplingSettings, members: int, step_s: float) -> None:
        """Steps took so many members so long; `ValueError` for a time that cannot be."""
        self.times.measure(self._key(settings, members), step_s)

    def step_s(self, settings: SamplingSettings, members: int) -> float | None:
        """Measured, or estimated from what is; None when nothing of the model is."""
        return self.times.estimate(self._key(settings, members))

    def by_degree(self, settings: SamplingSettings, degrees: Sequence[int]) -> dict[int, float]:
        """For each degree; of a model of which nothing is known yet, as if one member took a
        second.
        """
        times = self.times
        if self.step_s(settings, 1) is None:
            times = StepTimes()
            times.measure(self._key(settings, 1), 1.0)
        estimates = {degree: times.estimate(self._key(settings, degree)) for degree in degrees}
        return {degree: step_s for degree, step_s in estimates.items() if step_s is not None}

    def _key(self, settings: SamplingSettings, members: int) -> StepKey:
        size = settings.height, settings.width
        model = f"previews of {self._model}" if settings.preview_model else self._model
        return StepKey(model, *size, members, settings.micro_batch, settings.frames)
