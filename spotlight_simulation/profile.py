"""Durations of a real test-bed, as a file gives them, for the jobs of a simulated cluster."""

from __future__ import annotations

import math
from pathlib import Path

import msgspec

from spotlight.errors import UnreadableFile, UserError
from spotlight.files import MEBIBYTE, read_text
from spotlight.jobs import JobSpec
from spotlight.jobs.losses import LOSSES, noised_options, replays
from spotlight.jobs.plain_yaml import PlainYAMLError, read_yaml
from spotlight_simulation.fake_hardware import HardwareTimes
from spotlight_simulation.memory_store import Network


class Lending(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What spot GPUs that train send and get, of jobs with several slices."""

    source: str
    """Where the figures are from."""
    adapter_bytes: int
    """Bytes of the weights that an update changes; and of the gradient of a slice."""
    copy_bytes_per_s: float
    """How fast a rank leaves weights, and one copy comes over the network."""
    link_bytes_per_s: float
    """What all copies that a node sends at the same time, or takes, come to together."""

    def __post_init__(self) -> None:
        for name in ("adapter_bytes", "copy_bytes_per_s", "link_bytes_per_s"):
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(f"{name} must be above 0 and finite, not {getattr(self, name)}")

    @property
    def copy_s(self) -> float:
        """Seconds in which weights or a gradient come over a link on which nothing else is."""
        return self.adapter_bytes / self.copy_bytes_per_s

    def weights_s(self, ranks: int) -> float:
        """Seconds in which so many ranks leave their parts of the weights, and a node gets all of
        them at the same time, over a link on which nothing else is."""
        return 2 * self.copy_s / ranks


class Factor(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What makes a GPU faster or slower than the figures of a profile, such as compilation."""

    name: str
    """What it is."""
    source: str
    """Where the figures are from."""
    rollout: float = 1.0
    """The time of a denoising step with it, over that without."""
    train: float = 1.0
    """The time of training with it, over that without."""

    def __post_init__(self) -> None:
        if not self.source.strip():
            raise ValueError(f"factor {self.name}: source must say where the figures are from")
        for name in ("rollout", "train"):
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(
                    f"factor {self.name}: {name} must be above 0 and finite, not"
                    f" {getattr(self, name)}"
                )


class Profile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How long one iteration without exploration takes, and what goes on around it; all times in
    seconds. A job that has more samples, or more steps for each, rolls out longer, and one that
    trains on more rows trains longer, in proportion."""

    source: str
    """Where the figures are from."""
    assumptions: str
    """What nobody published of them."""
    gpus: int
    """GPUs on which the iteration is rolled out and trained."""
    samples: int
    """Samples that it rolls out."""
    steps: int
    """Denoising steps of each."""
    rows: int
    """Rows that it trains on: samples times flow times."""
    rollout_s: float
    train_s: float
    train_jitter: float
    """Training takes up to this share longer or shorter."""
    publish_s: float | None = None
    """The time from the end of training until nodes have the new weights; None: what `lending` says
    that a rank and the links take for them."""
    load_s: float
    """The time to load the model, or a trainer."""
    score_s: float
    """The time to score a micro-batch."""
    lending: Lending
    factors: tuple[Factor, ...] = ()
    """What the figures are multiplied with; `load_profile` does that."""

    def __post_init__(self) -> None:
        for name in ("gpus", "samples", "steps", "rows", "rollout_s", "train_s"):
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(f"{name} must be above 0 and finite, not {getattr(self, name)}")
        for name in ("publish_s", "load_s", "score_s"):
            value = getattr(self, name)
            if value is not None and not 0 <= value < math.inf:
                raise ValueError(f"{name} must be finite and 0 at least, not {value}")
        if not 0 <= self.train_jitter < 1:
            raise ValueError(f"train_jitter must be in [0, 1), not {self.train_jitter}")

    @property
    def publication_s(self) -> float:
        """The time from the end of training until a node has the new weights."""
        given = self.publish_s
        return self.lending.weights_s(self.gpus) if given is None else given

    def multiplied(self) -> Profile:
        """The same with its factors in its figures."""
        return msgspec.structs.replace(
            self,
            rollout_s=self.rollout_s * math.prod(each.rollout for each in self.factors),
            train_s=self.train_s * math.prod(each.train for each in self.factors),
            factors=(),
        )

    def times(self, job: JobSpec) -> HardwareTimes:
        """What that comes to for the job's micro-batches, for the rows that it makes of a sample,
        and for the ranks that train them: twice as many take half the time. A denoising step takes
        the same, whatever it is for."""
        rows = _rows_of_a_sample(job)
        step_s = self.rollout_s * self.gpus / (self.samples * self.steps)
        part_bytes = self.lending.adapter_bytes // job.training.ranks
        return HardwareTimes(
            step_s=step_s * job.sampler.micro_batch,
            score_s=self.score_s,
            load_s=self.load_s,
            train_s=0.0,
            train_sample_s=self.train_s * self.gpus / job.training.ranks / self.rows * rows,
            rows_of_sample=rows,
            train_jitter=self.train_jitter,
            publish_s=self.publish_s or 0.0,
            published_bytes=part_bytes if self.publish_s is None else 0,
            lent_bytes=part_bytes,
            gradient_bytes=self.lending.adapter_bytes,
            network=Network(self.lending.copy_bytes_per_s, self.lending.link_bytes_per_s),
        )


def _rows_of_a_sample(job: JobSpec) -> int:
    """Its trained flow times, or the noisy steps of a loss in the box that replays them."""
    facts = LOSSES.get(job.training.loss)
    if facts is not None and replays(facts.samplers):
        return job.sampler.window.length
    return noised_options(job.training).trained_times


def load_profile(path: Path) -> Profile:
    """Read one from a YAML file, with its factors in its figures; raises `UserError` that names the
    file and, in one line, what is wrong.
    """
    try:
        data = read_yaml(read_text(path, most=MEBIBYTE))
        return msgspec.convert(data, Profile).multiplied()
    except UnreadableFile as error:
        raise UserError(f"{path}: {error.problem}; give a profile (YAML)") from error
    except (PlainYAMLError, msgspec.ValidationError) as error:
        raise UserError(f"{path}: {error}; see `spotlight_simulation.profile.Profile`") from error
