"""JobSpec: what a user may ask for, as YAML.

Every field is typed and validated when the job is loaded, before any process starts. An error names
the path of the field (`sampler.steps`), what is wrong and what to do. A field's docstring ends with
its unit in square brackets, where it has one. This module imports neither torch nor diffusers;
whether the checkpoint and the scorer are really there is checked by `spotlight.preflight`.
"""

from __future__ import annotations

import difflib
import math
import re
from pathlib import Path
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec
import yaml

from spotlight.errors import JobError, UnreadableFile
from spotlight.files import MEBIBYTE, path_problem, read_text
from spotlight.plain_yaml import PlainYAMLError, read_yaml

SamplerKind = Literal["ode", "flow_sde", "cps"]

# Limits are far above what trains, and below what would fill the memory of a machine: a number with
# a few zeros too many is refused here, and not found out by an hour of waiting.
LARGEST_JOB_FILE = MEBIBYTE
"""Bytes of a job file, or of a run folder's config.yaml: one with every field has some three
thousand."""
_MOST_STEPS = 1000
"""Denoising steps: the schedules of flow-matching models are trained with so many."""
_MOST_PIXELS = 4096 * 4096
"""Of an image."""
_MOST_IN_BATCH = 4096
"""Images in one forward pass."""
_MOST_SAMPLES = 16_384
"""In an iteration: the order to train names each of them, in one frame of 16 MiB."""
_MOST_PREVIEWS = 262_144
"""In an iteration: the coordinator holds a request for each."""
_MOST_ITERATIONS = 1_000_000
_MOST_REPEATS = 1000
"""Images of a prompt, draws of a sample, tries of a batch."""
_MOST_TARGETS = 1000
"""Modules with adapters, when each layer is named for itself."""
_MOST_FILES = 32
"""Files of metadata."""
_GREATEST_RANK = 8192
"""Of adapters, and their scale: the layers that they adapt are hardly larger."""
_MOST_THREADS = 256
MOST_WORKERS_OF_NODE = 256
"""Far more than accelerators fit into a machine."""
_MOST_WORKERS = 1024
"""On this machine: each is a process."""


class _Spec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One section of a job."""


def _require(condition: bool, field: str, problem: str) -> None:
    """Raise a `ValueError` that `load_job` turns into a `JobError` with the full path."""
    if not condition:
        raise ValueError(f"{field}|{problem}")


def _require_at_most(section: _Spec, most: int, *fields: str) -> None:
    for field in fields:
        value = getattr(section, field)
        if value is not None:
            _require(value <= most, field, f"must be at most {most:,}, not {value:,}")


def _require_path(field: str, value: str) -> None:
    problem = path_problem(value)
    _require(problem is None, field, str(problem))


class LoraSpec(_Spec, frozen=True, kw_only=True):
    """Low-rank adapters (peft) instead of full fine-tuning."""

    rank: int = 16
    """Rank of each adapter."""
    alpha: int = 32
    """Scale: the adapter's output is multiplied by `alpha / rank`."""
    targets: tuple[str, ...] = (
        "to_q",
        "to_k",
        "to_v",
        "to_out.0",
        "add_q_proj",
        "add_k_proj",
        "add_v_proj",
        "to_add_out",
        "img_mlp.net.0.proj",
        "img_mlp.net.2",
        "txt_mlp.net.0.proj",
        "txt_mlp.net.2",
    )
    """Module names that get an adapter; the default is Flow-GRPO's list for Qwen-Image."""

    def __post_init__(self) -> None:
        _require(self.rank >= 1, "rank", f"must be at least 1, not {self.rank}")
        _require(self.alpha >= 1, "alpha", f"must be at least 1, not {self.alpha}")
        _require(bool(self.targets), "targets", "name at least one module")
        _require_at_most(self, _GREATEST_RANK, "rank", "alpha")
        _require(len(self.targets) <= _MOST_TARGETS, "targets", f"name at most {_MOST_TARGETS:,}")
        for target in self.targets:
            _require(
                re.fullmatch(r"[A-Za-z0-9_.]{1,200}", target) is not None,
                "targets",
                "name modules by letters, digits, `_` and `.`, with 200 characters at most",
            )


class ModelSpec(_Spec, frozen=True, kw_only=True):
    """The model to post-train."""

    checkpoint: str
    """A folder in diffusers layout, or `builtin:NAME` for one that ships with Spotlight."""
    tuning: Literal["full", "lora"] = "full"
    """Train all weights of the transformer, or low-rank adapters only."""
    lora: LoraSpec = LoraSpec()
    """The adapters; unused by `full`."""

    def __post_init__(self) -> None:
        _require_path("checkpoint", self.checkpoint)


