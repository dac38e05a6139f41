"""The denoising steps of one batch of a simulated member, with whoever is in its SP group, and the
commits beside them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from spotlight.actors.runtime import Actor
from spotlight.actors.worker.batch_member import Unwanted
from spotlight.actors.worker.sp_membership import SPMembership
from spotlight.errors import TransportError
from spotlight.policies.commit_interval import commit_due, must_stop
from spotlight.testing.fake_collectives import StepGroup
from spotlight.testing.fake_hardware import FakeHardware, SimulatedBatch

ResultT = TypeVar("ResultT")


class Steps:
    """Stands where a `StepLoop` does.

    Args:
        actor: the member.
        worker: its name.
        commit: delivers the progress that there is when it is called.
        stop_at: when the batch must have stopped, or None.
        is_wanted: whether somebody wants the batch.
    """

    def __init__(
        self,
        actor: Actor,
        worker: str,
        node: str,
        plant: FakeHardware,
        seat: SPMembership[StepGroup],
        batch: SimulatedBatch,
        *,
        commit: Callable[[], Coroutine[Any, Any, None]],
        stop_at: Callable[[], float | None],
        is_wanted: Callable[[], bool],
    ) -> None:
        self._actor = actor
        self._worker = worker
        self._node = node
        self._plant = plant
        self._seat = seat
        self._batch = batch
        self._commit = commit
        self._stop_at = stop_at
        self._is_wanted = is_wanted
        self._delivery: asyncio.Task[None] | None = None
        self._last = batch.steps

    async def take(self) -> bool:
        """Whether the batch came to its end. Raises `Unwanted`."""
        batch = self._batch
        try:
            while batch.step < self._last:
                self._require_wanted()
                if self._must_stop() or not await self._go_on():
                    if self._delivery is not None:
                        await asyncio.wait((self._delivery,))
                    return False
            self._require_wanted()
        except BaseException:
            if self._delivery is not None:
                self._delivery.cancel()
            raise
        if self._delivery is not None:
            self._delivery.cancel()  # the last step is delivered instead
        return True

    def _require_wanted(self) -> None:
        if not self._is_wanted():
            raise Unwanted

    def _must_stop(self) -> bool:
        batch = self._batch
        step_s = batch.seconds / max(1, batch.step - batch.first)
        now = asyncio.get_running_loop().time()
        return batch.recalled or must_stop(now, self._stop_at(), step_s)

    async def _go_on(self) -> bool:
        """Commit if that is due, and take some steps; False if this member leads no group."""
        batch = self._batch
        if self._is_due(urgent=self._stop_at() is not None):
            await asyncio.sleep(self._plant.timings.copy_s)
            batch.committed = batch.step
            self._delivery = self._actor.run_task(self._commit())
        stretch = await self._seat.lead(batch.message.requests, checksum(batch.weights))
        if stretch is None:
            return False
        broke: TransportError | None = None
        try:
            steps = apart(self._actor, self._advance(stretch.company, stretch.number))
            await asyncio.wait((steps, stretch.broken), return_when=asyncio.FIRST_COMPLETED)
            if steps.done():
                steps.result()
            else:
                steps.cancel()
        except TransportError as error:
            broke = error
        finally:
            stretch.over(broke)
        return True

    async def _advance(self, company: StepGroup, stretch: int) -> None:
        """Steps until something is to be decided."""
        clock, plant, batch = asyncio.get_running_loop().time, self._plant, self._batch
        company.begin(stretch, batch.state)
        batch.degrees.add(company.members)
        goes_on = True
        while goes_on:
            began = clock()
            after = await company.step(batch.state, plant.step_s(self._node, company.members))
            batch.seconds += clock() - began
            batch.latents, batch.step = list(after.latents), after.step
            plant.steps += len(batch.latents)
            if plant.is_poisonous(batch.message.requests):
                plant.kill(self._worker)
                await asyncio.sleep(3600.0)
            goes_on = (
                batch.step < self._last
                and self._is_wanted()
                and not batch.recalled
                and self._stop_at() is None
                and not self._seat.changing
                and not self._is_due(urgent=False)
            )
        company.end()

    def _is_due(self, *, urgent: bool) -> bool:
        batch, delivery = self._batch, self._delivery
        return commit_due(
            batch.step,
            self._last,
            batch.committed,
            batch.message.commit_every,
            urgent=urgent,
            delivering=delivery is not None and not delivery.done(),
        )


def checksum(weights: str) -> int:
    """Of a version, as it is told to others."""
    return int(weights[:8], 16)


def apart(actor: Actor, work: Coroutine[Any, Any, ResultT]) -> asyncio.Future[ResultT]:
    """Work of an actor that can be left behind, as that of an accelerator's thread can."""
    outcome: asyncio.Future[ResultT] = asyncio.get_running_loop().create_future()

    async def run() -> None:
        try:
            result = await work
        except TransportError as error:
            if not outcome.done():
                outcome.set_exception(error)
        else:
            if not outcome.done():
                outcome.set_result(result)

    task = actor.run_task(run())
    outcome.add_done_callback(lambda _: task.cancel())
    return outcome
