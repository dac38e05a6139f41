"""Does training learn? Every loss in the box takes updates of a tiny checkpoint of a family.

All updates have the same few samples, and the old policy stays that of the beginning, so that what
they make smaller stays the same: the loss itself, also where it is that of a policy gradient. It is
taken of the same rows before and after. Where a loss noises samples anew, no update has seen the
flow times and the noise of these rows; where it replays the sampler's steps, there is one set of
rows.
"""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import dataclass
from itertools import cycle, islice
from pathlib import Path

import msgspec

from spotlight.diffusion.checkpoints import load_model
from spotlight.diffusion.families.registry import family_of
from spotlight.errors import TrainingDiverged
from spotlight.jobs import ModelSpec, SamplerSpec, TrainingSpec, WindowSpec
from spotlight.training.slices import slice_gradient
from spotlight.training.trainer import Trainer
from spotlight_simulation.drawn_batches import drawn_batch
from spotlight_simulation.pipeline_comparison import FILES_BY_DIGEST, prompts_of, small_case

UPDATES = 20
"""Of a whole run."""
RATE = 1e-5
"""AdamW's step size is so small that updates go down hill in every family."""
SAMPLES = 4


@dataclass(frozen=True)
class Fall:
    """A loss before any update, after one and after all of them; NaN where training diverged."""

    before: float = math.nan
    after_one: float = math.nan
    after_all: float = math.nan

    @property
    def is_finite(self) -> bool:
        """Whether it is before and after the first update."""
        return math.isfinite(self.before) and math.isfinite(self.after_one)

    @property
    def falls(self) -> bool:
        """Whether it is less after all updates."""
        return self.after_all < self.before


def sampler_of(checkpoint: Path) -> SamplerSpec:
    """Few noisy steps, which every loss in the box can train on."""
    case = small_case(family_of(checkpoint))
    return SamplerSpec(
        height=case.height,
        width=case.width,
        frames=case.frames,
        guidance=case.guidance,
        kind="flow_sde",
        steps=4,
        window=WindowSpec(length=2, earliest=0, latest=3),
        micro_batch=2,
    )


def fall_of(checkpoint: Path, loss: str, updates: int = UPDATES) -> Fall:
    """How a loss of the box falls on a tiny checkpoint, all of whose weights are trained."""
    training = _Training(checkpoint, loss, updates)
    seen: list[float] = []
    with suppress(TrainingDiverged):
        seen.append(training.loss())
        for update in range(updates):
            training.take(update)
            if update in (0, updates - 1):
                seen.append(training.loss())
    return Fall(*seen)


class _Training:
    """Updates with one batch, and the loss of rows that none of them trains on."""

    def __init__(self, checkpoint: Path, loss: str, updates: int) -> None:
        spec = ModelSpec(checkpoint=str(checkpoint))
        self._model = load_model(spec, device="cpu", images=FILES_BY_DIGEST)
        self._sampler = sampler_of(checkpoint)
        self._spec = TrainingSpec(
            loss=loss, micro_batch=2, learning_rate=RATE, updates_per_iteration=updates
        )
        prompts = islice(cycle(prompts_of(family_of(checkpoint))), SAMPLES)
        self._batch = drawn_batch(self._model, self._sampler, [*prompts])
        self._trainer = Trainer(self._model, self._spec, self._sampler, seed=0)
        self._began = self._trainer.current_state()
        self._trainer.begin(0, self._batch, range(1))
        first = self._trainer.update
        assert first is not None
        (self._slice,) = first.slices  # the whole batch
        self._unseen = msgspec.structs.replace(first, update=updates, slices=())

    def take(self, update: int) -> None:
        """Take an update; raises `TrainingDiverged`."""
        self._trainer.train(0, self._batch, range(update, update + 1))

    def loss(self) -> float:
        """The mean over the rows; raises `TrainingDiverged` where it is not finite."""
        weights = {"current": self._trainer.current_state(), "old": self._began}

        def use(role: str) -> None:
            self._model.load_trainable_state(weights[role])

        found = slice_gradient(
            self._model,
            self._spec,
            self._sampler,
            0,
            False,
            self._unseen,
            self._slice,
            self._batch.select(self._slice.samples),
            use,
        )
        assert found is not None
        return found.sums[0].item() * self._unseen.scale
