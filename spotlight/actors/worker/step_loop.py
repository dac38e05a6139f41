"""The denoising steps of one batch, and the commits beside them.

Steps run in the accelerator's thread, several at a time while nothing is to be decided; when to
commit and when to stop is decided on the loop. Of a commit only the copy to the CPU keeps the
accelerator from denoising: packing and delivering happen beside the next steps, one delivery at a
time. When the SP group breaks or changes, the batch goes on with the next one from the last step
that was completed.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field, replace
from typing import Any, Generic, Protocol, TypeVar

from spotlight.actors.worker.engine import Denoising, Progress
from spotlight.actors.worker.step_group import StepGroup
from spotlight.actors.worker.worker_state import Turn
from spotlight.errors import TransportError
from spotlight.policies.commit_interval import commit_due, must_stop

ResultT = TypeVar("ResultT")


class Accelerator(Protocol):
    """Whose turn it is at the accelerator, seen by the one who has it."""

    def seconds(self) -> float:
        """A clock for how long work takes; read in any thread."""

    def in_turn(self, work: Callable[[], ResultT]) -> asyncio.Future[ResultT]:
        """Queue torch work."""


class StepRun(Protocol):
    """Leave to take some steps with those who are in one's SP group now."""

    number: int
    group: StepGroup
    broken: asyncio.Future[None]
    """Done when the group is no more: its accelerator thread may be stuck."""

    def over(self, error: TransportError | None = None) -> None:
        """It has ended, or was left behind; with what broke the group."""


@dataclass(frozen=True)
class Taken:
    """Progress that was copied from the accelerator."""

    progress: Progress
    cost_s: float
    """How long that kept the accelerator from denoising."""


@dataclass
class _Work:
    """What the accelerator's thread changes. One that is left behind keeps its own."""

    denoising: Denoising | None = None
    first: int = 0
    """Steps that were taken elsewhere."""
    seconds: float = 0.0
    degrees: set[int] = field(default_factory=set)
    taken: Taken | None = None

    def copied(self) -> _Work:
        """As after the last step that was completed."""
        return replace(self, denoising=copy.copy(self.denoising), degrees=set(self.degrees))


class StepLoop(Generic[ResultT]):
    """Takes the steps of one batch until it is done or told to stop.

    Args:
        turn: at the accelerator; passed on when nothing more is to be decided before the end.
        lead: waits for the SP group, and calls the others together; None if this member leads
            no group any more.
        prepare: loads the batch's weights, unless they are loaded; in the accelerator's thread,
            before every run of steps.
        begin: makes the denoising, in the accelerator's thread.
        finish: what becomes of its copy after the last step, in the accelerator's thread too.
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
        lead: Callable[[], Coroutine[Any, Any, StepRun | None]],
        prepare: Callable[[], None],
        begin: Callable[[], Denoising],
        finish: Callable[[Taken], ResultT],
        commit_every: int,
        deliver: Callable[[Taken], Coroutine[Any, Any, None]],
        stop_at: Callable[[], float | None],
        goes_on: Callable[[], bool],
        start: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]],
    ) -> None:
        self._turn = turn
        self._lead = lead
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
        self._work = _Work()
        self._committed = 0
        self._delivery: asyncio.Task[None] | None = None

    @property
    def steps(self) -> int:
        """Steps taken here."""
        denoising = self._work.denoising
        return denoising.steps_taken - self._work.first if denoising is not None else 0

    @property
    def seconds(self) -> float:
        """Time that the steps taken here took."""
        return self._work.seconds

    @property
    def members(self) -> int:
        """Members that took all these steps; 0 if the group changed on the way."""
        degrees = self._work.degrees
        return next(iter(degrees)) if len(degrees) == 1 else 0

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
            if self._is_due(self._work, urgent=stop_at is not None):
                self._delivery = self._start(self._deliver(await self._take()))
            run = await self._lead()
            if run is None:
                return None
            finished = await self._take_run(run, passes_on=stop_at is None)
            if finished is not None:
                require_wanted()
                if self._delivery is not None:
                    self._delivery.cancel()  # the last step is delivered instead
                return finished

    async def _take_run(self, run: StepRun, *, passes_on: bool) -> ResultT | None:
        work = self._work
        steps = self._accelerator.in_turn(lambda: self._advance(run, work))
        if passes_on and self._runs_to_the_end():
            self._turn.pass_on()
        broke: TransportError | None = None
        try:
            await asyncio.wait((steps, run.broken), return_when=asyncio.FIRST_COMPLETED)
            if steps.done():
                return steps.result()
            steps.cancel()  # how it ends, if it has begun, is of no interest
            self._work = work.copied()
        except TransportError as error:
            broke = error.with_traceback(None)  # or this frame would keep the group alive
        finally:
            run.over(broke)
        return None

    def _advance(self, run: StepRun, work: _Work) -> ResultT | None:
        """In the accelerator's thread: one step, and those after it until a commit is due. The trip
        to the loop and back costs as much as a step of a small model.
        """
        group = run.group
        with group.lead(run.number):
            if work.denoising is None and not self._goes_on():
                return None  # what was decided while it waited for its turn comes first
            self._prepare()
            if work.denoising is None:
                denoising = self._begin()
                work.first, work.denoising = denoising.steps_taken, denoising
            denoising = work.denoising
            if not denoising.done:  # unless the group broke after the last step
                group.begin(denoising)
                work.degrees.add(group.members)
                self._step(group, denoising, work)
                while not (denoising.done or self._is_due(work, urgent=False)) and self._goes_on():
                    self._step(group, denoising, work)
        if denoising.done:
            return self._finish(self._copy(denoising))
        if not self._goes_on():
            work.taken = self._copy(denoising)  # at once, whatever is queued here by now
        return None

    def _runs_to_the_end(self) -> bool:
        """Whether no commit is due before the last step."""
        denoising = self._work.denoising
        return not self._every or (
            denoising is not None and denoising.steps - self._saved(self._work) <= self._every
        )

    async def take_rest(self) -> Taken | None:
        """After a stop: what no commit holds yet, or None."""
        denoising = self._work.denoising
        if denoising is None or self._saved(self._work) == denoising.steps_taken:
            return None
        return await self._take()

    async def delivered(self) -> None:
        """Wait for the delivery under way."""
        if self._delivery is not None:
            await asyncio.wait((self._delivery,))

    def _saved(self, work: _Work) -> int:
        """The step after which the batch could be resumed elsewhere."""
        return max(self._committed, work.first)

    def _is_due(self, work: _Work, *, urgent: bool) -> bool:
        denoising = work.denoising
        return denoising is not None and commit_due(
            denoising.steps_taken,
            denoising.steps,
            self._saved(work),
            self._every,
            urgent=urgent,
            delivering=self._delivery is not None and not self._delivery.done(),
        )

    async def _take(self) -> Taken:
        denoising, taken = self._work.denoising, self._work.taken
        assert denoising is not None
        if taken is None or taken.progress.step != denoising.steps_taken:
            await self._turn.regain()
            taken = await self._accelerator.in_turn(lambda: self._copy(denoising))
        self._committed = taken.progress.step
        return taken

    def _step(self, group: StepGroup, denoising: Denoising, work: _Work) -> None:
        began = self._accelerator.seconds()
        group.step(denoising)
        work.seconds += self._accelerator.seconds() - began

    def _copy(self, denoising: Denoising) -> Taken:
        """In the accelerator's thread: what is done so far."""
        began = self._accelerator.seconds()
        progress = denoising.progress()
        return Taken(progress, self._accelerator.seconds() - began)
