"""The section `training` of a job: the update rule and its optimizer.

A field's docstring ends with its unit in square brackets, where it has one.
"""

from __future__ import annotations

from typing import Literal

from spotlight.jobs.fields import (
    MOST_IN_BATCH,
    MOST_REPEATS,
    Section,
    require,
    require_at_most,
)
from spotlight.jobs.losses import default_advantage_clip, name_problem


class TrainingSpec(Section, frozen=True, kw_only=True):
    """The update rule and its optimizer (AdamW)."""

    loss: str = "diffusion_nft"
    """The update rule: `diffusion_nft` or `awm`; `flow_grpo` or `grpo_guard`, which need a sampler
    that adds noise; the name of an entry point of the group `spotlight.losses`; or
    `module:Class`, whose package the operator of coordinator and nodes allowed (`--allow-code`)."""
    ranks: int = 1
    """Trainer ranks, each a worker of the reserved pool; they share every batch. [workers]"""
    sharded: bool = False
    """Share out weights, gradients, optimizer and averages over the trainer ranks (FSDP2), for
    models that one accelerator cannot train whole. Only with `model.tuning: full`; a single rank
    has everything."""
    cpu_offload: bool = False
    """Keep the float32 weights, their gradient, the optimizer, averages and references in host
    memory, and step there: the accelerator has what computes. Slower; only with
    `model.tuning: full`, and with `training.sharded` where there are several ranks."""
    updates_per_iteration: int = 2
    """Optimizer steps per iteration; the samples are divided among them. [steps]"""
    micro_batch: int = 32
    """Samples in one forward and backward pass. [samples]"""
    activation_checkpointing: bool = False
    """Whether a backward pass computes every block of the transformer a second time instead of
    keeping all that its forward pass made: the same gradients to the bit in a fraction of the
    memory, for the time of one more forward pass."""
    learning_rate: float = 3e-4
    """AdamW's step size, after the warm-up."""
    learning_rate_schedule: Literal["constant", "linear", "cosine"] = "constant"
    """How the learning rate changes after the warm-up: `linear` and `cosine` fall to 0 at the end
    of the job."""
    warmup_updates: int = 0
    """Optimizer steps in which the learning rate rises from nearly 0 to its full value. [steps]"""
    weight_decay: float = 1e-4
    """AdamW's decoupled weight decay."""
    adam_betas: tuple[float, float] = (0.9, 0.999)
    """AdamW's decay of the first and the second moment."""
    gradient_clip: float = 1.0
    """Largest norm of the whole gradient."""
    advantage_baseline: Literal["mean", "median"] = "mean"
    """What a sample's reward is compared with: the mean or the median of its prompt group."""
    advantage_std: Literal["global", "group"] = "global"
    """Whether advantages are divided by the standard deviation over the iteration or over each
    prompt group."""
    advantage_clip: float | None = None
    """Advantages are clipped to this absolute value. With the mean as baseline they are then
    centred again, so that those of a prompt group sum to 0. When absent it is 5 with `flow_grpo`,
    `grpo_guard` and `awm`, and otherwise 1: it is also how strongly DiffusionNFT is pulled back to
    its old policy."""
    ema_decay: float = 0.9
    """Decay per optimizer step of the averaged weights (EMA) that validation uses."""
    rollout_decay: float = 0.0
    """The old policy of DiffusionNFT, AWM and GRPO-Guard (of Flow-GRPO only with
    `exploration.reuse`), which then rolls out: `old <- d*old + (1-d)*new` at each publication. 0
    rolls out with the newest weights; DiffusionNFT then needs several updates per iteration."""
    rollout_decay_after: int = 0
    """Optimizer steps for which `d` stays 0. [steps]"""
    rollout_decay_growth: float | None = None
    """By how much `d` grows with each further optimizer step, up to `rollout_decay`; when absent,
    `d` is `rollout_decay` at once. DiffusionNFT's authors use 0.999, 75 and 0.0075 for OCR."""
    nft_strength: float = 1.0
    """`b` of DiffusionNFT."""
    nft_times: int = 4
    """Random flow times per sample and update of DiffusionNFT and AWM. [draws]"""
    nft_noisiest: float = 1.0
    """Share of these flow times that is trained on: the noisiest of every sample, rounded to whole
    ones, halves up, and one at least. Training takes as much less time. Only with DiffusionNFT,
    AWM, and losses of your own that noise samples anew (`Noised`)."""
    nft_shared_noise: bool = False
    """Whether the samples of a prompt have the same flow times and noise in an update, so that what
    all of them would push alike cancels out. With the same losses as `nft_noisiest`."""
    awm_kl: float = 1.0
    """AWM's weight of the distance to the old policy."""
    clip_range: float | None = None
    """Clip range of probability ratios. When absent it is what the authors of each loss use: 1e-4
    with `flow_grpo`, 2e-6 with `grpo_guard`, 1 with `awm`."""
    kl: float = 0.0
    """Weight of the distance to the initial weights; 0 keeps no reference model."""
    patience_s: float = 60.0
    """How long a trainer rank may be unreachable before others take over from the state that it
    left. A rank whose process has ended is replaced at once. [seconds]"""

    def __post_init__(self) -> None:
        problem = name_problem(self.loss)
        require(problem is None, "loss", str(problem))
        for field in ("ranks", "updates_per_iteration", "micro_batch", "nft_times"):
            require(
                getattr(self, field) >= 1, field, f"must be at least 1, not {getattr(self, field)}"
            )
        for field in (
            "learning_rate",
            "gradient_clip",
            "advantage_clip",
            "nft_strength",
            "clip_range",
            "rollout_decay_growth",
            "patience_s",
        ):
            value = getattr(self, field)
            require(value is None or value > 0, field, f"must be positive, not {value}")
        require(
            self.learning_rate <= 1,
            "learning_rate",
            f"must be at most 1, not {self.learning_rate}; usual ones are 1e-6 to 1e-3",
        )
        share = self.nft_noisiest
        require(0 < share <= 1, "nft_noisiest", f"must be in (0, 1], not {share}")
        for field in ("ema_decay", "rollout_decay"):
            require(0 <= getattr(self, field) < 1, field, "must be in [0, 1)")
        require(
            all(0 <= beta < 1 for beta in self.adam_betas),
            "adam_betas",
            f"both must be in [0, 1), not {list(self.adam_betas)}",
        )
        for field in ("weight_decay", "kl", "awm_kl", "warmup_updates", "rollout_decay_after"):
            require(getattr(self, field) >= 0, field, "must not be negative")
        require_at_most(self, MOST_IN_BATCH, "micro_batch")
        require_at_most(self, MOST_REPEATS, "nft_times")

    @property
    def largest_advantage(self) -> float:
        """`advantage_clip`; where it is absent, what suits the loss."""
        return self.advantage_clip or default_advantage_clip(self.loss)

    @property
    def trained_times(self) -> int:
        """Flow times per sample and update that DiffusionNFT and AWM train on."""
        return max(1, int(self.nft_noisiest * self.nft_times + 0.5))
