"""The section `training` of a job: the update rule and its optimizer.

A field's docstring ends with its unit in square brackets, where it has one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec

from spotlight.errors import JobError
from spotlight.jobs.fields import (
    MOST_IN_BATCH,
    Decay,
    GuidanceScale,
    Positive,
    Section,
    Weight,
    require,
)
from spotlight.jobs.losses import LOSSES, default_advantage_clip, name_problem, read_options


class TrainingSpec(Section, frozen=True, kw_only=True):
    """The update rule and its optimizer (AdamW)."""

    loss: str = "diffusion_nft"
    """The update rule: `diffusion_nft` or `awm`; `flow_grpo` or `grpo_guard`, which need a sampler
    that adds noise; the name of an entry point of the group `spotlight.losses`; or
    `module:Class`, whose package the operator of coordinator and nodes allowed (`--allow-code`)."""
    options: Mapping[str, Any] = {}
    """Settings of the loss, of which each has its own; a loss of your own may have some too."""
    guidance: GuidanceScale | None = None
    """Classifier-free guidance scale of the forward passes that are trained. When absent, it is 1
    with losses that noise samples anew (`diffusion_nft`, `awm`): only rollouts are guided, and
    training takes half the time and memory that it takes with guidance. It is `sampler.guidance`
    with losses that replay the sampler's steps, which take no other, and where guidance is an input
    of the transformer, which costs nothing. More than 1 is for a model that shall only ever be used
    with guidance."""
    ranks: Annotated[int, msgspec.Meta(ge=1)] = 1
    """Trainer ranks, each a worker of the reserved pool; they share every batch. [workers]"""
    sharded: bool = False
    """Share out weights, gradients, optimizer and averages over the trainer ranks (FSDP2). It
    is for models that one accelerator cannot train whole. Only with `model.tuning: full`; a single
    rank has everything."""
    cpu_offload: bool = False
    """Keep the float32 weights, their gradient, the optimizer, averages and references in host
    memory, and step there: the accelerator has what computes. Slower; only with `model.tuning:
    full`, and with `training.sharded` where there are several ranks. It is for models that the
    accelerators can compute, but not hold with all that training keeps."""
    slices: Annotated[int, msgspec.Meta(ge=1, le=64)] = 1
    """Each rank's share of an update is divided into so many parts at most, whose gradients any
    worker may compute; with 1, trainer ranks compute everything themselves. More is for jobs whose
    spot GPUs shall help to train: the weights of an update have the same bits whoever helps, and a
    lost worker costs one part. Not with `training.sharded`. [slices]"""
    updates_per_iteration: Annotated[int, msgspec.Meta(ge=1)] = 2
    """Optimizer steps per iteration; the samples are divided among them. [steps]"""
    micro_batch: Annotated[int, msgspec.Meta(ge=1, le=MOST_IN_BATCH)] = 32
    """Samples in one forward and backward pass. [samples]"""
    activation_checkpointing: bool = False
    """Whether a backward pass computes every block of the transformer a second time instead of
    keeping all that its forward pass made: the same gradients to the bit in a fraction of the
    memory, for the time of one more forward pass."""
    learning_rate: Annotated[
        float, msgspec.Meta(gt=0, le=1, extra={"hint": "usual ones are 1e-6 to 1e-3"})
    ] = 3e-4
    """AdamW's step size, after the warm-up."""
    learning_rate_schedule: Literal["constant", "linear", "cosine"] = "constant"
    """How the learning rate changes after the warm-up: `linear` and `cosine` fall to 0 at the end
    of the job."""
    warmup_updates: Annotated[int, msgspec.Meta(ge=0)] = 0
    """Optimizer steps in which the learning rate rises from nearly 0 to its full value. [steps]"""
    weight_decay: Weight = 1e-4
    """AdamW's decoupled weight decay. It is for recipes that name one."""
    adam_betas: tuple[Decay, Decay] = (0.9, 0.999)
    """AdamW's decay of the first and the second moment. They are for recipes that name some."""
    gradient_clip: Positive = 1.0
    """Largest norm of the whole gradient. Less is for losses whose gradient jumps."""
    advantage_baseline: Literal["mean", "median"] = "mean"
    """What a sample's reward is compared with: the mean or the median of its prompt group. The
    median is for groups in which one sample is far from all others."""
    advantage_std: Literal["global", "group"] = "global"
    """Whether advantages are divided by the standard deviation over the iteration or over each
    prompt group. `group` is for DanceGRPO."""
    advantage_clip: Positive | None = None
    """Advantages are clipped to this absolute value. With the mean as baseline they are then
    centred again, so that those of a prompt group sum to 0. When absent it is 5 with `flow_grpo`,
    `grpo_guard` and `awm`, and otherwise 1: it is also how strongly DiffusionNFT is pulled back to
    its old policy."""
    variance_share: Annotated[float, msgspec.Meta(gt=0, le=1)] = 1.0
    """Only the prompt groups whose rewards vary most are trained on: the fewest that together have
    this share of the variances of all groups. 1 trains on all groups, those without contrast too.
    It is for jobs with many groups that hardly contrast: an update takes less time, and less noise
    comes into it."""
    ema_decay: Decay = 0.9
    """Decay per optimizer step of the averaged weights (EMA) that validation uses."""
    rollout_decay: Decay = 0.0
    """The old policy of DiffusionNFT, AWM and GRPO-Guard (of Flow-GRPO only with
    `exploration.reuse`), which then rolls out: `old <- d*old + (1-d)*new` at each publication. 0
    rolls out with the newest weights; DiffusionNFT then needs several updates per iteration."""
    rollout_decay_after: Annotated[int, msgspec.Meta(ge=0)] = 0
    """Optimizer steps for which `d` stays 0. It is for DiffusionNFT's recipe for OCR. [steps]"""
    rollout_decay_growth: Positive | None = None
    """How much `d` grows with each further optimizer step, up to `rollout_decay`; when absent, `d`
    is `rollout_decay` at once. DiffusionNFT's authors use 0.999, 75 and 0.0075 for OCR."""
    kl: Weight = 0.0
    """Weight of the distance to the initial weights; 0 keeps no reference model. It is for jobs
    that must stay near the checkpoint, such as those of AWM's authors."""
    patience_s: Positive = 60.0
    """How long a trainer rank may be unreachable before others take over from the state that it
    left. A rank whose process has ended is replaced at once. More is for networks that are often
    interrupted. [seconds]"""

    def __post_init__(self) -> None:
        problem = name_problem(self.loss)
        require(problem is None, "loss", str(problem))
        require(
            self.slices == 1 or not self.sharded,
            "slices",
            f"must be 1, not {self.slices}, with `training.sharded: true`: a shared-out model"
            " computes a gradient on all of its ranks at once",
        )
        if self.loss in LOSSES:
            msgspec.structs.force_setattr(self, "options", self._completed())

    def _completed(self) -> dict[str, Any]:
        """The options with those that the job leaves out, so that a run keeps to what they were."""
        try:
            found = read_options(self.loss, self.options, LOSSES[self.loss].options)
        except JobError as error:
            raise ValueError(f"{error.path}|{error.problem}") from error
        return msgspec.structs.asdict(found)

    @property
    def largest_advantage(self) -> float:
        """`advantage_clip`; where it is absent, what suits the loss."""
        return self.advantage_clip or default_advantage_clip(self.loss)
