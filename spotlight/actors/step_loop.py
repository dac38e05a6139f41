"""The denoising steps of one batch, and the commits beside them.

Steps run in the accelerator's thread, several at a time while nothing is to be decided; when to
commit and when to stop is decided on the loop. Of a commit only the copy to the CPU keeps the
accelerator from denoising: packing and delivering happen beside the next steps, one delivery at a
time.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

import torch

from spotlight.actors.worker_state import Turn
from spotlight.diffusion.samplers import Denoising, Progress
from spotlight.policies.commits import commit_due, must_stop

ResultT = TypeVar("ResultT")


class Accelerator(Protocol):
    """Whose turn it is at the accelerator, seen by the one who has it."""

    def in_turn(self, work: Callable[[], ResultT]) -> asyncio.Future[ResultT]:
        """Queue torch work."""


@dataclass(frozen=True)
class Taken:
    """Progress that was copied from the accelerator."""

    progress: Progress
    cost_s: float
    """How long that kept the accelerator from denoising."""


class StepLoop(Generic[ResultT]):
    """Takes the steps of one batch until it is done or told to stop.

    Args:
        turn: at the accelerator; passed on when nothing more is to be decided before the end.
        prepare: loads the batch's weights, unless they are loaded; in the accelerator's thread,
            before every stretch of steps.
        begin: makes the denoising, in the accelerator's thread.
        finish: what becomes of it after the last step, in the accelerator's thread too.
        deliver: packs and delivers a commit; may take long, never raises.
        stop_at: the time on the loop's clock at which the batch must have stopped, or None; asked
            on the loop.
        goes_on: whether nothing is to be decided before the next step; asked in the accelerator's
            thread.
        start: runs a task of the actor that this belongs to.
    """

    def __init__(
        self,
        accelerator: Accelerator,
        turn: Turn,
        *,
        prepare: Callable[[], None],
        begin: Callable[[], Denoising],
        finish: Callable[[Denoising], ResultT],
        commit_every: int,
        deliver: Callable[[Taken], Coroutine[Any, Any, None]],
        stop_at: Callable[[], float | None],
        goes_on: Callable[[], bool],
        start: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]],
    ) -> None:
        self._turn = turn
        self._prepare = prepare
        self._begin = begin
        self._finish = finish
        self._every = commit_every
        self._accelerator = accelerator
        self._deliver = deliver
        self._stop_at = stop_at
        self._goes_on = goes_on
        self._start = start
        self._clock = asyncio.get_running_loop().time
        self._denoising: Denoising | None = None
        self._taken: Taken | None = None
        self._first = self._committed = 0
        self._delivery: asyncio.Task[None] | None = None
        self.seconds = 0.0
        """Time that the steps taken here took."""

    @property
    def steps(self) -> int:
        """Steps taken here."""
        return self._denoising.steps_taken - self._first if self._denoising is not None else 0

    async def run(self, require_wanted: Callable[[], None]) -> ResultT | None:
        """Take steps; None if it stopped before the last one. Raises what `require_wanted` raises
        between steps.
        """
        while True:
            require_wanted()
            stop_at = self._stop_at()
            if must_stop(self._clock(), stop_at, self.seconds / max(1, self.steps)):
                return None
            await self._turn.regain()
            if self._is_due(urgent=stop_at is not None):
                self._delivery = self._start(self._deliver(await self._take()))
            stretch = self._accelerator.in_turn(self._advance)
            if stop_at is None and self._runs_to_the_end():
                self._turn.pass_on()
            finished = await stretch
            if finished is not None:
                require_wanted()
                if self._delivery is not None:
                    self._delivery.cancel()  # the images come instead
                return finished

    def _advance(self) -> ResultT | None:
        """In the accelerator's thread: one step, and those after it until a commit is due. The trip
        to the loop and back costs as much as a step of a small model.
        """
        if self._denoising is None and not self._goes_on():
            return None  # what was decided while it waited for its turn comes first
        self._prepare()
        if self._denoising is None:
            self._denoising = self._begin()
            self._first = self._committed = self._denoising.steps_taken
        denoising = self._denoising
        began = time.perf_counter()  # the loop's clock may stand while its thread sleeps
        _step(denoising)
        while not denoising.done and self._goes_on() and not self._is_due(urgent=False):
            _step(denoising)
        self.seconds += time.perf_counter() - began
        if denoising.done:
            return self._finish(denoising)
        if not self._goes_on():
            self._taken = _take(denoising)  # at once, whatever is queued here by now
        return None

    def _runs_to_the_end(self) -> bool:
        """Whether no commit is due before the last step."""
        denoising = self._denoising
        return not self._every or (
            denoising is not None and denoising.settings.steps - self._committed <= self._every
        )

    async def take_rest(self) -> Taken | None:
        """After a stop: what no commit holds yet, or None."""
        if self._denoising is None or self._committed == self._denoising.steps_taken:
            return None
        return await self._take()

    async def delivered(self) -> None:
        """Wait for the delivery under way."""
        if self._delivery is not None:
            await asyncio.wait((self._delivery,))

    def _is_due(self, *, urgent: bool) -> bool:
        denoising = self._denoising
        return denoising is not None and commit_due(
            denoising.steps_taken,
            denoising.settings.steps,
            self._committed,
            self._every,
            urgent=urgent,
            delivering=self._delivery is not None and not self._delivery.done(),
        )

    async def _take(self) -> Taken:
        denoising = self._denoising
        assert denoising is not None
        taken = self._taken
        if taken is None or taken.progress.step != denoising.steps_taken:
            await self._turn.regain()
            taken = await self._accelerator.in_turn(lambda: _take(denoising))
        self._committed = taken.progress.step
        return taken


def _step(denoising: Denoising) -> None:
    denoising.step()
    if torch.accelerator.is_available():
        torch.accelerator.synchronize()  # a step that is only queued is not taken


def _take(denoising: Denoising) -> Taken:
    began = time.perf_counter()
    progress = denoising.progress()
    return Taken(progress, time.perf_counter() - began)
