"""Whether a job fits into a GPU, and what would help: said before anything is loaded."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import msgspec

from spotlight.errors import JobError, UserError
from spotlight.jobs import JobSpec
from spotlight.preflight.checkpoint_facts import CheckpointInfo
from spotlight.preflight.memory import MemoryPlan, memory_plan

_MIB = 2**20
GPUS = {
    "b200-180g": 183_359 * _MIB,
    "h200-141g": 143_771 * _MIB,
    "h100-80g": 81_559 * _MIB,
    "a100-80g": 81_920 * _MIB,
    "a100-40g": 40_960 * _MIB,
    "l40s-48g": 46_068 * _MIB,
    "a10g-24g": 23_028 * _MIB,
    "rtx4090-24g": 24_564 * _MIB,
}
"""Bytes of memory, by name: what `nvidia-smi` says of such a GPU; drivers differ a little."""
_EDGE, _LEAST_EDGE = 32, 256
"""Pixels: advised edges are multiples of the one, and not below the other."""


def gpu_nbytes(name: str) -> int:
    """Bytes of a GPU that `--gpu` names, or of a plain size such as `24g` (10^9 bytes); raises
    `UserError`.
    """
    plain = re.fullmatch(r"(\d{1,4}(?:\.\d{1,3})?)g", name.lower())
    if plain is not None:
        return round(float(plain[1]) * 1e9)
    if name.lower() not in GPUS:
        raise UserError(
            f"--gpu {name}: is not known; use a size such as `24g`, or one of {', '.join(GPUS)}"
        )
    return GPUS[name.lower()]


def require_fit(job: JobSpec, checkpoint: CheckpointInfo, nbytes: int) -> MemoryPlan:
    """The plan of a job whose workers have GPUs of `nbytes` bytes; raises the `JobError` that names
    the field by which it would fit.
    """
    plan = memory_plan(job, checkpoint)
    if plan.most <= nbytes:
        return plan
    who, worker = "that trains", plan.trainer
    if plan.trainer.most <= nbytes:
        who, worker = "that denoises", plan.denoiser
    largest = max(worker.parts, key=lambda part: part.nbytes)
    problem = (
        f"a worker {who} needs {_gb(worker.most)}, the most for {largest.name}"
        f" ({_gb(largest.nbytes)}), but the GPU has {_gb(nbytes)}"
    )
    field, advice = _advice(job, checkpoint, nbytes)
    raise JobError(field, f"{problem}; {advice}")


@dataclass(frozen=True)
class _Change:
    """A field with another value."""

    field: str
    value: object

    def of(self, job: JobSpec) -> JobSpec:
        """The job with it."""
        if self.field == "model.tuning":  # adapters are not shared out
            whole = msgspec.structs.replace(job.training, sharded=False, cpu_offload=False)
            job = msgspec.structs.replace(job, training=whole)
        section, _, field = self.field.partition(".")
        changed = msgspec.structs.replace(getattr(job, section), **{field: self.value})
        return msgspec.structs.replace(job, **{section: changed})


def _advice(job: JobSpec, checkpoint: CheckpointInfo, nbytes: int) -> tuple[str, str]:
    """The field to change first, and what to do: one change if one is enough, else as many as are,
    in the order of what they cost.
    """
    changes = list(_changes(job))
    for change in changes:
        needed = memory_plan(change.of(job), checkpoint).most
        if needed <= nbytes:
            return change.field, f"{_listed({change.field: change.value})} needs {_gb(needed)}"
    together: dict[str, object] = {}
    needed = memory_plan(job, checkpoint).most
    for change in changes:
        smaller = memory_plan(change.of(job), checkpoint).most
        if smaller < needed:
            job, needed = change.of(job), smaller
            together[change.field] = change.value
        if needed <= nbytes:
            return next(iter(together)), f"{_listed(together)} together need {_gb(needed)}"
    if not together:
        return "model.checkpoint", "nothing else in the job changes that: take a smaller model"
    advice = f"even {_listed(together)} need {_gb(needed)}: take a smaller model or a larger GPU"
    return next(iter(together)), advice


def _changes(job: JobSpec) -> Iterator[_Change]:
    """What makes a job smaller, the cheapest first."""
    training, sampler, ranks = job.training, job.sampler, job.training.ranks
    if not training.activation_checkpointing:
        yield _Change("training.activation_checkpointing", True)
    for rows in _halves(training.micro_batch, 1):
        yield _Change("training.micro_batch", rows)
    for rows in _halves(sampler.micro_batch, 1):
        yield _Change("sampler.micro_batch", rows)
    if job.model.tuning == "full":
        if training.ranks > 1 and not training.sharded:
            yield _Change("training.sharded", True)
        for more in (2, 4, 8):
            if not job.samples_per_iteration % (training.updates_per_iteration * ranks * more):
                yield _Change("training.ranks", ranks * more)
        if not training.cpu_offload and (training.sharded or ranks == 1):
            yield _Change("training.cpu_offload", True)
        yield _Change("model.tuning", "lora")
    for fours in _halves((sampler.frames - 1) // 4, 1):
        yield _Change("sampler.frames", 4 * fours + 1)
    for field in ("height", "width"):
        for edge in _halves(getattr(sampler, field) // _EDGE, _LEAST_EDGE // _EDGE):
            yield _Change(f"sampler.{field}", edge * _EDGE)


def _halves(number: int, least: int) -> Iterator[int]:
    """Half of it, half of that, and so on."""
    while number // 2 >= least:
        number //= 2
        yield number


def _listed(changes: Mapping[str, object]) -> str:
    said = [f"`{field}: {str(value).lower()}`" for field, value in changes.items()]
    return ", ".join(said[:-1]) + " and " * (len(said) > 1) + said[-1]


def _gb(nbytes: int) -> str:
    return f"{nbytes / 1e9:.1f} GB"
