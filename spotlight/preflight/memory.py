"""How much memory the processes of a job need, by part: from the headers of a checkpoint's files.

Pure functions; nothing is loaded. Counted exactly: weights, what training keeps of every trained
number, and what a training pass keeps for its backward pass. About: what denoising, decoding and a
backward pass need for a moment. Assumed: what an accelerator's libraries and its allocator take.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

from spotlight.diffusion.activations import FLOAT32, Activations, Adapters, Pass
from spotlight.jobs import JobSpec, TrainingSpec
from spotlight.jobs.losses import LOSSES, NOISY_SAMPLERS, training_guidance
from spotlight.policies.spot_time import KEPT_GRADIENTS, MOST_GRADIENT_BYTES
from spotlight.preflight.checkpoint_facts import CheckpointInfo
from spotlight.preflight.scorers import scorer_bytes
from spotlight.types import Quantize

BFLOAT16 = 2
"""Bytes of a number."""
LIBRARIES = 2_000_000_000
"""Bytes of an accelerator that are taken by its libraries, or lie waste; an assumption."""
_WHOLE_BLOCKS = 2
"""Blocks of a sharded transformer that are whole: the one that computes, and the next one on its
way."""
_VERSIONS, _EVALUATIONS, _STATES = 2, 1, 2
"""What a node's store holds at the same time: weights to denoise with, averaged ones to validate
with, and states of training."""
_AHEAD = 1
"""Weights of samples that were made ahead, which may be lost, beside these."""
_LENT = 2
"""Weights of updates that it holds beside these, where others compute slices of them."""

_NF4_BLOCK = 64
"""Numbers that share a scale."""

_OF_A_SLICE = "gradient of a slice"

Phase = Literal["always", "starting", "encoding", "training", "denoising", "decoding"]
PHASES: tuple[Phase, ...] = get_args(Phase)


@dataclass(frozen=True)
class Part:
    """Something that takes memory."""

    name: str
    nbytes: int
    phase: Phase = "always"
    """When it is there; of the phases, one at a time."""


@dataclass(frozen=True)
class WorkerMemory:
    """Of one worker, on its accelerator."""

    parts: tuple[Part, ...]

    def in_phase(self, phase: Phase) -> int:
        """Bytes of what is there in a phase besides what always is."""
        return sum(part.nbytes for part in self.parts if part.phase == phase)

    @property
    def most(self) -> int:
        """Bytes at the worst time."""
        return self.in_phase("always") + max(map(self.in_phase, PHASES[1:]))


@dataclass(frozen=True)
class MemoryPlan:
    """What a job needs."""

    trainer: WorkerMemory
    """A worker that trains, and denoises when it does not."""
    denoiser: WorkerMemory
    """A worker that does not train, such as one of the spot pool; with `training.slices` above 1 it
    computes gradients for those that do."""
    loading: int
    """Bytes of host memory that a worker needs while it loads its largest part."""
    resting: int
    """Bytes of host memory in which a worker's text encoders rest while nothing is encoded."""
    training: int
    """Bytes of host memory in which a worker that trains keeps what is offloaded, and gradients of
    slices that others have computed before their turn has come."""
    saving: int
    """Bytes of host memory that a worker needs while it saves the state of training."""
    trainer_store: int
    """Bytes in the store of a node with all workers that train."""
    denoiser_store: int
    """Bytes in the store of any other node, which keeps the latest gradients of its workers, too.
    """

    @property
    def most(self) -> int:
        """Bytes of the accelerator that every worker of the job can do with."""
        return max(self.trainer.most, self.denoiser.most)


