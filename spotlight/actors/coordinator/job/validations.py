"""The validations of a job: their images, and the scores that are written down."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from spotlight.actors.coordinator.job.measures import (
    as_validation,
    left_pictures,
    measure_validation,
    pictures,
)
from spotlight.actors.coordinator.job.validator import Validated, Validator
from spotlight.policies.reward_hacking import find_falls
from spotlight.record.run_events import SEE_EVENTS, RewardFell
from spotlight.record.run_metrics import ValidationMetrics
from spotlight.types import Request, Result

if TYPE_CHECKING:
    from spotlight.actors.coordinator.job.job_runner import JobRunner


class Validations:
    """See the module's docstring.

    Args:
        prompts: of validation.
    """

    def __init__(self, job: JobRunner, prompts: list[str]) -> None:
        self._job, self._spec = job, job.spec
        self._validator = Validator(job.spec, prompts)

    @property
    def versions(self) -> frozenset[int]:
        """Those that are being validated."""
        return self._validator.versions

    def start(self, version: int) -> tuple[Request, ...]:
        """The images of a version, to be submitted."""
        return self._validator.start(version)

    def finished(self, results: Iterable[Result]) -> None:
        """Images come in, in any order, each once."""
        self._write_down(self._validator.finished(results))

    def given_up(self, requests: Iterable[Request], reason: str) -> None:
        """Images that could not be denoised or scored."""
        self._write_down(self._validator.given_up(requests), reason)

    def _write_down(self, ended: Iterable[Validated], reason: str = "") -> None:
        """A run without a score for its weights is not worth going on with."""
        for validated in ended:
            if not validated.results:
                what = f"no validation image of version {validated.version} could be scored"
                self._job.fail(f"{what} ({reason}); {SEE_EVENTS}")
                return
            self._add(validated.version, validated.results)

    def _add(self, version: int, results: tuple[Result, ...]) -> None:
        metrics = measure_validation(version, results, self._spec)
        falls = self._falls(metrics)
        shown, left = pictures(results, self._spec), left_pictures(results)
        self._job.record.validation(metrics, shown, left)
        self._job.store.delete(f"validation/v{version:06d}")  # the pictures are elsewhere now
        self._job.progress.add_validated(version)
        self._job.requests.forget("evaluation", version)
        if falls and self._spec.validation.on_hacking == "stop":
            self._job.fail(falls)
        self._job.validated(version)

    def _falls(self, metrics: ValidationMetrics) -> str:
        """Which rewards fell that nobody trains on, as events and in one line; empty for none."""
        names = [reward.name for reward in self._spec.validation.rewards]
        earlier = [as_validation(one, names) for one in self._job.record.run.validations]
        falls = find_falls(earlier, as_validation(metrics, names))
        for fall in falls:
            self._job.record.event(
                RewardFell(
                    weights_version=metrics.weights_version,
                    reward=fall.reward,
                    mean=fall.after,
                    best=fall.before,
                    best_version=fall.since,
                )
            )
        words = [
            f"`{fall.reward}`, which is not trained on, fell from {fall.before:.3f} (version"
            f" {fall.since}) to {fall.after:.3f} (version {metrics.weights_version})"
            for fall in falls
        ]
        return f"{'; '.join(words)}, while the score rose" if words else ""
