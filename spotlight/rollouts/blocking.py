"""`Rollouts` for programs without an event loop: every call waits for its result.

The session lives in a thread of its own, with a loop of its own, until the context is over. Calls
may come from any thread, and from several at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from spotlight.policies.exploration.settings import PlannerName
from spotlight.rollouts.exploration import Exploration
from spotlight.rollouts.groups import Capacity, ExploredPrompt, Group, RolloutRequest, Usage
from spotlight.rollouts.publication import Kind
from spotlight.rollouts.rollouts import Model, Rewards, Rollouts, Sampler
from spotlight.rollouts.streams import GroupStream
from spotlight.rollouts.versions import ANY_VERSION, AtLeast, Exactly
from spotlight.running.loop_thread import LoopThread

if TYPE_CHECKING:
    from torch import Tensor


class BlockingRollouts:
    """See the module's docstring, and `Rollouts` for what every call does."""

    def __init__(self, rollouts: Rollouts, thread: LoopThread) -> None:
        """Not for users: see `connect` and `local`."""
        self._rollouts = rollouts
        self._thread = thread

    @classmethod
    @contextmanager
    def connect(
        cls,
        join: str = "",
        *,
        model: Model,
        sampler: Sampler,
        rewards: Rewards = (),
        threads: int = 1,
        tensors: bool = True,
        host: str = "",
        store: Path | str | None = None,
        weight: float = 1.0,
    ) -> Iterator[BlockingRollouts]:
        """See `Rollouts.connect`."""
        opened = Rollouts.connect(
            join,
            model=model,
            sampler=sampler,
            rewards=rewards,
            threads=threads,
            tensors=tensors,
            host=host,
            store=store,
            weight=weight,
        )
        with _in_thread(opened) as rollouts:
            yield rollouts

    @classmethod
    @contextmanager
    def local(
        cls,
        *,
        workers: int = 1,
        model: Model,
        sampler: Sampler,
        rewards: Rewards = (),
        threads: int = 1,
        tensors: bool = True,
        store: Path | str | None = None,
    ) -> Iterator[BlockingRollouts]:
        """See `Rollouts.local`."""
        opened = Rollouts.local(
            workers=workers,
            model=model,
            sampler=sampler,
            rewards=rewards,
            threads=threads,
            tensors=tensors,
            store=store,
        )
        with _in_thread(opened) as rollouts:
            yield rollouts

    def publish(self, weights: Mapping[str, Tensor], version: int, kind: Kind = "full") -> None:
        """See `Rollouts.publish`."""
        self._thread.call(self._rollouts.publish(weights, version, kind))

    @property
    def newest_version(self) -> int:
        """See `Rollouts.newest_version`."""
        return self._rollouts.newest_version

    def rollout(self, requests: Iterable[RolloutRequest]) -> Iterator[Group]:
        """See `Rollouts.rollout`. Work begins at once; closing the iterator drops the rest."""
        return _groups(self._thread, self._thread.call(self._begin(tuple(requests))))

    def explore(
        self,
        prompts: Sequence[str],
        *,
        keep: int,
        candidates: int,
        seed: int = 0,
        steps: int | None = None,
        version: AtLeast | Exactly = ANY_VERSION,
        planner: PlannerName = "uniform",
    ) -> BlockingExploration:
        """See `Rollouts.explore`: it goes on while the caller trains."""

        async def explore() -> Exploration:
            return self._rollouts.explore(
                prompts,
                keep=keep,
                candidates=candidates,
                seed=seed,
                steps=steps,
                version=version,
                planner=planner,
            )

        return BlockingExploration(self._thread.call(explore()), self._thread)

    def capacity(self) -> Capacity:
        """See `Rollouts.capacity`."""
        return self._thread.call(self._rollouts.capacity())

    def usage(self) -> Usage:
        """See `Rollouts.usage`."""
        return self._thread.call(self._rollouts.usage())

    async def _begin(self, requests: Sequence[RolloutRequest]) -> GroupStream:
        return self._rollouts.rollout(requests)


class BlockingExploration:
    """See `Exploration`."""

    def __init__(self, exploration: Exploration, thread: LoopThread) -> None:
        self._exploration = exploration
        self._thread = thread

    def stop(self) -> list[ExploredPrompt]:
        """See `Exploration.stop`."""
        return self._thread.call(self._exploration.stop())

    def wait(self) -> None:
        """See `Exploration.wait`."""
        self._thread.call(self._exploration.wait())


@contextmanager
def _in_thread(opened: AbstractAsyncContextManager[Rollouts]) -> Iterator[BlockingRollouts]:
    with LoopThread() as thread:
        rollouts = thread.call(opened.__aenter__())
        try:
            yield BlockingRollouts(rollouts, thread)
        finally:
            thread.call(opened.__aexit__(None, None, None))


def _groups(thread: LoopThread, stream: GroupStream) -> Iterator[Group]:
    try:
        while True:
            try:
                group = thread.call(stream.__anext__())
            except StopAsyncIteration:
                return
            yield group
    finally:
        if thread.is_running:  # else the session is over, and the stream with it
            thread.call(stream.aclose())
