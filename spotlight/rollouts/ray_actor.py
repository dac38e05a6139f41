"""`Rollouts` as a Ray actor, for training programs that run under Ray.

    rollouts = ray.remote(RolloutActor).remote(lambda: Rollouts.connect(...))

This module does not import Ray: the program does, and says what the actor may have of its cluster.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import replace
from typing import TYPE_CHECKING

from spotlight.errors import JobError, SessionEnded
from spotlight.policies.exploration.settings import PlannerName
from spotlight.rollouts.exploration import Exploration
from spotlight.rollouts.groups import Capacity, ExploredPrompt, Group, RolloutRequest, Usage
from spotlight.rollouts.publication import Kind
from spotlight.rollouts.rollouts import Rollouts
from spotlight.rollouts.versions import ANY_VERSION, AtLeast, Exactly

if TYPE_CHECKING:
    from torch import Tensor


class RolloutActor:
    """See `Rollouts` for what every call does. Calls run side by side and in no particular order:
    wait for a publication, or ask for its version with `AtLeast` or `Exactly`.

    The session ends with `close`, or when nobody has a handle of the actor any more.

    Args:
        open_rollouts: opens the session, at the first call. If it cannot, that call raises why, and
            the next tries again.
    """

    def __init__(self, open_rollouts: Callable[[], AbstractAsyncContextManager[Rollouts]]) -> None:
        self._open_rollouts = open_rollouts
        self._opening = asyncio.Lock()
        self._rollouts: Rollouts | None = None
        self._context = AsyncExitStack()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_closed = False
        self._explorations: dict[int, Exploration] = {}
        self._numbers = itertools.count(1)

    async def publish(
        self, weights: Mapping[str, Tensor], version: int, kind: Kind = "full"
    ) -> None:
        """See `Rollouts.publish`. The weights may be an object reference, as `ray.put` gives it;
        they are tensors that a process without a GPU can read.
        """
        await (await self._session()).publish(weights, version, kind)

    async def rollout(self, requests: Iterable[RolloutRequest]) -> AsyncGenerator[Group, None]:
        """See `Rollouts.rollout`: the caller gets a reference to each group as soon as it is done.
        `ray.cancel` drops the rest.
        """
        async with (await self._session()).rollout(requests) as groups:
            async for group in groups:
                yield _compact(group)

    async def explore(
        self,
        prompts: Sequence[str],
        *,
        keep: int,
        candidates: int,
        seed: int = 0,
        steps: int | None = None,
        version: AtLeast | Exactly = ANY_VERSION,
        planner: PlannerName = "uniform",
    ) -> int:
        """See `Rollouts.explore`. It goes on while the caller trains; what this returns, or its
        reference, is for `stop_exploring`.
        """
        exploration = (await self._session()).explore(
            prompts,
            keep=keep,
            candidates=candidates,
            seed=seed,
            steps=steps,
            version=version,
            planner=planner,
        )
        number = next(self._numbers)
        self._explorations[number] = exploration
        return number

    async def stop_exploring(
        self, exploration: int, *, when_complete: bool = False
    ) -> list[ExploredPrompt]:
        """See `Exploration.stop`.

        Args:
            when_complete: let it score all candidates first.
        """
        found = self._explorations.get(exploration)
        if found is None:
            raise JobError("exploration", f"{exploration} is none that goes on")
        if when_complete:
            await found.wait()
        self._explorations.pop(exploration, None)
        return await found.stop()

    async def newest_version(self) -> int:
        """See `Rollouts.newest_version`."""
        return (await self._session()).newest_version

    async def capacity(self) -> Capacity:
        """See `Rollouts.capacity`."""
        return await (await self._session()).capacity()

    async def usage(self) -> Usage:
        """See `Rollouts.usage`."""
        return await (await self._session()).usage()

    async def close(self) -> None:
        """End the session. Whoever still waits for groups is told so, as is every later call."""
        async with self._opening:
            self._is_closed = True
            self._rollouts = None
            for exploration in self._explorations.values():
                async with exploration:
                    pass  # it is dropped
            self._explorations.clear()
            await self._context.aclose()

    def __ray_shutdown__(self) -> None:
        """Ray calls it when nobody has a handle any more; the actor's loop is not running then."""
        if self._loop is not None:
            self._loop.run_until_complete(self.close())

    async def _session(self) -> Rollouts:
        async with self._opening:
            if self._is_closed:
                raise SessionEnded("the actor's session was closed")
            if self._rollouts is None:
                self._loop = asyncio.get_running_loop()
                opened = self._open_rollouts()
                self._rollouts = await self._context.enter_async_context(opened)
            return self._rollouts


def _compact(group: Group) -> Group:
    """With tensors of its own: those of a sample are parts of its whole batch's, all of which would
    be sent with each.
    """
    samples = (
        replace(
            sample,
            latents=_copy(sample.latents),
            states=_copy(sample.states),
            log_probs=_copy(sample.log_probs),
        )
        for sample in group.samples
    )
    return replace(group, samples=tuple(samples))


def _copy(tensor: Tensor | None) -> Tensor | None:
    return None if tensor is None else tensor.clone()
