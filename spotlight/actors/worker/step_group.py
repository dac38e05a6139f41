"""How the members of an SP group denoise one micro-batch together.

Every rank runs the same denoising on the full latents; only the forward pass is shared out. Rank 0
decides: before every step it sends a command, so that all take the step or none does. A run of
steps begins with the latents of rank 0, wherever those come from. After every step all ranks hold
the same latents to the bit, so a step that breaks half-way is simply taken again, by whoever is
left.

Invariants:
- All ranks take the runs of an epoch in the order of their numbers; another order, or another
  number, is an error of the group.
- Whatever goes wrong between ranks is a `TransportError`; the group is of no use any more then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from enum import IntEnum
from typing import Protocol

from spotlight.actors.worker.engine import Collective, Denoising, Model
from spotlight.errors import TransportError
from spotlight.types import Request


class _Command(IntEnum):
    END = 0
    BEGIN = 1
    STEP = 2


class StepGroup(Protocol):
    """With whom a rank that decides denoises; all methods run in the accelerator's thread."""

    @property
    def members(self) -> int:
        """The degree."""
        ...

    @property
    def inside(self) -> bool:
        """Whether a thread may be waiting for other ranks; asked from any thread."""
        ...

    def lead(self, run: int) -> AbstractContextManager[None]:
        """Within, steps can be taken; the others are let go at its end."""
        ...

    def begin(self, denoising: Denoising) -> None:
        """Give the others the latents; once, before the first step of a run."""
        ...

    def step(self, denoising: Denoising) -> None:
        """Take a step together."""
        ...


class SoloSteps:
    """A group of one; `take_step` takes one step to its end."""

    members = 1
    inside = False

    def __init__(self, take_step: Callable[[Denoising], None]) -> None:
        self._take_step = take_step

    @contextmanager
    def lead(self, run: int) -> Iterator[None]:
        """See `StepGroup.lead`."""
        yield

    def begin(self, denoising: Denoising) -> None:
        """See `StepGroup.begin`."""

    def step(self, denoising: Denoising) -> None:
        """See `StepGroup.step`."""
        self._take_step(denoising)


class GroupSteps:
    """One rank's end of a group that denoises together."""

    def __init__(self, collective: Collective) -> None:
        self.collective = collective
        self._run = 0
        self._between_steps = True
        """The others wait for a command."""
        self.inside = False

    @property
    def members(self) -> int:
        """The degree."""
        return self.collective.world

    # --- rank 0 ---

    @contextmanager
    def lead(self, run: int) -> Iterator[None]:
        """See `StepGroup.lead`."""
        self._run, self._between_steps = run, True
        self.inside = True
        try:
            try:
                yield
            finally:
                if self._between_steps:
                    self._send(_Command.END)
        finally:
            self.inside = False

    def begin(self, denoising: Denoising) -> None:
        """See `StepGroup.begin`."""
        self._send(_Command.BEGIN, denoising.steps_taken)
        self._between_steps = False
        self.collective.send_latents(denoising)
        self._between_steps = True

    def step(self, denoising: Denoising) -> None:
        """See `StepGroup.step`."""
        self._send(_Command.STEP)
        self._between_steps = False
        try:
            self.collective.step(denoising)
        except TransportError:
            raise
        except Exception as error:
            # Whatever a forward pass raises: of this rank only, perhaps, and the others wait in it.
            raise TransportError(
                f"a step failed on rank 0 of {self.members}: {type(error).__name__}: {error}"
            ) from error
        self._between_steps = True

    def _send(self, command: _Command, step: int = 0) -> None:
        self._between_steps = False  # should it fail, nobody listens any more
        self.collective.send((self._run, command, step))
        self._between_steps = True

    # --- the others ---

    def follow(
        self, run: int, model: Model, requests: Sequence[Request], prepare: Callable[[], None]
    ) -> int:
        """Take the steps of one run that rank 0 leads; returns how many.

        `prepare` loads the weights. Raises `TransportError`.
        """
        self.inside = True
        try:
            return self._follow(run, model, requests, prepare)
        finally:
            self.inside = False

    def _follow(
        self, run: int, model: Model, requests: Sequence[Request], prepare: Callable[[], None]
    ) -> int:
        command, step = self._receive(run)
        if command is _Command.END:
            return 0
        prepare()
        progress = self.collective.receive_latents(model, requests, step)
        denoising = model.begin(requests, progress)
        while self._receive(run)[0] is _Command.STEP:
            self.collective.step(denoising)
        return denoising.steps_taken - step

    def _receive(self, run: int) -> tuple[_Command, int]:
        number, command, step = self.collective.receive()
        if number != run:
            raise TransportError(
                f"rank 0 leads run {number}, but rank {self.collective.rank} is in {run};"
                " make a new group"
            )
        return _Command(command), step
