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


class TrainingSpec(Section, frozen=True, kw_only=True):
    """The update rule and its optimizer (AdamW)."""

    loss: Literal["diffusion_nft", "flow_grpo"] = "diffusion_nft"
    """The update rule; `flow_grpo` needs a stochastic sampler."""
    ranks: int = 1
    """Trainer ranks, each a worker of the reserved pool; they share every batch. [workers]"""
    updates_per_iteration: int = 2
    """Optimizer steps per iteration; the samples are dealt out over them. [steps]"""
    micro_batch: int = 32
    """Samples in one forward and backward pass. [samples]"""
    learning_rate: float = 3e-4
    """AdamW's step size."""
    weight_decay: float = 1e-4
    """AdamW's decoupled weight decay."""
    adam_betas: tuple[float, float] = (0.9, 0.999)
    """AdamW's decay of the first and the second moment."""
    gradient_clip: float = 1.0
    """Largest norm of the whole gradient."""
    advantage_std: Literal["global", "group"] = "global"
    """Divide advantages by the standard deviation over the iteration or over each prompt group."""
    advantage_clip: float = 5.0
    """Advantages are cut to this absolute value."""
    ema_decay: float = 0.9
    """Of the weights that validation uses, per optimizer step."""
    rollout_decay: float = 0.0
    """DiffusionNFT's old policy: `old <- d*old + (1-d)*new` at each publication; 0 rolls out with
    the newest weights, and needs several updates per iteration."""
    nft_strength: float = 1.0
    """`b` of DiffusionNFT."""
    nft_times: int = 4
    """Random flow times per sample and update. [draws]"""
    clip_range: float = 1e-4
    """Flow-GRPO's ratio clip."""
    kl: float = 0.0
    """Weight of the distance to the initial weights; 0 keeps no reference model."""
    patience_s: float = 60.0
    """How long a trainer rank may be out of reach before others take over from the last checkpoint;
    one whose process has ended is replaced at once. [seconds]"""

    def __post_init__(self) -> None:
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
            "patience_s",
        ):
            require(
                getattr(self, field) > 0, field, f"must be positive, not {getattr(self, field)}"
            )
        for field in ("ema_decay", "rollout_decay"):
            require(0 <= getattr(self, field) < 1, field, "must be in [0, 1)")
        require(
            all(0 <= beta < 1 for beta in self.adam_betas),
            "adam_betas",
            f"both must be in [0, 1), not {list(self.adam_betas)}",
        )
        for field in ("weight_decay", "kl"):
            require(getattr(self, field) >= 0, field, "must not be negative")
        require_at_most(self, MOST_IN_BATCH, "micro_batch")
        require_at_most(self, MOST_REPEATS, "nft_times")
