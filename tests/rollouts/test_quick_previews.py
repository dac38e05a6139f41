"""Exploration where previews are done before the program hears that they were submitted."""

from __future__ import annotations

import asyncio

import pytest
from session_kit import PROMPT, work

from spotlight.policies.exploration.reward_spread import Knowledge
from spotlight.rollouts.exploration import Exploration, settings_for
from spotlight.rollouts.groups import Capacity, Group, NodeCapacity, Sample
from spotlight.rollouts.streams import GroupStream
from spotlight.rollouts.versions import ANY_VERSION


class QuickWorkers:
    """In the place of `Rollouts`: what is submitted is delivered, and then acknowledged."""

    knowledge = Knowledge()

    def learn(self, knowledge):
        self.knowledge = knowledge

    def stream(self, submit):
        return GroupStream(submit, self)

    async def capacity(self):
        return Capacity((NodeCapacity("a", "spot", 1, "", None),), 0, 1, 0, 1.0)

    async def submit(self, stream, some, wanted, *, kind):
        for index, _ in some:
            stream.expect(index)
        for index, request in some:
            (seed,) = request.seeds
            reward = seed % 2
            sample = Sample(PROMPT, seed, 0, {"ocr": reward}, reward, *[None] * 4, 1, 0)
            stream.put(index, Group(request, index, 0, (sample,), ()))
        await asyncio.sleep(1.0)

    async def withdraw(self, numbers):
        pass

    def forget(self, stream):
        pass


@pytest.mark.virtual_time
@pytest.mark.parametrize("planner", ["uniform", "bandit"])
async def test_previews_that_are_done_before_they_are_acknowledged_are_followed_by_others(planner):
    settings = settings_for(work(), 1, keep=4, candidates=32, seed=0, planner=planner)
    exploration = Exploration(QuickWorkers(), [PROMPT], settings, steps=None, version=ANY_VERSION)
    async with asyncio.timeout(600.0):
        await exploration.wait()
    (chosen,) = await exploration.stop()
    assert chosen.previewed >= 8
    assert set(chosen.preview_rewards) == {0.0, 1.0}
