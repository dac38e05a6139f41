"""The sections of a job that have no file of their own: model, prompts, exploration, validation,
pools.

A field's docstring ends with its unit in square brackets, where it has one.
"""

from __future__ import annotations

import re
from typing import Annotated, Literal

import msgspec

from spotlight.files import text_problem
from spotlight.jobs.fields import (
    GREATEST_RANK,
    HIGHEST_BUDGET,
    LARGEST_REWARD,
    LONGEST_PROMPT,
    MOST_ITERATIONS,
    MOST_PREVIEWS,
    MOST_REPEATS,
    MOST_TARGETS,
    MOST_WORKERS,
    MOST_WORKERS_OF_NODE,
    GuidanceScale,
    Section,
    require,
    require_path,
)
from spotlight.jobs.hub_names import HUB, HubName
from spotlight.jobs.rewards import RewardSpec
from spotlight.types import Quantize, Solver


def _require_hub_name(field: str, name: str) -> None:
    require(
        not name.startswith(HUB) or HubName.parse(name) is not None,
        field,
        "is no name of the hub; write `hf:ORGANISATION/NAME`, perhaps with `@REVISION`",
    )


class LoraSpec(Section, frozen=True, kw_only=True):
    """Low-rank adapters (peft) instead of full fine-tuning."""

    rank: Annotated[int, msgspec.Meta(ge=1, le=GREATEST_RANK)] = 16
    """Rank of each adapter."""
    alpha: Annotated[int, msgspec.Meta(ge=1, le=GREATEST_RANK)] = 32
    """Scale: the adapter's output is multiplied by `alpha / rank`."""
    targets: (
        Annotated[tuple[str, ...], msgspec.Meta(min_length=1, max_length=MOST_TARGETS)] | None
    ) = None
    """Module names that get an adapter; the list of the checkpoint's family when absent, which is
    Flow-GRPO's where it has one. It is for adapting other layers than Flow-GRPO's authors did."""

    def __post_init__(self) -> None:
        for target in self.targets or ():
            require(
                re.fullmatch(r"[A-Za-z0-9_.]{1,200}", target) is not None,
                "targets",
                "name modules by letters, digits, `_` and `.`, with 200 characters at most",
            )


