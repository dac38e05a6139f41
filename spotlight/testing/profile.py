"""Durations of a real test-bed, as a file gives them, for the jobs of a simulated cluster."""

from __future__ import annotations

from pathlib import Path

import msgspec

from spotlight.errors import UserError
from spotlight.jobs import JobSpec
from spotlight.testing.fake_hardware import HardwareTimes


class Profile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How long one iteration without exploration takes, and what goes on around it; all times in
    seconds. A job that has more samples takes longer, in proportion."""

    source: str
    """Where the figures are from."""
    assumptions: str
    """What nobody published of them."""
    gpus: int
    """On which the iteration is rolled out and trained."""
    samples: int
    """That it has."""
    rollout_s: float
    train_s: float
    train_jitter: float
    """Training takes up to this share longer or shorter."""
    publish_s: float
    """From the end of training until nodes can pull the new weights."""
    load_s: float
    """Of the model, and of a trainer."""
    score_s: float
    """Of a micro-batch."""

    def __post_init__(self) -> None:
        if min(self.gpus, self.samples) < 1 or min(self.rollout_s, self.train_s) <= 0:
            raise ValueError("gpus, samples, rollout_s and train_s must be above 0")
        if min(self.publish_s, self.load_s, self.score_s) < 0 or not 0 <= self.train_jitter < 1:
            raise ValueError("times must not be below 0, and train_jitter must be in [0, 1)")

    def times(self, job: JobSpec) -> HardwareTimes:
        """What that comes to for the job's micro-batches and samples. A denoising step takes the
        same, whatever it is for."""
        sample_s = self.rollout_s * self.gpus / self.samples
        return HardwareTimes(
            step_s=sample_s * job.sampler.micro_batch / job.sampler.steps,
            score_s=self.score_s,
            load_s=self.load_s,
            train_s=0.0,
            train_sample_s=self.train_s / self.samples,
            train_jitter=self.train_jitter,
            publish_s=self.publish_s,
        )


def load_profile(path: Path) -> Profile:
    """Read one from a YAML file; raises `UserError` that names the file and what is wrong."""
    try:
        return msgspec.yaml.decode(path.read_bytes(), type=Profile)
    except (OSError, msgspec.DecodeError) as error:
        raise UserError(f"{path}: {error}") from error