class PromptsSpec(_Spec, frozen=True, kw_only=True):
    """Which prompts to train on and which to validate on: text files, one prompt a line, or
    GenEval's metadata in files that end in `.jsonl`."""

    train: str
    """A path (relative to the job file), or `builtin:NAME`."""
    validation: str
    """Prompts that must not occur in `train`."""
    per_iteration: int = 8
    """Prompt groups in one iteration. [prompts]"""

    def __post_init__(self) -> None:
        _require(self.per_iteration >= 1, "per_iteration", "must be at least 1")
        for field in ("train", "validation"):
            _require_path(field, getattr(self, field))


class WindowSpec(_Spec, frozen=True, kw_only=True):
    """The SDE window of Flow-GRPO-Fast: noise is added, and trained on, only inside it."""

    length: int = 2
    """Stochastic steps. [steps]"""
    earliest: int = 0
    """First step, counted from 0, at which the window may start."""
    latest: int = 4
    """The window starts before `latest - length + 1`; its start is drawn once per iteration for all
    samples."""

    def __post_init__(self) -> None:
        _require(self.length >= 1, "length", "must be at least 1")
        _require(self.earliest >= 0, "earliest", "must not be negative")
        _require(
            self.latest - self.length >= self.earliest,
            "latest",
            f"no room for {self.length} steps from {self.earliest} on; raise `latest`",
        )
        _require_at_most(self, _MOST_STEPS, "latest")


class SamplerSpec(_Spec, frozen=True, kw_only=True):
    """How images are denoised."""

    height: int
    """Height of the images. [pixels]"""
    width: int
    """Width of the images. [pixels]"""
    kind: SamplerKind = "ode"
    """`ode` adds no noise; `flow_sde` and `cps` add it inside the window, as Flow-GRPO needs."""
    steps: int = 8
    """Denoising steps of a rollout. [steps]"""
    evaluation_steps: int | None = None
    """Denoising steps of validation images; the rollout's when absent. [steps]"""
    shift: float | None = None
    """Schedule shift; the checkpoint's scheduler decides when absent."""
    guidance: float = 1.0
    """True classifier-free guidance scale; 1 means none."""
    noise_level: float = 0.7
    """`a` of Flow-SDE and CPS, how much noise a step draws anew: with `cps` at most 1, which is all
    of it; unused by `ode`."""
    window: WindowSpec = WindowSpec()
    """Where Flow-SDE and CPS add noise; unused by `ode`."""
    micro_batch: int = 8
    """Every forward pass runs at this batch size, padded when short, so that kernels never depend
    on the load. [images]"""
    degree: Literal["auto"] | int = "auto"
    """SP degree: how many workers of a node denoise one micro-batch together. `auto` does what is
    predicted to finish most, and is 1 with `exploration.budget: fixed`, since degrees differ in the
    last bit; a number is kept to wherever a node has so many. [workers]"""

    def __post_init__(self) -> None:
        for field in ("height", "width"):
            _require(getattr(self, field) >= 1, field, "must be at least 1 pixel")
        _require(self.steps >= 1, "steps", f"must be at least 1, not {self.steps}")
        _require(
            self.evaluation_steps is None or self.evaluation_steps >= 1,
            "evaluation_steps",
            "must be at least 1",
        )
        _require(self.shift is None or self.shift > 0, "shift", "must be positive")
        _require(self.guidance >= 1, "guidance", "must be at least 1 (1 means no guidance)")
        _require(self.noise_level >= 0, "noise_level", "must not be negative")
        _require(
            self.kind != "cps" or self.noise_level <= 1,
            "noise_level",
            f"must be in [0, 1] with `cps`, not {self.noise_level}: a step draws the part"
            " sin(noise_level * pi / 2) of its noise anew, and 1 is all of it; its authors use 0.8",
        )
        _require(self.micro_batch >= 1, "micro_batch", "must be at least 1 image")
        _require(
            self.degree == "auto" or self.degree >= 1,
            "degree",
            f"must be `auto` or at least 1, not {self.degree}",
        )
        _require(
            self.height * self.width <= _MOST_PIXELS,
            "height" if self.height >= self.width else "width",
            f"{self.width:,} x {self.height:,} pixels are more than an image may have"
            f" ({_MOST_PIXELS:,})",
        )
        _require_at_most(self, _MOST_STEPS, "steps", "evaluation_steps")
        _require_at_most(self, _MOST_IN_BATCH, "micro_batch")
        if self.degree != "auto":
            _require_at_most(self, _MOST_WORKERS, "degree")
        if self.kind != "ode":
            _require(
                self.window.latest < self.steps,
                "window.latest",
                f"must be below steps ({self.steps}): the last step is never trained",
            )


