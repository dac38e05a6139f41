"""How the ranks of an SP group denoise one micro-batch together.

Every rank runs the same denoising on the full latents; only the forward pass is shared out. Rank 0
decides: before every step it broadcasts a word, so that all take the step or none does. A stretch
begins with the latents of rank 0, wherever those come from. After every step all ranks hold the
same latents to the bit, so a step that breaks half-way is simply taken again, by whoever is left.

Invariants:
- All ranks run the stretches of an epoch in the order of their numbers; another order, or another
  number, is an error of the group.
- Whatever goes wrong between ranks is a `TransportError`; the group is of no use any more then.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from enum import IntEnum
from typing import Protocol

import torch

from spotlight.diffusion.model import DiffusionModel
from spotlight.diffusion.samplers import Denoising, Progress, SamplerSettings, resume
from spotlight.diffusion.sequence_parallel import SequenceParallel
from spotlight.errors import TransportError
from spotlight.transport.collectives import Group


class _Command(IntEnum):
    END = 0
    BEGIN = 1
    STEP = 2


class StepGroup(Protocol):
    """With whom a rank that decides denoises."""

    @property
    def members(self) -> int:
        """The degree."""
        ...

    @property
    def inside(self) -> bool:
        """Whether a thread may be waiting in a collective; asked from any thread."""
        ...

    def lead(self, stretch: int) -> AbstractContextManager[None]:
        """Within, steps can be taken; the others are let go at its end."""
        ...

    def begin(self, denoising: Denoising) -> None:
        """Give the others the latents; once, before the first step of a stretch."""
        ...

    def step(self, denoising: Denoising) -> None:
        """Take a step together."""
        ...


class SoloSteps:
    """The company of a group of one."""

    members = 1
    inside = False

    @contextmanager
    def lead(self, stretch: int) -> Iterator[None]:
        """See `StepGroup.lead`."""
        yield

    def begin(self, denoising: Denoising) -> None:
        """See `StepGroup.begin`."""

    def step(self, denoising: Denoising) -> None:
        """See `StepGroup.step`."""
        denoising.step()
        _synchronize()


class GroupSteps:
    """One rank's end of a group that denoises together; all methods run in the accelerator's
    thread.

    Args:
        ring: of the degree, so many parts are a ring.
    """

    def __init__(self, group: Group, parallel: SequenceParallel, ring: int) -> None:
        self.group = group
        self._parallel = parallel
        self._ring = ring
        self._stretch = 0
        self._between_steps = True
        """The others wait for a word."""
        self.inside = False
        self._device = next(parallel.transformer.parameters()).device

    @property
    def members(self) -> int:
        """The degree."""
        return self.group.world

    # --- rank 0 ---

    @contextmanager
    def lead(self, stretch: int) -> Iterator[None]:
        """See `StepGroup.lead`."""
        self._stretch, self._between_steps = stretch, True
        self.inside = True
        try:
            try:
                yield
            finally:
                if self._between_steps:
                    self._say(_Command.END)
        finally:
            self.inside = False

    def begin(self, denoising: Denoising) -> None:
        """See `StepGroup.begin`."""
        self._say(_Command.BEGIN, denoising.steps_taken)
        self._between_steps = False
        self.group.broadcast(denoising.latents.contiguous())
        self._between_steps = True

    def step(self, denoising: Denoising) -> None:
        """See `StepGroup.step`."""
        self._say(_Command.STEP)
        self._between_steps = False
        try:
            self._step(denoising)
        except TransportError:
            raise
        except Exception as error:
            # Whatever a forward pass raises: of this rank only, perhaps, and the others wait in it.
            raise TransportError(
                f"a step failed on rank 0 of {self.members}: {type(error).__name__}: {error}"
            ) from error
        self._between_steps = True

    def _say(self, word: _Command, step: int = 0) -> None:
        self._between_steps = False  # should it fail, nobody listens any more
        self.group.broadcast(torch.tensor([self._stretch, word, step], device=self._device))
        self._between_steps = True

    # --- the others ---

    def follow(
        self,
        stretch: int,
        model: DiffusionModel,
        prompts: Sequence[str],
        seeds: Sequence[int],
        settings: SamplerSettings,
        prepare: Callable[[], None],
    ) -> int:
        """Take the steps of one stretch that rank 0 leads; returns how many.

        `prepare` loads the weights. Raises `TransportError`.
        """
        self.inside = True
        try:
            return self._follow(stretch, model, prompts, seeds, settings, prepare)
        finally:
            self.inside = False

    def _follow(
        self,
        stretch: int,
        model: DiffusionModel,
        prompts: Sequence[str],
        seeds: Sequence[int],
        settings: SamplerSettings,
        prepare: Callable[[], None],
    ) -> int:
        word, step = self._hear(stretch)
        if word is _Command.END:
            return 0
        prepare()
        shape = (len(seeds), *model.latent_shape(settings.height, settings.width))
        latents = torch.empty(shape, device=self._device)
        self.group.broadcast(latents)
        nothing = Progress(
            step, latents, torch.zeros(len(seeds), 0, *shape[1:]), torch.zeros(len(seeds), 0)
        )
        denoising = resume(model, prompts, seeds, settings, nothing)
        while self._hear(stretch)[0] is _Command.STEP:
            self._step(denoising)
        return denoising.steps_taken - step

    def _hear(self, stretch: int) -> tuple[_Command, int]:
        heard = torch.zeros(3, dtype=torch.int64, device=self._device)
        self.group.broadcast(heard)
        number, word, step = heard.tolist()
        if number != stretch:
            raise TransportError(
                f"rank 0 leads stretch {number}, but rank {self.group.rank} is in {stretch};"
                " make a new group"
            )
        return _Command(word), step

    def _step(self, denoising: Denoising) -> None:
        ahead = copy.copy(denoising)
        with self._parallel.over(self.group, self._ring):
            ahead.step()
        _synchronize()
        self.group.require_open()  # a collective that was aborted may end without an error
        denoising.adopt(ahead)


def _synchronize() -> None:
    """A step that is only queued is not taken."""
    if torch.accelerator.is_available():
        torch.accelerator.synchronize()
