"""The validator: the mean of what could be scored."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

import pytest
from job_kit import Recorder, job, offer, recorder, settle
from runtime_kit import Cluster

from spotlight.actors.coordinator.validator import Validator
from spotlight.actors.protocol import (
    RequestsFinished,
    RequestsGivenUp,
    StartValidation,
    SubmitRequests,
    ValidationDone,
    ValidationFailed,
)
from spotlight.actors.runtime import Message
from spotlight.types import Request, Result

pytestmark = pytest.mark.virtual_time


class Panel:
    runner: Recorder
    dispatcher: Recorder

    async def tell(self, message: Message) -> None:
        self.runner.tell(self.validator, message)
        await settle()

    async def start(self, version: int) -> tuple[Request, ...]:
        await self.tell(StartValidation(version))
        return self.dispatcher.last(SubmitRequests).requests

    async def finish(self, wanted: Sequence[Request], *rewards: float) -> None:
        results = [Result(r, x, offer(), 0) for r, x in zip(wanted, rewards, strict=True)]
        await self.tell(RequestsFinished(tuple(results)))


@pytest.fixture
async def panel() -> AsyncIterator[Panel]:
    async with Cluster() as cluster:
        panel = Panel()
        system = await cluster.system("coordinator")
        panel.runner = await recorder(system, "runner")
        panel.dispatcher = await recorder(system, "dispatcher")
        panel.validator = await system.spawn(
            lambda: Validator(job(), panel.dispatcher.ref, ["a", "b", "c"]), "validator"
        )
        yield panel


async def test_the_score_is_the_mean_of_all_images(panel: Panel) -> None:
    wanted = await panel.start(5)
    assert {(r.kind, r.weights_version) for r in wanted} == {("evaluation", 5)}
    await panel.finish(wanted[1:], 0.5, 1.0)
    assert panel.runner.inbox == []
    await panel.finish(wanted[:1], 0.0)
    done = panel.runner.last(ValidationDone)
    assert (done.version, done.score, len(done.results)) == (5, 0.5, 3)


async def test_every_version_has_the_same_seeds(panel: Panel) -> None:
    first, second = await panel.start(0), await panel.start(5)
    assert [(r.prompt, r.seed) for r in first] == [(r.prompt, r.seed) for r in second]


async def test_an_image_without_a_score_is_left_out_of_the_mean(panel: Panel) -> None:
    wanted = await panel.start(0)
    await panel.finish(wanted[:2], 0.5, 1.0)
    await panel.tell(RequestsGivenUp(wanted[2:], "no luck"))
    done = panel.runner.last(ValidationDone)
    assert (done.score, len(done.results)) == (0.75, 2)


async def test_a_version_without_any_score_has_failed(panel: Panel) -> None:
    wanted = await panel.start(0)
    await panel.tell(RequestsGivenUp(wanted, "no luck"))
    assert panel.runner.inbox == [ValidationFailed(0)]


async def test_two_versions_may_be_validated_at_once_and_images_count_once(panel: Panel) -> None:
    first, second = await panel.start(0), await panel.start(5)
    await panel.finish([*second, *second], *(0.25,) * 6)
    assert [(m.version, m.score) for m in panel.runner.all(ValidationDone)] == [(5, 0.25)]
    await panel.finish(first, 0.5, 0.5, 0.5)
    assert [(m.version, m.score) for m in panel.runner.all(ValidationDone)][1:] == [(0, 0.5)]
