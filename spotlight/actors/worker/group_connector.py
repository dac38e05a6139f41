"""How a member comes together with the others of its SP group: a group of torch.distributed whose
ranks meet over the control channel.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

from spotlight.actors.protocol import FormGroup
from spotlight.actors.runtime.abandonable_thread import AbandonableThread
from spotlight.actors.worker.worker_state import WorkerContext
from spotlight.diffusion.lockstep import GroupSteps, SoloSteps, StepGroup
from spotlight.diffusion.model import DiffusionModel
from spotlight.diffusion.sequence_parallel import SequenceParallel
from spotlight.errors import TransportError
from spotlight.timings import WorkerTimings
from spotlight.transport.collectives import Group, meet
from spotlight.transport.rendezvous import Rendezvous


class GroupConnector:
    """See `group_seat.Connector`.

    Args:
        host: this machine's address for collectives.
        model: the one that is loaded, and the fingerprint of its job; None before.
    """

    def __init__(
        self,
        context: WorkerContext,
        host: str,
        model: Callable[[], tuple[DiffusionModel, str] | None],
    ) -> None:
        self._context = context
        self._host = host
        self._model = model
        self._parallel: SequenceParallel | None = None
        self.alone: StepGroup = SoloSteps()

    def fingerprint(self) -> str | None:
        """See `Connector.fingerprint`."""
        loaded = self._model()
        return loaded[1] if loaded is not None else None

    def meet(self, order: FormGroup, rank: int, send: Callable[[str, bytes], None]) -> _Arrival:
        """See `Connector.meet`."""
        loaded = self._model()
        if loaded is None:
            raise TransportError("the job has ended on this member")
        transformer = loaded[0].transformer
        if self._parallel is None or self._parallel.transformer is not transformer:
            self._parallel = SequenceParallel(transformer)
        begin = partial(
            meet,
            rank,
            len(order.seats),
            where=f"SP group {order.epoch}",
            host=self._host,
            connect_s=self._context.timings.worker.peer_connect_s,
            timeout_s=self._context.timings.worker.group_collective_limit_s,
            backend="nccl" if loaded[0].device.type == "cuda" else "gloo",
        )
        return _Arrival(begin, self._parallel, order.ring, send, self._context.timings.worker)

    def forget(self) -> None:
        """Let go of the model: another is going to be loaded."""
        self._parallel = None

    def leave(self, company: StepGroup) -> None:
        """See `Connector.leave`."""
        if isinstance(company, GroupSteps):
            company.group.close()

    def leave_behind(self, company: StepGroup) -> None:
        """See `Connector.leave_behind`."""
        if isinstance(company, GroupSteps):
            company.group.abandon()
            if company.inside:
                self._context.abandon_accelerator()


class _Arrival:
    """See `group_seat.Encounter`. `begin` makes the group, in a thread of its own."""

    def __init__(
        self,
        begin: Callable[..., Group],
        parallel: SequenceParallel,
        ring: int,
        send: Callable[[str, bytes], None],
        timings: WorkerTimings,
    ) -> None:
        self._begin = begin
        self._connect_limit_s = timings.connect_limit_s
        self._parallel = parallel
        self._ring = ring
        loop = asyncio.get_running_loop()

        def send_from_thread(key: str, value: bytes) -> None:
            loop.call_soon_threadsafe(send, key, value)

        self._rendezvous = Rendezvous(send_from_thread, timeout_s=timings.meet_limit_s)
        self.deliver = self._rendezvous.deliver
        self.close = self._rendezvous.close

    async def company(self) -> GroupSteps:
        """See `Arrival.company`."""
        thread = AbandonableThread("rendezvous")  # it may hang with a peer that does
        try:
            async with asyncio.timeout(self._connect_limit_s):
                group = await asyncio.wrap_future(
                    thread.submit(lambda: self._begin(store=self._rendezvous))
                )
        except TimeoutError as error:
            raise TransportError(f"not connected after {self._connect_limit_s:g} s") from error
        finally:
            thread.close()
        return GroupSteps(group, self._parallel, self._ring)