class ModelSpec(Section, frozen=True, kw_only=True):
    """The model to post-train."""

    checkpoint: str
    """A folder in diffusers layout, `hf:ORGANISATION/NAME@REVISION` for one of the Hugging Face
    hub, or `builtin:NAME` for one that ships with Spotlight. A revision is a branch, a tag or a
    commit, `main` when absent; a run keeps to the commit that it meant when the job began."""
    tuning: Literal["full", "lora"] = "full"
    """Train all weights of the transformer, or only low-rank adapters."""
    lora: LoraSpec = LoraSpec()
    """The adapters; unused by `full`."""
    quantize: Quantize = "none"
    """How the weights of the transformer that are not trained are kept on the accelerator: as they
    compute, in 8 bits (`fp8`, by torchao), or in 4 bits (`nf4`, by bitsandbytes, which needs a
    GPU). They are quantised while they are loaded, and rollouts have them like training. Only with
    `tuning: lora`. It is for transformers that are too large for the accelerator."""
    attention: Literal["native", "flash", "flash_varlen"] = "native"
    """The attention kernels, in rollouts and in training alike: those that torch chooses, or those
    of the package flash-attn, which only a GPU has. `flash` takes no mask, as Qwen-Image needs one;
    `flash_varlen` does. With flash-attn every worker denoises alone (`sampler.degree` is 1). It is
    for GPUs on which flash-attn is faster."""
    negative_prompt: Annotated[str, msgspec.Meta(max_length=LONGEST_PROMPT)] = " "
    """What guidance pushes away from, in rollouts, training and validation alike; Qwen-Image's
    authors recommend a single space. Unused where `sampler.guidance`, `training.guidance` and
    `validation.guidance` are 1. It is for jobs that use guidance."""
    guidance_2: GuidanceScale | None = None
    """The guidance scale of the second of two transformers, which denoises where there is less
    noise, wherever the first is guided: in rollouts, training and validation alike. When absent, it
    is that of the first. It is for Wan 2.2 A14B, whose authors guide its second transformer
    less."""
    start: str = ""
    """What the job begins with instead of the weights of the checkpoint: the averaged weights of a
    run (`RUN@best`, `RUN@last` or `RUN@ITERATION`; its best where only the folder is named), a
    folder with a transformer of diffusers, or a file or folder of adapters as diffusers or peft
    write them. It is for going on with what an earlier run, or somebody else, has trained."""
    start_optimizer: bool = False
    """Take the optimizer's moments over as well, and the newest weights beside their average. Only
    from a run, of the same loss and adapters. It is for going on where a run stood."""

    def __post_init__(self) -> None:
        require_path("checkpoint", self.checkpoint)
        require(
            not self.checkpoint.lower().endswith(".gguf"),
            "checkpoint",
            "is a GGUF file, which is not read: whoever trains must know how every number is"
            " kept; name the checkpoint in diffusers layout, and `model.quantize` keeps it in 8 or"
            " 4 bits",
        )
        require(
            self.quantize == "none" or self.tuning == "lora",
            "quantize",
            f"must be `none`, not `{self.quantize}`, with `model.tuning: full`: weights that are"
            " trained cannot be quantised; use `model.tuning: lora`",
        )
        if self.start:
            require_path("start", self.start)
        require(
            bool(self.start) or not self.start_optimizer,
            "start_optimizer",
            "needs `start`, with a run; leave it out",
        )
        _require_hub_name("checkpoint", self.checkpoint)
        problem = text_problem(self.negative_prompt, allowed="\n\t")
        require(problem is None, "negative_prompt", f"{problem}; remove it")


class PromptsSpec(Section, frozen=True, kw_only=True):
    """Prompts for training and for validation. A text file has one prompt per line, and nothing
    else. JSON lines have one object per line: its `prompt`, and metadata for the scorers."""

    train: str
    """A path (relative to the job file), or `builtin:NAME`."""
    validation: str
    """Prompts that must not occur in `train`."""
    per_iteration: Annotated[int, msgspec.Meta(ge=1)] = 8
    """Prompt groups in one iteration. [prompts]"""

    def __post_init__(self) -> None:
        for field in ("train", "validation"):
            require_path(field, getattr(self, field))


