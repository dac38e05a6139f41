"""Others that compute the slices of a trainer's updates."""

from __future__ import annotations

from collections.abc import Callable, Collection

from torch import Tensor

from spotlight.jobs import SamplerSpec, TrainingSpec
from spotlight.training.batches import TrainingBatch
from spotlight.training.slices import SliceGradient, pack, slice_gradient, unpack
from spotlight.training.trainer import Trainer
from spotlight.types import Slice, UpdateSlices

State = dict[str, Tensor]


class Helper:
    """A worker with a model of its own: it has a slice's samples and weights, and nothing else."""

    def __init__(
        self,
        model,
        training: TrainingSpec,
        sampler: SamplerSpec,
        *,
        seed: int = 0,
        reuse: bool = False,
    ) -> None:
        self.model = model
        self.used: list[str] = []
        self._job = training, sampler, seed, reuse

    def gradient(
        self,
        update: UpdateSlices,
        slice_: Slice,
        batch: TrainingBatch,
        weights: dict[str, State],
        wanted: Callable[[], bool] = lambda: True,
    ) -> SliceGradient | None:
        """Of a slice, with these weights by their role."""

        def use(role: str) -> None:
            self.used.append(role)
            self.model.load_trainable_state(weights[role])

        told = UpdateSlices(
            update.iteration, update.update, update.rank, update.size, update.scale, ()
        )
        return slice_gradient(self.model, *self._job, told, slice_, batch, use, wanted)


def weights_of(trainer: Trainer, began: State) -> dict[str, State]:
    """What the next slices need, where the weights that roll out `began` the iteration."""
    weights = {"current": trainer.current_state(), "old": began}
    if any(name.startswith("reference/") for name in trainer.state_dict()):
        weights["reference"] = trainer.reference_state()
    return weights


def train_with_help(
    trainer: Trainer,
    helper: Helper,
    iteration: int,
    batch: TrainingBatch,
    helps: Callable[[int], bool],
    updates: range | None = None,
    *,
    began: State | None = None,
) -> dict[str, float]:
    """As `Trainer.train`; the slices that the helper `helps` with are its, the last one first."""
    began = began or trainer.rollout_state()
    trainer.begin(iteration, batch, updates)
    report: dict[str, float] = {}
    while (update := trainer.update) is not None:
        weights = weights_of(trainer, began)
        came = came_in(
            helper, update, batch, weights, [s.index for s in update.slices][::-1], helps
        )
        while trainer.next_slice < len(update.slices):
            if trainer.next_slice in came:
                trainer.add(came[trainer.next_slice])
            else:
                assert trainer.compute()
        report = trainer.step()
    return report


def came_in(
    helper: Helper,
    update: UpdateSlices,
    batch: TrainingBatch,
    weights: dict[str, State],
    order: Collection[int],
    helps: Callable[[int], bool] = lambda _: True,
) -> dict[int, SliceGradient]:
    """What the helper computed and sent, by the index of the slice."""
    found = {}
    for index in order:
        if helps(index):
            slice_ = update.slices[index]
            gradient = helper.gradient(update, slice_, batch.select(slice_.samples), weights)
            assert gradient is not None
            found[index] = unpack(pack(gradient))
    return found
