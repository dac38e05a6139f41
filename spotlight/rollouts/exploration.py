"""Seed exploration beside another program's training loop."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Self

from spotlight.errors import JobError
from spotlight.jobs import WorkSpec
from spotlight.policies.exploration.explored import ExplorationPlan, Explored
from spotlight.policies.exploration.explorer import Explorer, Preview
from spotlight.policies.exploration.settings import PLANNERS, ExplorationSettings, PlannerName
from spotlight.rollouts.groups import ExploredPrompt, Group, RolloutRequest
from spotlight.rollouts.streams import GroupStream
from spotlight.rollouts.versions import AtLeast, Exactly

if TYPE_CHECKING:
    from spotlight.rollouts.rollouts import Rollouts

_ITERATION = 0
"""Iterations are the program's own: each exploration is of one, told apart by its seed."""


def settings_for(
    work: WorkSpec, prompts: int, *, keep: int, candidates: int, seed: int, planner: PlannerName
) -> ExplorationSettings:
    """What a program asks of an exploration of so many prompts; raises `JobError` naming what does
    not fit."""
    if not work.rewards:
        raise JobError("rewards", "exploration chooses seeds by them; open the session with one")
    if planner not in PLANNERS:
        names = ", ".join(f"`{name}`" for name in PLANNERS)
        raise JobError("planner", f"must be one of {names}, not `{planner}`")
    if not 1 <= keep <= candidates:
        raise JobError("keep", f"must be from 1 to `candidates` ({candidates}), not {keep}")
    if planner == "bandit" and keep < 2:
        raise JobError("keep", "must be at least 2 with `bandit`: one seed contrasts with none")
    return ExplorationSettings(
        seed=seed,
        keep=keep,
        trained=max(1, prompts),
        candidates=candidates,
        limits=tuple(reward.limits for reward in work.rewards),
        weights=tuple(reward.weight for reward in work.rewards),
        micro_batch=work.sampler.micro_batch,
        planner=planner,
    )


class Exploration:
    """Previews candidates until `stop`; see `Rollouts.explore`. It only requests as many previews
    as keep all workers busy, so that little is dropped when it stops.
    """

    def __init__(
        self,
        rollouts: Rollouts,
        prompts: Sequence[str],
        settings: ExplorationSettings,
        *,
        steps: int | None,
        version: AtLeast | Exactly,
    ) -> None:
        self._rollouts = rollouts
        self._steps = steps
        self._version = version
        self._plan = ExplorationPlan(
            iteration=_ITERATION,
            prompts=tuple(prompts),
            categories=("",) * len(prompts),
            window_s=math.inf,
            knowledge=rollouts.knowledge,
            share=1.0,
        )
        self._explorer = Explorer(settings)
        self._explored: Explored | None = None
        """The choice, once it is made."""
        self._has_begun = False
        self._asked: list[Preview] = []
        """What was asked for, by the index of the request."""
        self._scored = [0] * len(prompts)
        """How many candidates of each prompt are scored."""
        self._progress = asyncio.Event()
        self._stream = rollouts.stream(self._submit)
        self._reading = asyncio.create_task(self._read())
        self._reading.add_done_callback(_heed)  # also where nobody stops it any more

    async def stop(self) -> list[ExploredPrompt]:
        """Choose now, for each prompt in the order given; raises what kept it from going on."""
        await self._end()
        if not self._reading.cancelled():
            self._reading.result()
        if self._explored is None:
            if not self._has_begun:
                self._go_on(workers=0)  # nobody makes what it asks for
            self._explored = self._explorer.stop(_ITERATION, _now(), 0).explored
            assert self._explored is not None, "it chooses at once"
            self._rollouts.learn(self._explored.knowledge)
        return [
            ExploredPrompt(*each)
            for each in zip(
                self._plan.prompts,
                self._explored.seeds,
                self._explored.preview_rewards,
                self._scored,
                strict=True,
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
            previews = self._go_on((await self._rollouts.capacity()).workers)
            if self._explorer.is_spent:
                return
            wanted = list(enumerate(map(self._request, previews), len(self._asked)))
            self._asked += previews
            await self._rollouts.submit(stream, wanted, self._version, kind="preview")
            if self._explorer.in_work:  # else all of them were done before they were acknowledged
                self._progress.clear()
                await self._progress.wait()

    def _go_on(self, workers: int) -> tuple[Preview, ...]:
        """The previews to make next, with so many workers."""
        if self._has_begun:
            return self._explorer.go_on(_now(), workers).previews
        self._has_begun = True
        return self._explorer.start(self._plan, _now(), workers).previews

    async def _read(self) -> None:
        async for group in self._stream:
            self._record(self._asked[group.index], group)
            self._progress.set()

    def _request(self, preview: Preview) -> RolloutRequest:
        return RolloutRequest(preview.prompt, (preview.seed,), self._version, steps=self._steps)

    def _record(self, preview: Preview, group: Group) -> None:
        if group.samples:
            self._explorer.finished(preview, tuple(group.samples[0].rewards.values()), _now())
            self._scored[preview.group] += 1
        else:
            self._explorer.given_up(preview)


def _now() -> float:
    return asyncio.get_running_loop().time()


def _heed(reading: asyncio.Task[None]) -> None:
    """What ended it is raised by `stop`; asyncio need not complain where that is not called."""
    if not reading.cancelled():
        reading.exception()