class ExplorationSpec(Section, frozen=True, kw_only=True):
    """What spot workers do while reserved workers train."""

    mode: Literal["none", "random", "uniform", "bandit"] = "uniform"
    """`bandit` gives more previews to the prompts that it expects to gain the most contrast of
    rewards. `uniform` gives every prompt of the next iteration the same number. `random` does so
    too, but keeps random seeds, for comparison. `none` lets spot workers wait."""
    budget: Literal["window", "fixed"] = "window"
    """`window` explores until training is predicted to end; `fixed` previews `candidates` per kept
    seed, however long that takes, which makes a run repeatable bit for bit unless groups of several
    workers (`sampler.degree`) lose members."""
    weights: Literal["previous", "fresh"] = "previous"
    """`previous` explores while the reserved workers train, with the newest weights that exist
    then. `fresh` explores between publication and rollout, with the new weights and all workers,
    while nothing else runs; it is for comparison. If `preview_steps` then equals the steps of a
    rollout, previews are the samples themselves: the chosen ones are trained on, none is denoised
    twice, and no choice of seeds is better."""
    candidates: Annotated[int, msgspec.Meta(ge=1, le=MOST_REPEATS)] = 4
    """Most previews per kept seed. [previews]"""
    prompt_pool: int = 1
    """How many times as many prompts may be explored as an iteration trains on. They share the
    iteration's previews, and training takes the prompts whose kept seeds contrast most. With
    `uniform` all of them are explored; `bandit` explores others only in place of prompts that turn
    out to be solved, or hopeless. It is for files of prompts of which many are solved, or hopeless.
    [times]"""
    preview_steps: Annotated[int, msgspec.Meta(ge=1)] | None = None
    """Denoising steps of a preview; the rollout's when absent. [steps]"""
    preview_solver: Solver | None = None
    """How a preview of fewer steps than a rollout takes them: `euler`, or `dpmpp_2m`, which is of
    second order from four steps on; as `sampler.solver` says when absent. It is for samples of many
    Euler steps, if previews of second order agree more with them, which probes tell."""
    preview_checkpoint: str = ""
    """Another model that makes the previews, such as one of AnyFlow for a Wan that is trained: a
    folder or a name as `model.checkpoint` is. It denoises in a few steps (`preview_steps`), without
    guidance and by Euler's method, and is not trained; its latents and its text encoder are those
    of the model that is. Previews of every `mode` but `none` may be its, but not with `reuse`. It
    is for models whose samples take many steps, as long as it agrees with them."""
    finish: Literal["newest", "previous"] = "newest"
    """The weights with which the chosen seeds are denoised in full. `newest` does so when training
    is over. `previous` does so while it goes on, with the weights of the previews, and trains on
    these samples one iteration old, as `reuse` does. Where previews agree too little with finished
    samples, they take all steps and are themselves trained on. It is for samples of many steps, and
    needs DiffusionNFT, `sampler.kind: ode` and fewer `preview_steps`."""
    reuse: bool = False
    """Train on the chosen previews themselves, which are made with the weights of the iteration
    before: nothing is denoised again, and training goes on at once. With `budget: window` and
    even numbers of prompts and updates, the later half of the groups is chosen while the first
    is trained. It needs DiffusionNFT, Flow-GRPO or GRPO-Guard, and previews with the steps of a
    rollout."""
    probes: Annotated[int, msgspec.Meta(ge=0, le=MOST_PREVIEWS)] = 4
    """Previewed seeds, drawn at random, that each iteration regenerates whether or not they were
    chosen, to see whether previews predict rewards; exploration shrinks, or stops, when they do
    not, or when the kept seeds contrast less than their previews promised. More are for rewards
    that are so noisy that four say little; 0 is for runs that must be compared with others of equal
    cost. [images]"""
    random_groups: Annotated[int, msgspec.Meta(ge=0, le=MOST_REPEATS)] = 1
    """Groups of random seeds that each iteration denoises beside training, and never trains on, so
    that the run itself measures how much wider the rewards of chosen seeds spread. They wait for
    idle time, unless there is none: then one is due whenever it costs 4 % of the previews' steps.
    Where previews are trained on, the first ones of each prompt are random seeds already. More are
    for short runs with idle spot workers; 0 is for runs that must be compared with others of equal
    cost. [groups]"""

    def __post_init__(self) -> None:
        require(
            self.budget == "fixed" or self.weights == "previous",
            "budget",
            "must be `fixed` with fresh weights: no training runs then whose time could be used",
        )
        require(
            1 <= self.prompt_pool <= self.candidates,
            "prompt_pool",
            f"must be between 1 and `candidates` ({self.candidates}), not {self.prompt_pool}: a"
            " prompt needs as many previews as it has samples",
        )
        require(
            self.prompt_pool == 1 or self.mode != "random",
            "prompt_pool",
            "must be 1 with mode `random`: prompts would be chosen by their previews",
        )
        require(
            self.probes != 1,
            "probes",
            "must be 0, or at least 2 to be compared, not 1",
        )
        require(
            not self.reuse or self._explores_ahead,
            "reuse",
            "needs previews that are made while training runs: another `mode` than `none`, and"
            " `weights: previous`",
        )
        self._require_preview_checkpoint()
        require(
            self.finish == "newest" or self._explores_ahead,
            "finish",
            "must be `newest` unless previews are made while training runs: with another `mode`"
            " than `none`, and `weights: previous`",
        )
        require(
            self.finish == "newest" or not self.reuse,
            "finish",
            "must be `newest` with `reuse: true`, where previews are trained on themselves; leave"
            " one of the two out",
        )

    def _require_preview_checkpoint(self) -> None:
        require(
            self.preview_solver is None or not self.preview_checkpoint,
            "preview_solver",
            "cannot be with `preview_checkpoint`, whose steps are Euler's; leave one of the two"
            " out",
        )
        if not self.preview_checkpoint:
            return
        require_path("preview_checkpoint", self.preview_checkpoint)
        _require_hub_name("preview_checkpoint", self.preview_checkpoint)
        require(
            self.mode != "none",
            "preview_checkpoint",
            "needs previews: another `mode` than `none`; or leave it out",
        )
        require(
            not self.reuse,
            "preview_checkpoint",
            "cannot be with `reuse: true`, which trains on previews of the trained model; leave one"
            " of the two out",
        )

    @property
    def _explores_ahead(self) -> bool:
        """Whether previews are made while the iteration before is trained."""
        return self.mode != "none" and self.weights == "previous"


