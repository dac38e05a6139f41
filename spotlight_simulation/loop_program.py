"""Somebody's training loop in a simulated cluster: what it asks of its `Rollouts`, and what comes
of it, is in the history."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

from spotlight.actors.coordinator.tenant.request_plans import sampling_settings
from spotlight.errors import RequestRefused, SessionEnded, VersionGone
from spotlight.jobs import WorkSpec
from spotlight.rollouts.exploration import Exploration
from spotlight.rollouts.groups import Group, RolloutRequest, Sample
from spotlight.rollouts.rollouts import Rollouts
from spotlight.rollouts.streams import GroupStream
from spotlight.rollouts.versions import ANY_VERSION, AtLeast, Exactly
from spotlight.types import Request
from spotlight_simulation import fingerprints
from spotlight_simulation.history import History

KEEP = 2
"""Seeds that an exploration chooses for a prompt."""
_MANY = 60
"""Groups: more than are done before the loop turns to something else."""
_PREVIEW_STEPS = 4
_LATE_S = 5.0
"""What nobody wants any more may still come for so long; it is deleted with what comes next."""
_TOLD_WITHIN_S = 1.0


@dataclass(eq=False)
class _Call:
    """One of `rollout`, not read to its end yet."""

    number: int
    stream: GroupStream
    requests: tuple[RolloutRequest, ...]


class LoopProgram:
    """One session of the loop.

    Args:
        session: its name.
        work: what the session was begun with.
    """

    def __init__(
        self,
        rollouts: Rollouts,
        session: str,
        work: WorkSpec,
        *,
        rng: random.Random,
        history: History,
    ) -> None:
        self._rollouts = rollouts
        self._session = session
        self._work = work
        self._rng = rng
        self._history = history
        self._number = 0
        self._calls: list[_Call] = []

    # --- the loop ---

    async def turn(self, train_s: float) -> None:
        """One iteration: publish, have samples made, explore while training. Raises `SessionEnded`,
        as all of these.
        """
        rng, version = self._rng, self._rollouts.newest_version + 1
        before = Exactly(max(0, version - 1))
        if rng.random() < 0.4:  # what waits for the weights that come, and what needs the last
            self._ask([AtLeast(version), Exactly(version), before])
        meanwhile = [self._read_all(leaving=0.15)] if rng.random() < 0.3 else []
        await asyncio.gather(self._publish(version), *meanwhile)
        self._ask([ANY_VERSION, AtLeast(version), Exactly(version), before])
        if rng.random() < 0.2:
            self._ask([Exactly(max(0, version - 3))], count=1)
        exploration = self._explore() if rng.random() < 0.6 else None
        if rng.random() < 0.7:
            await self._read_all(leaving=0.15)
        await asyncio.sleep(train_s)
        if exploration is not None:
            self._note_choice(await exploration.stop())
        capacity = await self._rollouts.capacity()
        self._note("looked", published=version, told=capacity.newest_version)

    async def finish(self) -> None:
        """Read what is open, and one group more."""
        await self._read_all(leaving=0.0)
        await asyncio.sleep(_LATE_S)
        self._ask([ANY_VERSION], count=1)
        await self._read_all(leaving=0.0)

    async def begin_much(self) -> None:
        """Ask for more than will be waited for."""
        self._ask([ANY_VERSION], count=_MANY)
        self._explore()
        call = self._calls[-1]
        for _ in range(2):
            self._note_group(call, await anext(call.stream))

    async def wait_for_the_end(self) -> None:
        """Read until the session is lost."""
        await self._read_all(leaving=0.0)
        await self._rollouts.capacity()

    async def hear_of_the_end(self) -> None:
        """The session is lost: every call and iterator says so, at once."""
        try:
            async with asyncio.timeout(_TOLD_WITHIN_S):
                for call in self._calls:
                    await self._read_to_the_end(call)
                await self._rollouts.capacity()
        except SessionEnded:
            return
        except TimeoutError:
            self._history.violation("a call waits for a session that was lost")
        self._history.violation("a session that was lost goes on")

    # --- what it asks ---

    async def _publish(self, version: int) -> None:
        await self._rollouts.publish(cast(Any, self._weights(version)), version)
        self._note("published", version=version)

    def _ask(self, rules: Sequence[AtLeast | Exactly], count: int = 0) -> None:
        rng = self._rng
        requests = tuple(
            RolloutRequest(
                f'the number "{rng.randrange(1000, 2000)}"',
                tuple(rng.sample(range(1000), rng.randint(1, 5))),
                rng.choice(rules),
                images=rng.random() < 0.3,
                steps=rng.choice([None, None, _PREVIEW_STEPS]),
            )
            for _ in range(count or rng.randint(1, 6))
        )
        self._number += 1
        self._note(
            "asked",
            call=self._number,
            newest=self._rollouts.newest_version,
            kept=tuple(sorted(self._rollouts.versions)),
            requests=tuple(
                (each.prompt, tuple(each.seeds), type(each.version).__name__, each.version.version)
                for each in requests
            ),
        )
        self._calls.append(_Call(self._number, self._rollouts.rollout(requests), requests))

    def _explore(self) -> Exploration:
        rng = self._rng
        return self._rollouts.explore(
            [f'the number "{rng.randrange(1000, 2000)}"' for _ in range(2)],
            keep=KEEP,
            candidates=rng.choice([4, 8, 40]),
            seed=rng.randrange(1000),
            steps=_PREVIEW_STEPS,
        )

    # --- what it gets ---

    async def _read_all(self, *, leaving: float) -> None:
        while self._calls:
            call = self._calls.pop(0)
            leaves = self._rng.random() < leaving
            await self._read(call, most=1 if leaves else len(call.requests))

    async def _read(self, call: _Call, *, most: int) -> None:
        """All groups of a call, or the first ones."""
        if most < len(call.requests):
            async with call.stream:
                for _ in range(most):
                    self._note_group(call, await anext(call.stream))
            self._note("read", call=call.number, until="left", reason="")
        else:
            await self._read_to_the_end(call)

    async def _read_to_the_end(self, call: _Call) -> None:
        until, reason = "done", ""
        try:
            async for group in call.stream:
                self._note_group(call, group)
        except SessionEnded:
            until = "session ended"  # the reason is that of the session
        except VersionGone as error:
            until, reason = "version gone", str(error)
        except RequestRefused as error:
            until, reason = "refused", str(error)
        self._note("read", call=call.number, until=until, reason=reason)
        if until == "session ended":
            await self._rollouts.capacity()  # raises it again

    def _note_group(self, call: _Call, group: Group) -> None:
        self._note(
            "group",
            call=call.number,
            index=group.index,
            version=group.policy_version,
            samples=tuple(self._told(group, each) for each in group.samples),
            failed=tuple((each.seed, each.reason) for each in group.failed),
        )

    def _told(self, group: Group, sample: Sample) -> tuple[Any, ...]:
        """What there is to be checked of a sample; `invariants` of sessions knows the order."""
        row: Any = sample.latents
        version, request = group.policy_version, group.request
        expected = self._expected(version, request.prompt, sample.seed, request.steps)
        complete = sample.policy_version == version and (sample.image is not None) == request.images
        return (
            sample.seed,
            row.latents,
            expected,
            row.weights,
            self._weights(version),
            sample.reward,
            complete,
        )

    def _note_choice(self, explored: Sequence[Any]) -> None:
        versions = range(self._rollouts.newest_version + 1)
        for each in explored:
            self._note(
                "explored",
                seeds=each.seeds,
                previewed=each.previewed,
                rewards=each.preview_rewards,
                may_be=tuple(
                    tuple(
                        fingerprints.reward(
                            self._expected(version, each.prompt, seed, _PREVIEW_STEPS)
                        )
                        for version in versions
                    )
                    for seed in each.seeds
                ),
            )

    def _expected(self, version: int, prompt: str, seed: int, steps: int | None) -> str:
        """The latents that follow from what was asked for."""
        sampler = self._work.sampler
        settings = sampling_settings(sampler, steps or sampler.steps, None)
        request = Request("", "rollout", 0, 0, prompt, seed, version, settings)
        return fingerprints.sample(self._weights(version), request)

    def _weights(self, version: int) -> str:
        """No other session has the same."""
        return f"weights {version} of session {self._session}"

    def _note(self, kind: str, **facts: Any) -> None:
        self._history.add_of(self._session, kind, session=self._session, **facts)
