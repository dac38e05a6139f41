"""Gradients of slices: what a trainer rank and whoever helps it compute, by the same code.

A rank's share of an update is rows of forward passes, in micro-batches. A slice is a run of
consecutive micro-batches, whose gradient is summed from zero in float32. The rank adds the sums in
the order of the slices. So the bits of an update do not depend on who computed which slice, or
when, as long as kernels are the same: one kind of device, equal numbers of threads.

What a slice's gradient depends on is in its description, in its own samples and in the weights of
three policies, which whoever computes it has to `use`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Literal, NamedTuple

import msgspec
import torch
from torch import Tensor

from spotlight.diffusion.model import DiffusionModel
from spotlight.errors import TrainingDiverged, TransferFailed
from spotlight.jobs import SamplerSpec, TrainingSpec
from spotlight.jobs.losses import training_guidance
from spotlight.training.batches import TrainingBatch, key
from spotlight.training.forwards import Forwards, MicroBatch
from spotlight.training.losses import Loss, Terms, Velocities, build_loss
from spotlight.training.repeatable import repeatable_kernels
from spotlight.training.weights import BackwardSum, trainable
from spotlight.transport.tensors import bundles
from spotlight.types import Slice, UpdateSlices

__all__ = [
    "Role",
    "Slice",
    "SliceGradient",
    "UpdateSlices",
    "always",
    "cut",
    "pack",
    "slice_gradient",
    "unpack",
]

Role = Literal["current", "old", "reference"]
"""Weights that a slice needs: those that are trained, those that roll out as they were before the
iteration's first update, and those that the job began with."""
Passes = list[Tensor] | None
"""Velocities of micro-batches, on the CPU; None for those that nobody needs."""


@dataclass(frozen=True)
class SliceGradient:
    """What a slice adds to an update."""

    iteration: int
    update: int
    rank: int
    index: int
    """Which slice of that rank's share of that update it is of."""
    gradient: Tensor
    """[P] float32 on the CPU: of the trained weights, one parameter after the other."""
    sums: Tensor
    """[1 + metrics] float64 on the CPU: of the loss and the metrics over the slice's rows."""


class _Identity(msgspec.Struct, frozen=True):
    iteration: int
    update: int
    rank: int
    index: int


class Unwanted(Exception):
    """Nobody wants what is computed any more."""


def always() -> bool:
    """Whether it is still wanted: yes."""
    return True