class RewardSpec(_Spec, frozen=True, kw_only=True):
    """How images are scored."""

    kind: Literal["ocr", "compositional"] = "ocr"
    """The scorer: `ocr` reads the text in the image and compares it with the quoted text of the
    prompt; `compositional` checks number, colour and position of circles, squares and triangles."""
    metadata: tuple[str, ...] = ()
    """Files of GenEval's metadata (JSONL), together with a line for every prompt: what its image
    must show. Named like prompts; `compositional` needs them, `ocr` does not use them."""
    attempts: int = 3
    """How often a batch is scored before its failure counts. [tries]"""
    on_failure: Literal["drop_group", "stop"] = "drop_group"
    """What a failed scorer does to the prompt groups that it could not score; it never becomes a
    reward of 0."""

    def __post_init__(self) -> None:
        _require(self.attempts >= 1, "attempts", "must be at least 1")
        _require(
            self.kind != "compositional" or bool(self.metadata),
            "metadata",
            "`compositional` needs files that say what the images must show; name them, in"
            " GenEval's format",
        )
        _require_at_most(self, _MOST_REPEATS, "attempts")
        _require(len(self.metadata) <= _MOST_FILES, "metadata", f"name at most {_MOST_FILES} files")
        for name in self.metadata:
            _require_path("metadata", name)


