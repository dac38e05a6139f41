"""Seed exploration beside another program's training loop."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Self

from spotlight.errors import JobError
from spotlight.policies.exploration.planners import Candidate, UniformPlanner, chunk_size
from spotlight.rollouts.groups import ExploredPrompt, Group, RolloutRequest
from spotlight.rollouts.streams import GroupStream
from spotlight.rollouts.versions import AtLeast, Exactly

if TYPE_CHECKING:
    from spotlight.rollouts.rollouts import Rollouts


class Exploration:
    """Previews candidates until `stop`; see `Rollouts.explore`. It only requests as many previews
    as keep all workers busy, so that little is dropped when it stops.
    """

    def __init__(
        self,
        rollouts: Rollouts,
        prompts: Sequence[str],
        *,
        keep: int,
        candidates: int,
        seed: int,
        steps: int | None,
        version: AtLeast | Exactly,
        weights: Sequence[float],
        micro_batch: int,
    ) -> None:
        if not 1 <= keep <= candidates:
            raise JobError("keep", f"must be from 1 to `candidates` ({candidates}), not {keep}")
        self._rollouts = rollouts
        self._prompts = tuple(prompts)
        self._steps = steps
        self._version = version
        self._micro_batch = micro_batch
        self._planner = UniformPlanner(
            job_seed=seed,
            iteration=0,
            groups=len(self._prompts),
            keep=keep,
            candidates=candidates,
            weights=weights,
        )
        self._scored = [0] * len(self._prompts)
        self._asked: list[Candidate] = []
        """What was asked for, by the index of the request."""
        self._outstanding = 0
        self._progress = asyncio.Event()
        self._stream = rollouts.stream(self._submit)
        self._reading = asyncio.create_task(self._read())
        self._reading.add_done_callback(_heed)  # also where nobody stops it any more

    async def stop(self) -> list[ExploredPrompt]:
        """Choose now, for each prompt in the order given; raises what kept it from going on."""
        await self._end()
        if not self._reading.cancelled():
            self._reading.result()
        return [
            ExploredPrompt(prompt, choice.seeds, choice.preview_rewards, scored)
            for prompt, choice, scored in zip(
                self._prompts, self._planner.choose(), self._scored, strict=True
            )
        ]

    async def wait(self) -> None:
        """Until all candidates are scored."""
        await asyncio.wait((self._reading,))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._end()

    async def _end(self) -> None:
        self._reading.cancel()
        await asyncio.wait((self._reading,))
        await self._stream.aclose()

    async def _submit(self, stream: GroupStream) -> None:
        while True:
            workers = (await self._rollouts.capacity()).workers
            size = chunk_size(self._outstanding, workers, self._micro_batch)
            chunk = self._planner.next_chunk(size)
            if size and not chunk:
                return
            self._outstanding += len(chunk)
            first = len(self._asked)
            self._asked += chunk
            wanted = list(enumerate(map(self._request, chunk), first))
            await self._rollouts.submit(stream, wanted, self._version, kind="preview")
            self._progress.clear()
            await self._progress.wait()

    async def _read(self) -> None:
        async for group in self._stream:
            self._outstanding -= 1
            self._record(self._asked[group.index], group)
            self._progress.set()

    def _request(self, candidate: Candidate) -> RolloutRequest:
        prompt = self._prompts[candidate.group]
        return RolloutRequest(prompt, (candidate.seed,), self._version, steps=self._steps)

    def _record(self, candidate: Candidate, group: Group) -> None:
        if group.samples:
            self._planner.record(candidate, tuple(group.samples[0].rewards.values()))
            self._scored[candidate.group] += 1
        else:
            self._planner.forget(candidate)


def _heed(reading: asyncio.Task[None]) -> None:
    """What ended it is raised by `stop`; asyncio need not complain where that is not called."""
    if not reading.cancelled():
        reading.exception()
