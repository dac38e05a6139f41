"""What a member loads, one thing after the other, as its plans say."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest
import torch
from job_kit import STORE, Recorder, recorder, settle
from msgspec.structs import replace
from plan_kit import Planner
from runtime_kit import Cluster

from spotlight.actors.protocol.down import JobPlan, Membership
from spotlight.actors.worker.held_weights import HeldWeights
from spotlight.actors.worker.job_holdings import JobHoldings
from spotlight.errors import CheckpointError, HubUnreachable, TransferFailed
from spotlight.timings import WorkerTimings
from spotlight.types import BundleOffer

pytestmark = pytest.mark.virtual_time

SECONDS = 5.0


class Bench:
    """Holdings that take a while to load, and what became of them."""

    def __init__(self, actor: Recorder) -> None:
        self.events: list[str] = []
        self.reports: list[tuple[int, ...]] = []
        self.model_fails = self.weights_fail = False
        self.error: Exception | None = None
        """Raised as the model is loaded."""
        self.given_up: list[str] = []
        self.planner = Planner()
        self.membership = Membership(actor.ref, actor.ref, STORE)
        engine: Any = self
        self.run_task = actor.run_task
        self.holdings = JobHoldings(self, HeldWeights(engine), WorkerTimings())

    def begin_job(self, plan: JobPlan, spec: object) -> None:
        self.events.append(f"begin {plan.job_id}")

    def end_job(self) -> None:
        self.events.append("end")

    def report(self) -> None:
        self.reports.append(self.holdings.versions(evaluation=False))

    def give_up(self, reason: str) -> None:
        self.given_up.append(reason)

    async def load_model(self, spec: object, images: object) -> None:
        await asyncio.sleep(SECONDS)
        if self.model_fails:
            raise CheckpointError("no such file")
        if self.error is not None:
            raise self.error
        self.events.append("model")

    async def fetch_weights(self, parts: Sequence[BundleOffer]) -> object:
        await asyncio.sleep(SECONDS)
        if self.weights_fail:
            raise TransferFailed("the store is away")
        self.events.append(f"weights {parts[0].checksum}")
        return object()

    async def prepare(self, job_id: str = "job", **changes: Any) -> None:
        membership = replace(self.membership, **changes)
        self.holdings.follow(self.planner.prepare(membership, job_id).job)
        await settle()

    async def hold(self, version: int, *keep: int, checksum: int | None = None) -> None:
        number = version if checksum is None else checksum
        bundle = BundleOffer(f"weights/{version}", 1, number, STORE)
        self.holdings.follow(self.planner.hold(version, bundle, None, keep).job)
        await settle()


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    async with Cluster() as cluster:
        yield Bench(await recorder(await cluster.system("w"), "member"))


async def test_the_model_comes_first_and_then_each_version_and_all_is_reported(
    bench: Bench,
) -> None:
    await bench.prepare()
    await bench.hold(1)
    await bench.hold(2, 1, 2)
    assert bench.events == [], "nobody waits for it"
    await asyncio.sleep(4 * SECONDS)
    assert bench.events == ["model", "begin job", "weights 1", "weights 2"]
    assert bench.reports == [(), (1,), (1, 2)]


async def test_what_the_plan_does_not_keep_is_not_served(bench: Bench) -> None:
    await bench.prepare()
    await bench.hold(1)
    await asyncio.sleep(3 * SECONDS)
    await bench.hold(2)
    assert bench.holdings.versions(evaluation=False) == ()
    await asyncio.sleep(2 * SECONDS)
    assert bench.holdings.versions(evaluation=False) == (2,)


async def test_a_version_that_was_trained_again_is_another(bench: Bench) -> None:
    await bench.prepare()
    await bench.hold(1)
    await asyncio.sleep(3 * SECONDS)
    await bench.hold(1, checksum=9)
    assert bench.holdings.versions(evaluation=False) == ()
    await asyncio.sleep(2 * SECONDS)
    assert bench.holdings.versions(evaluation=False) == (1,)
    assert bench.events[-1] == "weights 9"


async def test_what_is_kept_but_not_offered_is_held_and_not_served(bench: Bench) -> None:
    """Another runner has yet to say which weights it means by that version."""
    await bench.prepare()
    await bench.hold(1)
    await asyncio.sleep(3 * SECONDS)
    bench.holdings.follow(bench.planner.prepare(bench.membership, runner_is_new=True).job)
    assert bench.holdings.versions(evaluation=False) == ()
    await bench.hold(1)
    assert bench.holdings.versions(evaluation=False) == (1,)
    assert bench.events.count("weights 1") == 1


async def test_nothing_is_dropped_while_a_runner_that_has_just_come_has_yet_to_say(
    bench: Bench,
) -> None:
    await bench.prepare()
    await bench.hold(1)
    await asyncio.sleep(3 * SECONDS)
    plan = bench.planner.prepare(bench.membership, runner_is_new=True).job
    assert plan is not None
    bench.holdings.follow(replace(plan, versions=()))
    await bench.hold(1)
    assert bench.holdings.versions(evaluation=False) == (1,)
    assert bench.events.count("weights 1") == 1


async def test_weights_that_cannot_be_had_are_tried_again(bench: Bench) -> None:
    await bench.prepare()
    bench.weights_fail = True
    await bench.hold(1)
    await asyncio.sleep(5 * SECONDS)
    assert bench.holdings.versions(evaluation=False) == ()
    bench.weights_fail = False
    await asyncio.sleep(3 * SECONDS)
    assert bench.holdings.versions(evaluation=False) == (1,)


async def test_a_model_that_cannot_be_loaded_is_tried_again_by_another_runner_only(
    bench: Bench,
) -> None:
    bench.model_fails = True
    await bench.prepare()
    await bench.hold(1)
    await asyncio.sleep(10 * SECONDS)
    assert bench.holdings.problem == "the model cannot be loaded: CheckpointError: no such file"
    assert (bench.events, bench.given_up) == ([], [])
    bench.model_fails = False
    await bench.prepare(runner=replace(bench.membership.runner, incarnation=77))
    assert bench.holdings.problem == ""
    await asyncio.sleep(3 * SECONDS)
    assert bench.holdings.versions(evaluation=False) == (1,)


@pytest.mark.parametrize("error", [HubUnreachable("nobody answers"), TimeoutError("too long")])
async def test_a_model_that_may_be_downloaded_later_is_left_to_another_process(
    bench: Bench, error: Exception
) -> None:
    bench.error = error
    await bench.prepare()
    await asyncio.sleep(2 * SECONDS)
    assert len(bench.given_up) == 1


async def test_a_model_that_another_process_might_load_ends_this_one(bench: Bench) -> None:
    bench.error = torch.OutOfMemoryError("tried to allocate 41 GiB")
    await bench.prepare()
    await asyncio.sleep(2 * SECONDS)
    (reason,) = bench.given_up
    assert reason.startswith("the model cannot be loaded: OutOfMemoryError: tried to allocate")
    assert bench.holdings.problem == reason


async def test_a_job_that_is_over_before_its_model_is_loaded_never_begins(bench: Bench) -> None:
    await bench.prepare()
    bench.holdings.follow(bench.planner.end().job)
    await bench.prepare("next")
    await asyncio.sleep(3 * SECONDS)
    assert bench.events == ["end", "model", "model", "begin next"]


async def test_without_a_job_nothing_is_held(bench: Bench) -> None:
    await bench.prepare()
    await bench.hold(1)
    await asyncio.sleep(3 * SECONDS)
    bench.holdings.follow(None)
    assert (bench.holdings.job_id, bench.holdings.versions(evaluation=False)) == ("", ())
    assert bench.events[-1] == "end"