class TrainingSpec(_Spec, frozen=True, kw_only=True):
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
            _require(
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
            _require(
                getattr(self, field) > 0, field, f"must be positive, not {getattr(self, field)}"
            )
        for field in ("ema_decay", "rollout_decay"):
            _require(0 <= getattr(self, field) < 1, field, "must be in [0, 1)")
        _require(
            all(0 <= beta < 1 for beta in self.adam_betas),
            "adam_betas",
            f"both must be in [0, 1), not {list(self.adam_betas)}",
        )
        for field in ("weight_decay", "kl"):
            _require(getattr(self, field) >= 0, field, "must not be negative")
        _require_at_most(self, _MOST_IN_BATCH, "micro_batch")
        _require_at_most(self, _MOST_REPEATS, "nft_times")


class ExplorationSpec(_Spec, frozen=True, kw_only=True):
    """What spot workers do while reserved workers train."""

    mode: Literal["none", "random", "uniform", "bandit"] = "uniform"
    """`bandit` gives more previews to the prompts whose rewards it expects to spread most by them;
    `uniform` gives every prompt of the next iteration the same number; `random` does so too, but
    keeps any of them, for comparison; `none` lets spot workers wait."""
    budget: Literal["window", "fixed"] = "window"
    """`window` explores until training is predicted to end; `fixed` previews `candidates` per kept
    seed, however long that takes, which makes a run repeatable bit for bit unless groups of several
    workers (`sampler.degree`) lose members."""
    weights: Literal["previous", "fresh"] = "previous"
    """`previous` explores while the reserved workers train, with the weights that there are by
    then. `fresh` explores between publication and rollout, with the new weights and all workers,
    while nothing else goes on: for comparison. With as many `preview_steps` as a rollout has,
    previews are then the samples themselves, and no choice of seeds is better."""
    candidates: int = 4
    """Most previews per kept seed. [previews]"""
    effort: Literal["fixed", "auto"] = "fixed"
    """`auto` lets a slow bandit choose for each iteration between `preview_steps`, half and all of
    a rollout's steps, and between `prompt_pool` and no pool, by the contrast that samples then
    have; `fixed` keeps to what the job names."""
    prompt_pool: int = 1
    """So many times the prompts of an iteration are explored, and share its previews; training
    takes those of them whose kept seeds contrast most. [times]"""
    preview_steps: int | None = None
    """Denoising steps of a preview; the rollout's when absent. [steps]"""
    probes: int = 4
    """Previewed seeds, drawn at random, that each iteration regenerates whether or not they were
    chosen, to see whether previews predict rewards; exploration shrinks, or stops, when they do
    not, or when the kept seeds do not contrast as their previews did. [images]"""

    def __post_init__(self) -> None:
        _require(self.candidates >= 1, "candidates", f"must be at least 1, not {self.candidates}")
        _require(
            self.budget == "fixed" or self.weights == "previous",
            "budget",
            "must be `fixed` with fresh weights: no training goes on then whose time could be used",
        )
        _require(
            1 <= self.prompt_pool <= self.candidates,
            "prompt_pool",
            f"must be between 1 and `candidates` ({self.candidates}), not {self.prompt_pool}: a"
            " prompt needs as many previews as it has samples",
        )
        _require(
            self.prompt_pool == 1 or self.mode != "random",
            "prompt_pool",
            "must be 1 with mode `random`: prompts would be chosen by their previews",
        )
        _require(
            self.probes == 0 or self.probes >= 2,
            "probes",
            f"must be 0, or at least 2 to be compared, not {self.probes}",
        )
        _require(
            self.preview_steps is None or self.preview_steps >= 1,
            "preview_steps",
            "must be at least 1",
        )
        _require_at_most(self, _MOST_REPEATS, "candidates")
        _require_at_most(self, _MOST_PREVIEWS, "probes")


class ValidationSpec(_Spec, frozen=True, kw_only=True):
    """Held-out prompts, always with the same seeds."""

    seeds: int = 4
    """Images per validation prompt. [images]"""
    every: int = 5
    """Iterations between validations; the first and the last weights are always validated.
    [iterations]"""

    def __post_init__(self) -> None:
        _require(self.seeds >= 1, "seeds", "must be at least 1")
        _require(self.every >= 1, "every", "must be at least 1")
        _require_at_most(self, _MOST_REPEATS, "seeds")
        _require_at_most(self, _MOST_ITERATIONS, "every")


class PoolSpec(_Spec, frozen=True, kw_only=True):
    """Nodes that `spotlight run` starts on this machine; on a cluster nodes join by themselves."""

    nodes: int = 1
    """Nodes, each one process. [nodes]"""
    workers: int = 1
    """Workers on each node, one per accelerator or CPU slot. [workers]"""

    def __post_init__(self) -> None:
        _require(self.nodes >= 0, "nodes", "must not be negative")
        _require(self.workers >= 1, "workers", "must be at least 1")
        _require_at_most(self, _MOST_WORKERS, "nodes")
        _require_at_most(self, MOST_WORKERS_OF_NODE, "workers")


class PoolsSpec(_Spec, frozen=True, kw_only=True):
    """The reserved and the spot pool; used by `spotlight run` only."""

    reserved: PoolSpec = PoolSpec()
    """Nodes that stay: they train, and roll out when they do not train."""
    spot: PoolSpec = PoolSpec()
    """Nodes that may go at any time: they roll out, and explore while the others train."""


class JobSpec(_Spec, frozen=True, kw_only=True):
    """One post-training run."""

    name: str
    """Names the run folder; letters, digits, `.`, `_` and `-`."""
    model: ModelSpec
    """The model to post-train."""
    prompts: PromptsSpec
    """What to draw."""
    sampler: SamplerSpec
    """How to denoise."""
    seed: int = 0
    """Decides every random choice of the run."""
    iterations: int = 40
    """Turns of rollout, score and train. [iterations]"""
    group_size: int = 8
    """Samples per prompt group: the seeds that are kept and trained on. [samples]"""
    checkpoint_every: int = 5
    """Iterations between checkpoints; the last iteration is always saved. [iterations]"""
    threads: int = 1
    """CPU threads that each worker computes with. A job says it, since other numbers may round
    differently: a run with equal bits has equal threads everywhere. [threads]"""
    reward: RewardSpec = RewardSpec()
    """How images are scored."""
    training: TrainingSpec = TrainingSpec()
    """How the weights are updated."""
    exploration: ExplorationSpec = ExplorationSpec()
    """What spot workers do while reserved workers train."""
    validation: ValidationSpec = ValidationSpec()
    """How progress is measured."""
    pools: PoolsSpec = PoolsSpec()
    """What `spotlight run` starts on this machine."""

    def __post_init__(self) -> None:
        _require(
            re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", self.name) is not None,
            "name",
            "use letters, digits, `.`, `_` and `-` only, 64 characters at most",
        )
        _require(0 <= self.seed < 2**63, "seed", "must be in [0, 2^63)")
        _require(self.iterations >= 1, "iterations", f"must be at least 1, not {self.iterations}")
        _require(
            self.group_size >= 2,
            "group_size",
            f"must be at least 2, not {self.group_size}: an advantage compares samples "
            "of one prompt",
        )
        _require(self.checkpoint_every >= 1, "checkpoint_every", "must be at least 1")
        _require_at_most(self, _MOST_ITERATIONS, "iterations", "checkpoint_every")
        _require(self.threads >= 1, "threads", "must be at least 1")
        _require_at_most(self, _MOST_THREADS, "threads")
        pools = (self.pools.reserved, self.pools.spot)
        workers = sum(pool.nodes * pool.workers for pool in pools)
        _require(
            workers <= _MOST_WORKERS,
            "pools",
            f"{workers:,} workers are more than one machine starts ({_MOST_WORKERS:,})",
        )
        samples = self.samples_per_iteration
        _require(
            samples <= _MOST_SAMPLES,
            "group_size",
            f"{self.prompts.per_iteration:,} prompts x {self.group_size:,} are {samples:,} samples"
            f" in an iteration, but at most {_MOST_SAMPLES:,} can be; lower it or"
            " `prompts.per_iteration`",
        )
        previews = samples * self.exploration.candidates
        _require(
            previews <= _MOST_PREVIEWS,
            "exploration.candidates",
            f"{previews:,} previews in an iteration are more than can be ({_MOST_PREVIEWS:,});"
            " lower it",
        )
        preview_steps = self.exploration.preview_steps or self.sampler.steps
        _require(
            preview_steps <= self.sampler.steps or self.exploration.mode == "none",
            "exploration.preview_steps",
            f"must be at most `sampler.steps` ({self.sampler.steps}), not {preview_steps}: a"
            " preview is there to be cheap",
        )
        _require(
            samples % (self.training.updates_per_iteration * self.training.ranks) == 0,
            "training.updates_per_iteration",
            f"{samples} samples cannot be dealt out evenly over "
            f"{self.training.updates_per_iteration} updates and {self.training.ranks} ranks",
        )
        if self.training.loss == "diffusion_nft":
            _require(
                self.training.updates_per_iteration > 1 or self.training.rollout_decay > 0,
                "training.rollout_decay",
                "must be above 0 with 1 update per iteration: DiffusionNFT would train only where"
                " it equals its old policy, where nothing holds it, and unlearn to a reward of 0"
                " within some 20 iterations; use 0.1, or 2 for `training.updates_per_iteration`",
            )
        if self.training.loss == "flow_grpo":
            _require(
                self.sampler.kind != "ode",
                "sampler.kind",
                "flow_grpo needs a stochastic sampler: use `flow_sde` or `cps`",
            )
            _require(
                self.sampler.noise_level > 0,
                "sampler.noise_level",
                "must be above 0 with flow_grpo, which learns from noise alone; its authors use 0.7"
                " with `flow_sde` and 0.8 with `cps`",
            )
            rollout, replay = self.sampler.micro_batch, self.training.micro_batch
            _require(
                rollout >= 4 or rollout == replay,
                "sampler.micro_batch",
                f"must be at least 4, or {replay} as `training.micro_batch` is, not {rollout}: "
                "kernels choose otherwise for small batches, and flow_grpo replays samples exactly",
            )

    @property
    def degree(self) -> Literal["auto"] | int:
        """SP degree: 1 where `auto` would let it depend on time which bits a repeatable run has."""
        degree = self.sampler.degree
        return 1 if degree == "auto" and self.exploration.budget == "fixed" else degree

    @property
    def explored_prompts(self) -> int:
        """Prompt groups of one iteration from which exploration chooses those to train on."""
        pool = 1 if self.exploration.mode == "none" else self.exploration.prompt_pool
        return pool * self.prompts.per_iteration

    @property
    def samples_per_iteration(self) -> int:
        """Prompt groups times group size."""
        return self.prompts.per_iteration * self.group_size


def load_job(path: Path) -> JobSpec:
    """Read a job from a YAML file; relative prompt and checkpoint paths become absolute.

    Raises `JobError` with the path of the field (or of the file) and what to do.
    """
    try:
        text = read_text(path, most=LARGEST_JOB_FILE)
    except UnreadableFile as error:
        raise JobError(str(path), f"{error.problem}; give the path of a job file (YAML)") from error
    return parse_job(text, source=str(path), base=path.parent)


def parse_job(text: str, *, source: str = "job", base: Path | None = None) -> JobSpec:
    """Parse and validate a job. `base` is the folder that relative paths start from."""
    try:
        data = read_yaml(text)
    except PlainYAMLError as error:
        raise JobError(source, str(error)) from error
    if not isinstance(data, dict):
        raise JobError(source, "must hold a mapping with `name`, `model`, `prompts` and `sampler`")
    job = job_from_data(data)
    return _resolve_paths(job, base) if base else job


def job_from_data(data: dict[str, Any]) -> JobSpec:
    """Validate a job given as plain data; raises `JobError`."""
    _refuse_unknown_keys(data, JobSpec, "")
    try:
        return msgspec.convert(data, JobSpec)
    except msgspec.ValidationError as error:
        raise _job_error(str(error)) from error


def job_to_yaml(job: JobSpec) -> str:
    """The whole job, defaults included, as YAML."""
    return yaml.safe_dump(msgspec.to_builtins(job), sort_keys=False)


def _resolve_paths(job: JobSpec, base: Path) -> JobSpec:
    def absolute(field: str, value: str) -> str:
        if value.startswith("builtin:"):
            return value
        try:
            path = str((base / Path(value).expanduser()).resolve())
        except (OSError, RuntimeError) as error:  # no such user; links in a circle
            raise JobError(field, f"`{value}` leads nowhere; write the whole path") from error
        problem = path_problem(path)
        if problem is not None:
            raise JobError(field, f"`{value}` leads to a path that {problem}")
        return path

    return msgspec.structs.replace(
        job,
        model=msgspec.structs.replace(
            job.model, checkpoint=absolute("model.checkpoint", job.model.checkpoint)
        ),
        prompts=msgspec.structs.replace(
            job.prompts,
            train=absolute("prompts.train", job.prompts.train),
            validation=absolute("prompts.validation", job.prompts.validation),
        ),
        reward=msgspec.structs.replace(
            job.reward,
            metadata=tuple(absolute("reward.metadata", name) for name in job.reward.metadata),
        ),
    )


def _refuse_unknown_keys(data: dict[str, Any], spec: type[msgspec.Struct], prefix: str) -> None:
    hints = get_type_hints(spec)
    for key, value in data.items():
        path = f"{prefix}{key}"
        if key not in hints:
            close = difflib.get_close_matches(str(key), list(hints), n=1)
            advice = (
                f"did you mean `{close[0]}`?"
                if close
                else f"known here: {', '.join(sorted(hints))}"
            )
            raise JobError(path, f"unknown key; {advice}")
        if isinstance(value, float) and not math.isfinite(value):
            raise JobError(path, f"must be a finite number, not {value}")
        if isinstance(value, int) and not -(2**63) <= value < 2**63:
            raise JobError(path, "must be a number of 64 bits at most")
        section = _section_type(hints[key])
        if section is not None and isinstance(value, dict):
            _refuse_unknown_keys(value, section, f"{path}.")


def _section_type(hint: Any) -> type[msgspec.Struct] | None:
    for option in _options(hint):
        if isinstance(option, type) and issubclass(option, msgspec.Struct):
            return option
    return None


def _options(hint: Any) -> tuple[Any, ...]:
    """The types that a union is of; a type itself if it is none."""
    return get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)