class ValidationSpec(Section, frozen=True, kw_only=True):
    """Held-out prompts, always with the same seeds."""

    prompts: Annotated[int, msgspec.Meta(ge=1)] | None = None
    """How many of the validation prompts are used, spread evenly over the file; all when absent. It
    is for long files, of which a part says enough. [prompts]"""
    seeds: Annotated[int, msgspec.Meta(ge=1, le=MOST_REPEATS)] = 4
    """Images per validation prompt. [images]"""
    guidance: GuidanceScale | None = None
    """True classifier-free guidance scale of validation images, 1 for none; `sampler.guidance` when
    absent. It is for those who train without guidance and will use the model with it."""
    every: Annotated[int, msgspec.Meta(ge=1, le=MOST_ITERATIONS)] = 5
    """Iterations between validations; the first and the last weights are always validated.
    [iterations]"""
    rewards: tuple[RewardSpec, ...] = ()
    """Rewards that are measured and never trained on. When one of them falls beyond noise while the
    trained rewards rise, the model games its reward."""
    on_hacking: Literal["warn", "stop"] = "warn"
    """What the job does when a model games its reward; either way the best checkpoint by
    `validation.rewards` is kept. `stop` is for jobs that nobody watches."""
    target: Annotated[float, msgspec.Meta(ge=-LARGEST_REWARD, le=LARGEST_REWARD)] | None = None
    """The score that is aimed at: the report says what had been spent when a validation reached it
    first, and how much is left. The job goes on after it. It is for those who compare costs."""


class PoolSpec(Section, frozen=True, kw_only=True):
    """Nodes that `spotlight run` starts on this machine; on a cluster nodes join by themselves."""

    nodes: Annotated[int, msgspec.Meta(ge=0, le=MOST_WORKERS)] = 1
    """Nodes, each one process. [nodes]"""
    workers: Annotated[int, msgspec.Meta(ge=1, le=MOST_WORKERS_OF_NODE)] = 1
    """Workers on each node, one per accelerator or CPU slot. [workers]"""


class PoolsSpec(Section, frozen=True, kw_only=True):
    """The reserved and the spot pool; used by `spotlight run` only."""

    reserved: PoolSpec = PoolSpec()
    """Nodes that stay: they train, and roll out when they do not train."""
    spot: PoolSpec = PoolSpec()
    """Nodes that may go at any time: they roll out, and explore while the others train."""


class BudgetSpec(Section, frozen=True, kw_only=True):
    """What the run may cost. At 80 % of it people are warned, at 100 % the run stops, and can be
    gone on with: `spotlight resume RUN --set budget.usd=...`."""

    usd: Annotated[float, msgspec.Meta(gt=0, le=HIGHEST_BUDGET)] | None = None
    """Money for all GPU time of the run whose price is known, in the currency of `prices`; without
    limit when absent."""
    hours: Annotated[float, msgspec.Meta(gt=0, le=HIGHEST_BUDGET)] | None = None
    """Hours of run time; without limit when absent. [h]"""