def memory_plan(job: JobSpec, checkpoint: CheckpointInfo, *, nbytes: int = BFLOAT16) -> MemoryPlan:
    """The plan of a job whose workers compute in a dtype of `nbytes` a number: bfloat16 on an
    accelerator, float32 on a CPU. Raises `JobError` for a size that does not fit the checkpoint.
    """
    held = _held_parts(job, checkpoint, nbytes)
    denoising = _denoising_parts(job, checkpoint, nbytes)
    trained, shards = checkpoint.trainable, _shards(job)
    per_number = trained_bytes(job.training)
    is_sliced, updates = job.training.slices > 1, job.training.updates_per_iteration
    if is_sliced:
        per_number[_OF_A_SLICE] = FLOAT32
    if (job.divides_training or (is_sliced and updates > 1)) and job.training.rollout_decay == 0:
        per_number["weights that an iteration began with"] = FLOAT32  # for its later updates
    kept = [Part(name, -(-size * trained // shards)) for name, size in per_number.items()]
    on_accelerator = nbytes == BFLOAT16
    offloaded = kept if job.training.cpu_offload and on_accelerator else []
    training = _training_parts(job, checkpoint, nbytes)
    helping = []
    if is_sliced:
        helping = [*training]
        if not offloaded:
            helping.append(Part(_OF_A_SLICE, FLOAT32 * trained, "training"))
    saved = saved_bytes(job.training) * trained
    published, gradient = _published_bytes(job, nbytes) * trained, FLOAT32 * trained
    workers = max(job.pools.reserved.workers, job.pools.spot.workers)
    copies, kept_gradients, early = (_versions(job) + _EVALUATIONS) * published, 0, 0
    if is_sliced and gradient <= MOST_GRADIENT_BYTES:
        copies += (_LENT + (job.training.kl > 0)) * published
        kept_gradients = KEPT_GRADIENTS * workers * gradient
        early = (job.training.slices - 1) * gradient
    return MemoryPlan(
        WorkerMemory((*held, *([] if offloaded else kept), *training, *denoising)),
        WorkerMemory((*held, *helping, *denoising)),
        loading=nbytes * max(_loaded_numbers(checkpoint)),
        resting=nbytes * _encoders(checkpoint) if on_accelerator else 0,
        training=sum(part.nbytes for part in offloaded) + early,
        saving=-(-saved // shards),
        trainer_store=copies + _STATES * saved,
        denoiser_store=copies + kept_gradients,
    )


def trained_bytes(training: TrainingSpec) -> dict[str, int]:
    """Bytes that a trainer keeps of every number that it trains, by what for: on its accelerator,
    or in host memory if it is offloaded; all of them float32. What ranks share out of it is the
    same for each kind.
    """
    kept = {
        "weights to train": FLOAT32,
        "gradients": FLOAT32,
        "Adam's moments": 2 * FLOAT32,
        "averaged weights": FLOAT32,
    }
    if training.rollout_decay > 0:
        kept["old policy"] = FLOAT32
    if training.kl > 0:
        kept["reference"] = FLOAT32
    return kept


def saved_bytes(training: TrainingSpec) -> int:
    """Bytes of a state of training for every trained number: all but the gradient."""
    kept = trained_bytes(training)
    return sum(kept.values()) - kept["gradients"]


def least_store(job: JobSpec, checkpoint: CheckpointInfo) -> int:
    """Bytes that the store of a node with all workers that train holds at least."""
    published = _versions(job) * _published_bytes(job, BFLOAT16)
    return (published + _STATES * saved_bytes(job.training)) * checkpoint.trainable


def _versions(job: JobSpec) -> int:
    return _VERSIONS + _AHEAD * job.trains_on_older


def transformer_bytes(kind: Quantize, checkpoint: CheckpointInfo, nbytes: int) -> int:
    """Bytes of a transformer whose matrices are quantised in this way: `fp8` has a scale for every
    row, `nf4` one for every 64 numbers. All else has `nbytes` a number."""
    numbers = sum(map(math.prod, checkpoint.matrices))
    others = nbytes * (checkpoint.parameters - numbers)
    match kind:
        case "none":
            return nbytes * checkpoint.parameters
        case "fp8":
            return others + numbers + FLOAT32 * sum(rows for rows, _ in checkpoint.matrices)
        case "nf4":
            return others + numbers // 2 + FLOAT32 * -(-numbers // _NF4_BLOCK)


def _made_whole(job: JobSpec, checkpoint: CheckpointInfo, nbytes: int, phase: Phase) -> list[Part]:
    """The largest matrix, as it computes, while something is multiplied with it."""
    if job.model.quantize == "none":
        return []
    largest = max(map(math.prod, checkpoint.matrices), default=0)
    return [Part("a matrix made whole (about)", nbytes * largest, phase)]


def adapters_of(job: JobSpec, checkpoint: CheckpointInfo) -> Adapters | None:
    """Those that a job trains; None where it trains all weights."""
    if job.model.tuning == "full":
        return None
    lora = job.model.lora
    return Adapters(checkpoint.family.targets(lora), lora.rank)


def trained_guidance(job: JobSpec, checkpoint: CheckpointInfo) -> float:
    """The guidance scale of training's forward passes. A loss of the user's own is taken for one
    that replays the sampler's steps, which takes no less memory."""
    facts = LOSSES.get(job.training.loss)
    samplers = facts.samplers if facts is not None else NOISY_SAMPLERS
    embedded = checkpoint.facts.embeds_guidance
    return training_guidance(job.training, job.sampler, samplers, embedded=embedded)


def activations_of(
    job: JobSpec, checkpoint: CheckpointInfo, *, rows: int, nbytes: int
) -> Activations:
    """Of a forward pass with so many samples."""
    sampler = job.sampler
    tokens = checkpoint.tokens(sampler.height, sampler.width, sampler.frames)
    adapters = adapters_of(job, checkpoint)
    step = Pass(rows, tokens, nbytes, adapters, text_tokens=sampler.text_tokens)
    return checkpoint.family.activations(checkpoint.facts, step)


def _held_parts(job: JobSpec, checkpoint: CheckpointInfo, nbytes: int) -> list[Part]:
    on_accelerator = nbytes == BFLOAT16
    prompts = job.prompts.per_iteration
    parts = [
        Part("transformer", transformer_bytes(job.model.quantize, checkpoint, nbytes)),
        Part("VAE", nbytes * checkpoint.frozen.get("vae", 0)),
        Part("embeddings", FLOAT32 * checkpoint.facts.conditioning * prompts),
        Part(
            "text encoders",
            nbytes * _encoders(checkpoint),
            "encoding" if on_accelerator else "always",
        ),
    ]
    if job.model.tuning == "lora":
        parts.insert(1, Part("adapters", FLOAT32 * checkpoint.trainable))
    if checkpoint.previewer is not None:
        parts.append(Part("transformer of previews", nbytes * checkpoint.previewer.parameters))
    for reward in job.measured_rewards:
        is_there = not on_accelerator or reward.clip is None or reward.clip.device == "accelerator"
        if is_there and (its := scorer_bytes(reward)):
            parts.append(Part(f"scorer {reward.name}", its))
    if on_accelerator:
        parts.append(Part("libraries (assumed)", LIBRARIES))
    return parts


def _loaded_numbers(checkpoint: CheckpointInfo) -> list[int]:
    """Of each part that a worker loads, one after the other."""
    previewer = checkpoint.previewer
    others = [previewer.parameters] if previewer is not None else []
    transformer = checkpoint.parameters // checkpoint.transformers
    return [transformer, *checkpoint.frozen.values(), *others]


def _encoders(checkpoint: CheckpointInfo) -> int:
    """Numbers in all text encoders."""
    return sum(numbers for part, numbers in checkpoint.frozen.items() if part != "vae")


def _shards(job: JobSpec) -> int:
    """Ranks that share out what training keeps."""
    return job.training.ranks if job.training.sharded else 1


def _training_parts(job: JobSpec, checkpoint: CheckpointInfo, nbytes: int) -> list[Part]:
    training = job.training
    shards, whole = _shards(job), nbytes * checkpoint.parameters
    # A rank runs what others run: a second transformer that has no sample gets one all the same.
    rows = training.micro_batch + (checkpoint.transformers - 1 if shards > 1 else 0)
    of_pass = activations_of(job, checkpoint, rows=rows, nbytes=nbytes)
    peak = of_pass.peak(
        checkpointing=training.activation_checkpointing, passes=_passes(job, checkpoint)
    )
    parts = [
        Part("activations", peak - of_pass.working, "training"),
        Part("backward pass (about)", of_pass.working, "training"),
        *_made_whole(job, checkpoint, nbytes, "training"),
    ]
    if shards > 1:
        blocks = _WHOLE_BLOCKS * whole // (checkpoint.transformers * len(of_pass.blocks))
        if training.cpu_offload:  # else they are added to the gradient where they arise
            gradients = -(-FLOAT32 * checkpoint.trainable // shards)
            parts.append(Part("gradients of a pass", gradients, "training"))
        return [
            *parts,
            Part("rows of an own transformer", -(-FLOAT32 * checkpoint.parameters // shards)),
            Part("blocks made whole (about)", blocks, "training"),
            Part("the own transformer, whole", whole, "starting"),
        ]
    if job.model.tuning == "full" and (nbytes < FLOAT32 or training.cpu_offload):
        # They come as activations go: what is left of these is one block's.
        left = of_pass.working + max(block.kept for block in of_pass.blocks)
        gradients = max(0, nbytes * checkpoint.trainable - (peak - left))
        parts.append(Part("gradients of a pass", gradients, "training"))
    return parts


def _denoising_parts(job: JobSpec, checkpoint: CheckpointInfo, nbytes: int) -> list[Part]:
    sampler = job.sampler
    of_pass = activations_of(job, checkpoint, rows=sampler.micro_batch, nbytes=nbytes)
    decoded = checkpoint.facts.decoded * sampler.height * sampler.width
    sampling = max(of_pass.sampling, _preview_bytes(job, checkpoint, nbytes))
    return [
        Part("denoising (about)", sampling, "denoising"),
        Part("decoding (about)", nbytes * decoded, "decoding"),
        *_made_whole(job, checkpoint, nbytes, "denoising"),
    ]


def _preview_bytes(job: JobSpec, checkpoint: CheckpointInfo, nbytes: int) -> int:
    """Bytes of a forward pass of the model that makes previews instead, if there is one."""
    sampler, previewer = job.sampler, checkpoint.previewer
    if previewer is None:
        return 0
    tokens = previewer.tokens(sampler.height, sampler.width, sampler.frames)
    step = Pass(sampler.micro_batch, tokens, nbytes)
    return previewer.family.activations(previewer.facts, step).sampling


def _passes(job: JobSpec, checkpoint: CheckpointInfo) -> int:
    """Of a step of training: guidance takes another one, with gradients as well, unless it is an
    input."""
    return 1 if checkpoint.facts.embeds_guidance or trained_guidance(job, checkpoint) == 1 else 2


def _published_bytes(job: JobSpec, nbytes: int) -> int:
    """Of each number: adapters are published as they compute, in float32."""
    return FLOAT32 if job.model.tuning == "lora" else nbytes