def cut(
    samples: Sequence[int], draws: Sequence[int], *, rows: int, size: int, slices: int
) -> tuple[Slice, ...]:
    """Divide the rows of these samples, which all have as many, into so many slices of whole
    micro-batches of `size` rows; into fewer where there are fewer micro-batches."""
    per_sample = max(rows // max(len(samples), 1), 1)
    passes = -(-rows // size)
    count = min(slices, passes)
    found = []
    for index in range(count):
        first = index * passes // count * size
        end = min((index + 1) * passes // count * size, rows)
        own = slice(first // per_sample, -(-end // per_sample))
        skipped = first - own.start * per_sample
        found.append(Slice(index, tuple(samples[own]), tuple(draws[own]), skipped, end - first))
    return tuple(found)


@dataclass(frozen=True)
class Prepared:
    """The rows of a slice, and what the policies that are not trained say there."""

    batch: TrainingBatch
    forwards: Forwards
    """The forward passes of this batch."""
    terms: Terms
    old: Passes
    reference: Passes
    idle: int = 0
    """Passes to run only because others have more."""


class Computed(NamedTuple):
    """What came of a slice's rows, on the model's device."""

    sums: Tensor
    """[1 + metrics] float64: of the loss and the metrics over the rows."""
    losses: Tensor
    """[rows]: the loss of each row."""

    def first_not_finite(self) -> int | None:
        """The first row whose loss is NaN or infinite."""
        rows = (~self.losses.isfinite()).nonzero().flatten().tolist()
        return rows[0] if rows else None


class SliceComputer:
    """Computes slices with the weights that are in a model."""

    def __init__(
        self,
        model: DiffusionModel,
        loss: Loss,
        training: TrainingSpec,
        sampler: SamplerSpec,
        seed: int,
        backward: BackwardSum,
    ) -> None:
        """`sampler` and `seed` are the job's; `backward` is of the model's trained parameters."""
        self._model = model
        self._loss = loss
        self._training = training
        guidance = training_guidance(
            training, sampler, loss.samplers, embedded=model.embeds_guidance
        )
        self._sampler = msgspec.structs.replace(sampler, guidance=guidance)
        self._seed = seed
        self._backward = backward
        model.checkpoint_activations(training.activation_checkpointing)

    def keys(self, iteration: int, update: int, draws: Sequence[int]) -> list[int]:
        """Those that decide the flow times and the noise of samples."""
        return [key(self._seed, iteration, update, draw) for draw in draws]

    def forwards(self, batch: TrainingBatch) -> Forwards:
        """The forward passes of a batch, with the guidance of training."""
        return Forwards(self._model, self._sampler, batch.prompts)

    def needs_old(self, update: int) -> bool:
        """Whether the old policy takes passes of its own: while the weights that roll out are the
        newest, the first update of an iteration has its velocities anyway."""
        keeps = self._training.rollout_decay > 0 or update > 0
        return self._loss.uses_old_policy and keeps

    def prepare(
        self,
        update: UpdateSlices,
        slice_: Slice,
        batch: TrainingBatch,
        use: Callable[[Role], None],
        wanted: Callable[[], bool],
    ) -> Prepared:
        """The rows of a slice, of a batch of its own samples alone; raises `Unwanted`."""
        keys = self.keys(update.iteration, update.update, slice_.draws)
        terms = self._loss.terms(batch, range(len(batch)), keys)
        end = slice_.first + slice_.rows
        if end > len(terms):
            raise ValueError(
                f"slice {slice_.index}: rows up to {end}, where there are {len(terms)}"
            )
        rows = torch.arange(slice_.first, end)
        terms = terms.select(rows, torch.device("cpu"))
        forwards = self.forwards(batch)

        def velocities(role: Role) -> list[Tensor]:
            use(role)
            return self.velocities(forwards, terms, update.size, wanted)

        old = velocities("old") if self.needs_old(update.update) else None
        reference = velocities("reference") if self._training.kl > 0 else None
        return Prepared(batch, forwards, terms, old, reference)

    @torch.no_grad()
    def velocities(
        self,
        forwards: Forwards,
        terms: Terms,
        size: int,
        wanted: Callable[[], bool] = always,
        idle: int = 0,
    ) -> list[Tensor]:
        """Of every micro-batch, under the weights in the model, and then `idle` passes because
        others have more; raises `Unwanted`."""
        found = []
        with self._kernels():
            for micro_batch in forwards.micro_batches(terms, size):
                _require(wanted)
                found.append(forwards.velocity(micro_batch).cpu())
            for _ in range(idle):
                forwards.idle(terms)
        return found

    def accumulate(
        self,
        prepared: Prepared,
        update: UpdateSlices,
        into: Tensor,
        wanted: Callable[[], bool] = always,
    ) -> Computed:
        """The gradient of the rows, under the weights in the model, summed from zero `into` a
        vector [P]; raises `Unwanted`."""
        forwards, terms = prepared.forwards, prepared.terms
        device = self._model.device
        metrics = self._loss.metrics
        sums = torch.zeros(1 + len(metrics), dtype=torch.float64, device=device)
        losses = [torch.zeros(0, device=device)]
        self._backward.start(into)
        try:
            with self._kernels():
                for number, micro_batch in enumerate(forwards.micro_batches(terms, update.size)):
                    _require(wanted)
                    of_rows, named = self._evaluate(prepared, number, micro_batch)
                    torch.autograd.backward(of_rows.sum() * update.scale)
                    self._backward.collect()
                    columns = [of_rows.detach(), *(named[name] for name in metrics)]
                    sums += torch.stack(columns, dim=1).double().sum(dim=0)
                    losses.append(of_rows.detach())
                for _ in range(prepared.idle):
                    torch.autograd.backward(forwards.idle(terms).sum() * 0)
                    self._backward.collect()
        finally:
            self._backward.drop()
        return Computed(sums, torch.cat(losses))

    def row_without_gradient(self, prepared: Prepared, update: UpdateSlices) -> int | None:
        """The first row whose own gradient is NaN or infinite, under the weights in the model.
        It takes a backward pass for every row."""
        parameters = list(trainable(self._model).values())
        batches = prepared.forwards.micro_batches(prepared.terms, update.size)
        for number, micro_batch in enumerate(batches):
            of_rows, _ = self._evaluate(prepared, number, micro_batch)
            for row, loss in enumerate(of_rows * update.scale):
                found = torch.autograd.grad(loss, parameters, retain_graph=True, allow_unused=True)
                if not is_finite(*(each for each in found if each is not None)):
                    return number * update.size + row
        return None

    def _kernels(self) -> AbstractContextManager[None]:
        """Repeatable ones where others may compute some of an update's slices."""
        are_shared = self._training.slices > 1
        return repeatable_kernels(self._model.device) if are_shared else nullcontext()

    def _evaluate(
        self, prepared: Prepared, number: int, micro_batch: MicroBatch
    ) -> tuple[Tensor, Mapping[str, Tensor]]:
        """Losses [M] and metrics of a micro-batch; the losses are differentiable."""
        device, old, reference = self._model.device, prepared.old, prepared.reference
        velocity = prepared.forwards.velocity(micro_batch)
        velocities = Velocities(
            velocity,
            velocity.detach() if old is None else old[number].to(device),
            None if reference is None else reference[number].to(device),
        )
        return self._loss.evaluate(micro_batch.terms, velocities)


def slice_gradient(
    model: DiffusionModel,
    training: TrainingSpec,
    sampler: SamplerSpec,
    seed: int,
    reuse: bool,
    update: UpdateSlices,
    slice_: Slice,
    batch: TrainingBatch,
    use: Callable[[Role], None],
    wanted: Callable[[], bool] = always,
) -> SliceGradient | None:
    """The gradient of one slice, as the rank whose update it is would compute it.

    Args:
        training, sampler, seed, reuse: those of the job.
        update: of which only what holds for all slices is read.
        batch: the samples of the slice alone, in its order, on the CPU.
        use: puts weights into the model; it is called for those that the slice needs.
        wanted: whether anybody still wants the gradient; it is asked between two micro-batches.

    Returns None if nobody wants it any more. Raises `TrainingDiverged`, which names the sample,
    when it is not finite; `LossFailed` and `JobError` as a trainer does; and `ValueError` when
    the batch does not fit the slice.
    """
    if len(batch) != len(slice_.samples):
        raise ValueError(f"batch: {len(batch)} samples for a slice of {len(slice_.samples)}")
    loss, _ = build_loss(model, training, sampler, reuse=reuse)
    backward = BackwardSum(list(trainable(model).values()), offloaded=training.cpu_offload)
    computer = SliceComputer(model, loss, training, sampler, seed, backward)
    gradient = backward.new_vector()
    try:
        prepared = computer.prepare(update, slice_, batch, use, wanted)
        use("current")
        computed = computer.accumulate(prepared, update, gradient, wanted)
    except Unwanted:
        return None
    if not is_finite(computed.sums[:1], gradient):
        row = computed.first_not_finite()
        if row is None:
            row = computer.row_without_gradient(prepared, update)
        sample = None if row is None else int(prepared.terms.samples[row])
        raise TrainingDiverged(
            f"iteration {update.iteration}, update {update.update}, slice {slice_.index} of rank"
            f" {update.rank}: {who_diverged(batch, sample)}; nothing of it is counted"
        )
    return SliceGradient(
        update.iteration,
        update.update,
        update.rank,
        slice_.index,
        gradient.cpu(),
        computed.sums.cpu(),
    )


def who_diverged(batch: TrainingBatch, sample: int | None) -> str:
    """What an error says of the sample whose loss or gradient is not finite; None for no single
    one."""
    if sample is None:
        return "the gradient is not finite, though that of every sample is"
    return f"the loss or the gradient of a sample is not finite ({batch.name_of(sample)})"


def is_finite(*tensors: Tensor) -> bool:
    """Whether all numbers are, and the norm of each tensor as well."""
    return all(bool(torch.linalg.vector_norm(tensor).isfinite()) for tensor in tensors)


def pack(gradient: SliceGradient) -> bytes:
    """As a bundle of safetensors, which says what it is of."""
    which = _Identity(gradient.iteration, gradient.update, gradient.rank, gradient.index)
    said = {name: str(number) for name, number in msgspec.structs.asdict(which).items()}
    return bundles.pack({"gradient": gradient.gradient, "sums": gradient.sums}, said)


def unpack(data: bytes) -> SliceGradient:
    """What `pack` packed; raises `TransferFailed` for anything else."""
    tensors = bundles.unpack(data)
    try:
        which = msgspec.convert(bundles.metadata_of(data), _Identity, strict=False)
        gradient, sums = tensors["gradient"], tensors["sums"]
    except (msgspec.ValidationError, KeyError) as error:
        raise TransferFailed(f"{len(data)} bytes are no gradient of a slice: {error}") from error
    if (gradient.dtype, sums.dtype) != (torch.float32, torch.float64):
        raise TransferFailed(
            f"the gradient of a slice is {gradient.dtype} with sums of {sums.dtype}, not float32"
            " with float64"
        )
    return SliceGradient(**msgspec.structs.asdict(which), gradient=gradient, sums=sums)


def _require(wanted: Callable[[], bool]) -> None:
    if not wanted():
        raise Unwanted
