"""The members of an SP group as a group of torch.distributed: they meet over the control channel,
and share out a forward pass by sequence parallelism.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import cast

import torch

from spotlight.actors.runtime.abandonable_thread import AbandonableThread
from spotlight.actors.worker import engine
from spotlight.actors.worker.torch_model import TorchModel, synchronize
from spotlight.diffusion.progress import Progress
from spotlight.diffusion.samplers import Denoising
from spotlight.diffusion.sequence_parallel import SequenceParallel
from spotlight.errors import TransportError
from spotlight.timings import WorkerTimings
from spotlight.transport.collectives import Group, meet
from spotlight.transport.rendezvous import Rendezvous
from spotlight.types import Request


class TorchCollective:
    """See `engine.Collective`.

    Args:
        parallel: of each transformer that may denoise.
        ring: of the degree, so many parts are a ring.
    """

    def __init__(self, group: Group, parallel: Sequence[SequenceParallel], ring: int) -> None:
        self.group = group
        self._parallel = parallel
        self._ring = ring
        self._device = next(parallel[0].transformer.parameters()).device

    @property
    def rank(self) -> int:
        """See `engine.Collective`."""
        return self.group.rank

    @property
    def world(self) -> int:
        """See `engine.Collective`."""
        return self.group.world

    def send(self, command: tuple[int, int, int]) -> None:
        """See `engine.Collective`."""
        self.group.broadcast(torch.tensor(command, device=self._device))

    def receive(self) -> tuple[int, int, int]:
        """See `engine.Collective`."""
        command = torch.zeros(3, dtype=torch.int64, device=self._device)
        self.group.broadcast(command)
        run, kind, step = command.tolist()
        return run, kind, step

    def send_latents(self, denoising: engine.Denoising) -> None:
        """See `engine.Collective`."""
        self.group.broadcast(cast(Denoising, denoising).carried)

    def receive_latents(
        self, model: engine.Model, requests: Sequence[Request], step: int
    ) -> Progress:
        """See `engine.Collective`."""
        shape = cast(TorchModel, model).latent_shape(requests[0])
        looks_back = requests[0].settings.looks_back(step)
        carried = torch.empty(len(requests), 1 + looks_back, *shape, device=self._device)
        self.group.broadcast(carried)
        begin = Progress.begin(carried[:, 0])
        return replace(begin, step=step, foreseen=carried[:, 1:])

    def step(self, denoising: engine.Denoising) -> None:
        """See `engine.Collective`."""
        ahead = copy.copy(denoising)
        with ExitStack() as shared:
            for parallel in self._parallel:
                shared.enter_context(parallel.over(self.group, self._ring))
            ahead.step()
        synchronize()
        self.group.require_open()  # a collective that was aborted may end without an error
        denoising.adopt(ahead)

    def close(self) -> None:
        """See `engine.Collective`."""
        self.group.close()

    def abandon(self) -> None:
        """See `engine.Collective`."""
        self.group.abandon()


class TorchMeeting:
    """See `engine.Meeting`. The group is made in a thread of its own: it may hang with a peer that
    does.

    Args:
        host: this machine's address for collectives.
        where: what the group is called in errors.
    """

    def __init__(
        self,
        model: TorchModel,
        parallel: Sequence[SequenceParallel],
        *,
        host: str,
        where: str,
        rank: int,
        world: int,
        ring: int,
        send: Callable[[str, bytes], None],
        timings: WorkerTimings,
    ) -> None:
        loop = asyncio.get_running_loop()

        def send_from_thread(key: str, value: bytes) -> None:
            loop.call_soon_threadsafe(send, key, value)

        self._parallel = parallel
        self._ring = ring
        self._connect_limit_s = timings.connect_limit_s
        self._rendezvous = Rendezvous(send_from_thread, timeout_s=timings.meet_limit_s)
        self._meet = partial(
            meet,
            rank,
            world,
            store=self._rendezvous,
            where=where,
            host=host,
            connect_s=timings.peer_connect_s,
            timeout_s=timings.group_collective_limit_s,
            backend="nccl" if model.device.type == "cuda" else "gloo",
        )
        self.deliver = self._rendezvous.deliver
        self.close = self._rendezvous.close

    async def collective(self) -> TorchCollective:
        """See `engine.Meeting`."""
        thread = AbandonableThread("rendezvous")
        try:
            async with asyncio.timeout(self._connect_limit_s):
                group = await asyncio.wrap_future(thread.submit(self._meet))
        except TimeoutError as error:
            raise TransportError(f"not connected after {self._connect_limit_s:g} s") from error
        finally:
            thread.close()
        return TorchCollective(group, self._parallel, self._ring)