def _choices(path: str) -> str:
    """What the field at a path may say, in words."""
    hint: Any = JobSpec
    for name in path.split("."):
        hint = get_type_hints(_section_type(hint) or JobSpec)[name]
    words = [
        f"`{choice}`"
        for option in _options(hint)
        if get_origin(option) is Literal
        for choice in get_args(option)
    ]
    if int in _options(hint):
        words.append("a whole number")
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"


def _job_error(message: str) -> JobError:
    """Turn msgspec's "problem - at `$.a.b`" into a path and a problem."""
    problem, _, where = message.partition(" - at `$")
    path = where.rstrip("`").lstrip(".")
    marked = re.match(r"([a-z_.]+)\|", problem)  # msgspec's own messages say `int | null`
    if marked:
        field, problem = marked[1], problem[marked.end() :]
        path = f"{path}.{field}" if path else field
    missing = re.search(r"missing required field `(\w+)`", problem)
    if missing:
        return JobError(f"{path}.{missing[1]}" if path else missing[1], "is missing; add it")
    other = re.fullmatch(r"Invalid enum value '(.*)'", problem, flags=re.DOTALL)
    if other:
        return JobError(path, f"must be {_choices(path)}, not `{other[1]}`")
    return JobError(path or "job", problem[:1].lower() + problem[1:])
