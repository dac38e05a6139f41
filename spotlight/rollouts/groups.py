"""Requests for rollouts, and their results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from spotlight.actors.protocol.sessions import LONGEST_PROMPT, MOST_SEEDS, MOST_STEPS, NodeCapacity
from spotlight.errors import JobError
from spotlight.rollouts.versions import ANY_VERSION, AtLeast, Exactly

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class RolloutRequest:
    """A prompt group to be denoised and scored: one sample for each seed.

    A sample is a function of weights version, prompt, seed and sampler alone: the same request
    gives the same sample again.
    """

    prompt: str
    seeds: Sequence[int]
    """Each in [0, 2^63), none twice."""
    version: AtLeast | Exactly = ANY_VERSION
    """Which weights may make it."""
    images: bool = False
    """Whether the images are wanted, too."""
    steps: int | None = None
    """Denoising steps; the sampler's when absent."""
    window_start: int | None = None
    """First step at which a stochastic sampler adds noise; its earliest when absent."""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    """What scorers are to know of the prompt besides its text: what JSON can say."""

    def __post_init__(self) -> None:
        """Raises `JobError` naming the field that is wrong."""
        count, prompt = len(self.seeds), self.prompt
        for name, right, problem in (
            ("prompt", 0 < len(prompt) <= LONGEST_PROMPT, f"has {len(prompt):,} characters"),
            ("seeds", 0 < count <= MOST_SEEDS, f"are {count:,}; name from 1 to {MOST_SEEDS:,}"),
            ("seeds", len(set(self.seeds)) == count, "name one of them twice"),
            ("seeds", all(0 <= seed < 2**63 for seed in self.seeds), "must be in [0, 2^63)"),
            ("steps", self.steps is None or 0 < self.steps <= MOST_STEPS, f"is {self.steps}"),
            ("window_start", (self.window_start or 0) >= 0, "must not be negative"),
        ):
            if not right:
                raise JobError(name, problem)


@dataclass(frozen=True, eq=False)
class Sample:
    """A denoised and scored image."""

    prompt: str
    seed: int
    policy_version: int
    """The version of the weights that made it, from its first step to its last."""
    rewards: Mapping[str, float]
    """One reward by each name of the session's rewards; empty where nothing is scored."""
    reward: float | None
    """Their mean by their weights; None where nothing is scored."""
    latents: Tensor | None
    """Clean latents [tokens, channels], float32; None where tensors are not wanted, and of a
    preview."""
    states: Tensor | None
    """The latents before each noisy step of a stochastic sampler and after the last of them, [steps
    + 1, tokens, channels], float32."""
    log_probs: Tensor | None
    """The log-probability of each noisy step of a stochastic sampler, [steps], float32."""
    image: bytes | None
    """A PNG file, if it was asked for."""
    attempts: int
    """Workers that had it; 0 if that is not known, since the coordinator was killed meanwhile."""
    resumed_at_step: int
    """Denoising steps that another worker had taken when the one that finished it took over."""


@dataclass(frozen=True)
class Failure:
    """A sample that could not be denoised or scored; never a reward of 0."""

    seed: int
    reason: str


@dataclass(frozen=True, eq=False)
class Group:
    """A prompt group that is done."""

    request: RolloutRequest
    index: int
    """Which of the requests of its `rollout` it answers, from 0."""
    policy_version: int
    samples: tuple[Sample, ...]
    """The samples in the order of the seeds, without those that failed."""
    failed: tuple[Failure, ...]


@dataclass(frozen=True)
class ExploredPrompt:
    """The seeds that exploration chose for a prompt."""

    prompt: str
    seeds: tuple[int, ...]
    """Those whose previews contrast most; where it did not get so far, also seeds without one."""
    preview_rewards: tuple[float | None, ...]
    """The reward of each seed's preview; None without a preview."""
    previewed: int
    """Candidates that were scored."""


@dataclass(frozen=True)
class Capacity:
    """The nodes and workers that there are; an autoscaler needs this."""

    nodes: tuple[NodeCapacity, ...]
    newest_version: int
    """The newest version of the weights; -1 before the first."""
    ready_workers: int
    """Workers whose node has it."""
    waiting: int
    """Requests that are submitted and not done."""
    images_per_s: float
    """Images per second of rollouts, over the last minute."""

    @property
    def workers(self) -> int:
        """All that are there."""
        return sum(node.workers for node in self.nodes)


@dataclass(frozen=True)
class Usage:
    """Work done since the session began, or since its coordinator restarted."""

    samples: int
    previews: int
    resumed: int
    """How many of both went on from steps that another worker had taken."""
    handed_on: int
    """Requests that were given to another worker, since the first was lost or too slow."""
    failed: int
    worker_seconds: Mapping[str, Mapping[str, float]]
    """Seconds by pool and state of the worker: they add up to the time for which workers were
    there."""
