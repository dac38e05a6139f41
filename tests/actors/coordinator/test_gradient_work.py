"""Gradients of slices of the updates of ranks: who computes them, and what becomes of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest
from gradient_kit import (
    ITERATION,
    SAMPLES,
    SLICES,
    UPDATE,
    Office,
    node_store,
    open_office,
    share,
    sliced,
    update,
)
from job_kit import offer, settle
from msgspec import structs

from spotlight.actors.coordinator.job.gradient_work import GradientWork
from spotlight.actors.protocol.gradients import OpenUpdate, SlicesTaken
from spotlight.actors.protocol.trainer import TrainedIteration
from spotlight.jobs import JobSpec
from spotlight.record.run_events import GradientsGivenUp, OtherDevice, SpotTimePlanned
from spotlight.types import Slice

pytestmark = pytest.mark.virtual_time


@pytest.fixture
def spec() -> JobSpec:
    return sliced()


@pytest.fixture
async def office(spec: JobSpec) -> AsyncIterator[Office]:
    async with open_office(spec) as office:
        yield office


# --- who computes ---


async def test_where_nothing_is_explored_all_that_do_not_train_compute(office: Office) -> None:
    await office.train_on("r0")
    for name in ("s0", "s1", "s2"):
        await office.join(name)
    await office.join("r1", "reserved")
    office.begin()
    assert office.gradients.workers.computing == {"r1/0", "s0/0", "s1/0", "s2/0"}
    assert office.requests.computing == [office.gradients.workers.computing]


@pytest.mark.parametrize("spec", [sliced("bandit")])
async def test_half_of_them_compute_while_it_is_not_known_what_previews_are_worth(
    office: Office,
) -> None:
    await office.train_on("r0")
    for name in ("s0", "s1", "s2", "s3"):
        await office.join(name)
    office.begin()
    assert len(office.gradients.workers.computing) == 2


@pytest.mark.parametrize("spec", [sliced(slices=1)])
async def test_nobody_computes_where_updates_have_a_single_slice(office: Office) -> None:
    await office.train_on("r0")
    await office.join("s0")
    office.begin()
    assert (office.gradients.workers.computing, office.requests.computing) == (frozenset(), [])
    office.gradients.end()
    assert office.requests.forgotten == []


@pytest.mark.parametrize("phase", ["rollout", "publish"])
async def test_nobody_computes_while_nobody_trains(office: Office, phase: str) -> None:
    office.phase.name = phase
    await office.train_on("r0")
    await office.join("s0")
    office.gradients.workers.assign()
    assert office.gradients.workers.computing == frozenset()


async def test_who_comes_later_computes_as_well(office: Office) -> None:
    await office.train_on("r0")
    office.begin()
    assert office.reminders == 0
    await office.join("s0")
    office.gradients.workers.assign()
    assert office.gradients.workers.computing == {"s0/0"}
    assert office.reminders == 1, "the ranks are to lend their updates now"
    await office.join("s1")
    office.gradients.workers.assign()
    assert office.gradients.workers.computing == {"s0/0", "s1/0"}
    assert office.reminders == 1


async def test_the_workers_of_a_lost_node_compute_no_more(office: Office) -> None:
    await office.train_on("r0")
    await office.join("s0")
    await office.join("s1")
    office.begin()
    office.nodes.lose("s0")
    office.gradients.workers.assign()
    assert office.gradients.workers.computing == {"s1/0"}


async def test_the_workers_of_a_node_that_must_leave_begin_to_compute_nothing(
    office: Office,
) -> None:
    await office.train_on("r0")
    await office.join("s0")
    await office.join("s1")
    office.notice("s0")
    office.begin()
    assert office.gradients.workers.computing == {"s1/0"}


async def test_all_are_free_for_other_work_once_the_ranks_have_trained(office: Office) -> None:
    await office.train_on("r0")
    await office.join("s0")
    office.begin()
    office.gradients.opened(0, update())
    office.gradients.end()
    assert office.gradients.workers.computing == frozenset()
    assert office.requests.computing[-1] == frozenset()
    assert office.asked() == []
    assert office.requests.forgotten == [("gradient", ITERATION)]


async def test_another_kind_of_device_computes_nothing_and_this_is_told_once(
    office: Office,
) -> None:
    await office.train_on("r0")
    await office.join("s0", device="cpu B")
    await office.join("s1", device="cpu B")
    await office.join("s2")
    office.begin()
    office.gradients.workers.assign()
    assert office.gradients.workers.computing == {"s2/0"}
    (event,) = (it for it in office.events if isinstance(it, OtherDevice))
    assert (event.worker, event.device, event.ranks) == ("s0/0", "cpu B", ("cpu A",))


async def test_who_fails_gradients_is_not_counted_on(office: Office) -> None:
    office.failing.add("s0/0")
    await ready(office)
    assert office.gradients.workers.helping == {"s1/0"}


async def test_ranks_of_several_kinds_of_devices_share_no_gradients(office: Office) -> None:
    await office.train_on("r0", "r1", devices=("cpu A", "cpu B"))
    await office.join("s0")
    office.begin()
    assert office.gradients.workers.computing == frozenset()
    (event,) = (it for it in office.events if isinstance(it, OtherDevice))
    assert event.ranks == ("cpu A", "cpu B")


async def test_nothing_is_said_of_devices_while_there_are_no_ranks(office: Office) -> None:
    await office.join("s0")
    office.begin()
    assert (office.events, office.gradients.workers.computing) == ([], frozenset())


ONE_SECOND = SlicesTaken(own=1, own_s=1.0)
"""A rank has computed a slice, which took so long."""


def knows_previews(
    office: Office,
    step_s: float,
    score_s: float = 0.0,
    taken: SlicesTaken = ONE_SECOND,
) -> None:
    """It was measured how long a step of previews takes, a score, and a slice on a rank."""
    office.profile.step_s = lambda *which: step_s
    office.table.pace.score_s = score_s
    office.shares = SimpleNamespace(seconds_of=lambda kind: 0.0)
    office.progress.previews_mislead = False
    office.progress.exploration.agreement = SimpleNamespace(correlation=None)
    office.progress.exploration.worth.curve = lambda: lambda previews: 1.0
    office.gradients.workers.measured(0, TrainedIteration(ITERATION, {}, 1.0, "whole", taken))


async def on_a_slow_link(office: Office) -> list[int]:
    """Gradients came far too late; how many workers compute in each of the iterations after."""
    await office.train_on("r0")
    await office.join("s0")
    await office.join("s1")
    slow = SlicesTaken(own=4, own_s=1e-3, others=1, fetched_bytes=1, fetch_s=1e6)
    workers, counts = office.gradients.workers, []
    workers.came(office.gradient(3))
    knows_previews(office, step_s=0.1, taken=slow)
    for iteration in range(ITERATION + 1, ITERATION + 24):
        office.machine.completed = iteration
        office.begin(iteration=iteration)
        workers.assign()
        counts.append(len(workers.computing))
        office.gradients.end()
    return counts


async def test_a_link_that_was_too_slow_is_tried_again_by_one_worker_now_and_then(
    office: Office,
) -> None:
    assert await on_a_slow_link(office) == [*[0] * 9, 1, *[0] * 9, 1, 0, 0, 0]


async def without_a_gradient(office: Office, opened: OpenUpdate) -> None:
    """A slice of an update is given out; what happens next happens 100 s later."""
    await ready(office)
    knows_previews(office, step_s=0.1)
    office.gradients.opened(0, opened)
    office.gradients.order_of(office.request(3))
    await asyncio.sleep(100.0)


def computing_next(office: Office) -> frozenset[str]:
    """Who computes gradients in the next iteration."""
    office.gradients.end()
    office.machine.completed = ITERATION + 1
    office.begin(iteration=ITERATION + 1)
    return office.gradients.workers.computing


@pytest.mark.parametrize("spec", [sliced(), sliced("bandit")])
async def test_nobody_computes_where_not_even_the_weights_came_in_time(office: Office) -> None:
    await without_a_gradient(office, update())
    assert computing_next(office) == frozenset()
    (planned,) = (it for it in office.events if isinstance(it, SpotTimePlanned))
    assert "another worker's would be there after" in planned.why


@pytest.mark.parametrize("spec", [sliced(), sliced("bandit")])
async def test_nobody_computes_where_the_first_weights_tell_that_gradients_are_too_large(
    office: Office,
) -> None:
    office.publish(nbytes=40 * 10**9)
    await ready(office)
    assert office.gradients.workers.helping == frozenset()
    knows_previews(office, step_s=0.1)
    assert computing_next(office) == frozenset()
    (planned,) = (it for it in office.events if isinstance(it, SpotTimePlanned))
    assert "one of 40 GB is too large to give away" in planned.why


async def test_a_link_is_not_blamed_for_the_loss_of_who_computed(office: Office) -> None:
    await without_a_gradient(office, update())
    office.nodes.lose("s0")
    office.gradients.workers.assign()
    assert computing_next(office) == {"s1/0"}


async def test_a_link_is_not_blamed_where_workers_held_the_weights(office: Office) -> None:
    await without_a_gradient(office, update(weights=None))
    assert computing_next(office)


async def test_a_link_is_not_blamed_where_slices_could_not_be_computed(office: Office) -> None:
    await without_a_gradient(office, update())
    office.gradients.given_up([office.request(3)], "no luck")
    assert computing_next(office)


async def test_a_link_is_not_blamed_where_workers_had_something_else_to_do_first(
    office: Office,
) -> None:
    await ready(office)
    knows_previews(office, step_s=0.1)
    office.gradients.opened(0, update())
    office.waiting.add(office.request(3).id)
    office.gradients.order_of(office.request(3))
    await asyncio.sleep(100.0)
    assert computing_next(office)


async def test_a_link_is_not_blamed_where_a_gradient_came(office: Office) -> None:
    await without_a_gradient(office, update())
    office.computed(office.request(2))
    assert computing_next(office)


@pytest.mark.parametrize("spec", [sliced("bandit")])
async def test_who_denoises_computes_while_there_is_nothing_else(office: Office) -> None:
    await office.train_on("r0")
    for name in ("s0", "s1"):
        await office.join(name)
    office.begin()
    assert office.requests.computing == [{"s0/0"}]
    assert office.requests.versatile == [{"s1/0"}], "previews may take longer than slices"


@pytest.mark.parametrize("spec", [sliced("bandit")])
async def test_who_computes_previews_meanwhile_where_that_takes_no_longer_than_a_slice(
    office: Office,
) -> None:
    await office.train_on("r0")
    for name in ("s0", "s1"):
        await office.join(name)
    steps = office.spec.preview_steps
    knows_previews(office, step_s=1 / steps)
    office.begin()
    assert office.requests.versatile[-1] == {"s0/0", "s1/0"}
    office.gradients.end()
    knows_previews(office, step_s=3 / steps)
    office.begin()
    assert office.requests.versatile[-1] == {"s1/0"}


@pytest.mark.parametrize("spec", [sliced("bandit")])
async def test_previews_go_first_everywhere_where_their_scores_take_longer(office: Office) -> None:
    await office.train_on("r0")
    for name in ("s0", "s1"):
        await office.join(name)
    knows_previews(office, step_s=0.5 / office.spec.preview_steps, score_s=0.6)
    office.begin()
    assert office.requests.computing[-1] == frozenset()
    assert office.requests.versatile[-1] == {"s0/0", "s1/0"}
    assert office.gradients.workers.computing == {"s0/0"}, "it stays apart from groups"


async def test_nobody_computes_beside_denoising_where_gradients_come_too_late(
    office: Office,
) -> None:
    await on_a_slow_link(office)
    assert max(map(len, office.requests.versatile)) == 0


# --- what they compute ---


async def ready(office: Office, *ranks: str) -> None:
    """The ranks train, and two workers could help."""
    await office.train_on(*ranks or ("r0",))
    await office.join("s0")
    await office.join("s1")
    office.begin()


async def test_all_slices_but_the_first_are_asked_for_the_last_one_first(office: Office) -> None:
    await ready(office)
    office.gradients.opened(0, update())
    assert office.asked() == [(0, 3), (0, 2), (0, 1)]
    assert {it.seed for it in office.requests.open.values()} == {UPDATE}
    assert {it.weights_version for it in office.requests.open.values()} == {ITERATION}


async def test_an_order_has_the_samples_of_its_slice_and_where_the_weights_are(
    office: Office,
) -> None:
    await office.train_on("r0")
    samples = office.begin()
    began = office.team.machine.ranks[0].store
    reference = offer("weights/lent0-rollout-0", began)
    office.gradients.opened(0, update(reference=reference))
    order = office.gradients.order_of(office.request(2))
    assert order is not None
    assert order.samples == samples[4:6]
    assert (order.slice, order.share.rank) == (share().slices[2], 0)
    assert (order.weights, order.reference) == ((update().weights,), (reference,))
    assert (order.window_start, order.training) == (3, office.spec.training)


async def test_the_nodes_of_workers_that_compute_get_what_all_ranks_have_lent(
    office: Office,
) -> None:
    await ready(office, "r0", "r1")
    office.gradients.opened(0, update(0))
    assert office.directions() == {}, "a part of the weights is missing"
    office.gradients.opened(1, update(1, node="r1"))
    assert office.directions() == {("s0", UPDATE): ["r0", "r1"], ("s1", UPDATE): ["r0", "r1"]}
    order = office.gradients.order_of(office.request(3))
    assert order is not None and [part.store.machine for part in order.weights] == ["r0", "r1"]


async def test_nobody_gets_weights_that_were_published(office: Office) -> None:
    await ready(office)
    office.gradients.opened(0, update(weights=None))
    assert office.directions() == {}
    order = office.gradients.order_of(office.request(3))
    assert order is not None and order.weights == ()


async def test_the_weights_that_the_job_began_with_are_got_once(office: Office) -> None:
    await office.train_on("r0")
    await office.join("s0")
    office.begin()
    reference = offer("weights/lent0-rollout-0", node_store("r0"))
    office.gradients.opened(0, update(weights=None, reference=reference))
    assert office.directions() == {("s0", 0): ["r0"]}
    office.gradients.opened(0, update(number=UPDATE + 1, reference=reference))
    assert office.directions() == {("s0", UPDATE + 1): ["r0"]}


async def test_only_the_weights_of_the_update_that_is_taken_are_kept(office: Office) -> None:
    await ready(office)
    for number in (UPDATE, UPDATE + 1):
        office.gradients.opened(0, update(number=number))
        assert office.lent.versions == {number}
    office.gradients.end()
    assert office.lent.versions == frozenset()


async def test_slices_of_several_ranks_are_told_apart(office: Office) -> None:
    await ready(office, "r0", "r1")
    office.gradients.opened(0, update(0))
    office.gradients.opened(1, update(1, node="r1"))
    assert office.asked() == [(0, 3), (1, 3), (0, 2), (1, 2), (0, 1), (1, 1)]
    order = office.gradients.order_of(office.request(3, rank=1))
    assert order is not None and order.share.rank == 1
    office.computed(office.request(3, rank=1))
    await settle()
    assert (office.told(0), office.told(1)) == ([], [(UPDATE, [3])])


async def test_ranks_have_different_numbers_of_slices(office: Office) -> None:
    await ready(office, "r0", "r1")
    office.gradients.opened(0, update(0))
    office.gradients.opened(1, update(1, node="r1", share=share(1, slices=share().slices[:1])))
    assert office.asked() == [(0, 3), (0, 2), (0, 1)]


async def test_nobody_gets_weights_where_all_ranks_have_a_single_slice(office: Office) -> None:
    await ready(office)
    office.gradients.opened(0, update(share=share(slices=share().slices[:1])))
    assert (office.asked(), office.directions()) == ([], {})


async def test_a_rank_is_told_of_all_that_is_computed_so_far(office: Office) -> None:
    await ready(office)
    office.gradients.opened(0, update())
    office.computed(office.request(3))
    office.computed(office.request(1), worker="s1/0", store="s1")
    await settle()
    assert office.told() == [(UPDATE, [3]), (UPDATE, [1, 3])]


async def test_a_rank_that_tells_again_of_its_update_is_told_again_and_nothing_is_asked_twice(
    office: Office,
) -> None:
    await ready(office)
    office.gradients.opened(0, update())
    office.computed(office.request(3))
    before = office.asked()
    office.gradients.opened(0, update())
    await settle()
    assert office.told() == [(UPDATE, [3])] * 2
    assert office.asked() == before


async def test_nobody_needs_the_slices_of_an_update_when_the_next_one_is_begun(
    office: Office,
) -> None:
    await ready(office)
    office.gradients.opened(0, update())
    old = office.request(3)
    office.gradients.opened(0, update(number=UPDATE + 1))
    assert len(office.asked()) == SLICES - 1
    assert office.gradients.order_of(old) is None
    office.computed(old)
    await settle()
    assert office.told() == []


async def test_what_is_said_late_of_an_update_before_changes_nothing(office: Office) -> None:
    await ready(office, "r0", "r1")
    office.gradients.opened(0, update(number=UPDATE + 1))
    office.gradients.opened(1, update(1, UPDATE, "r1"))
    assert office.asked() == [], "the slowest rank ends an update: all are helped, or none yet"
    office.gradients.opened(1, update(1, UPDATE + 1, "r1"))
    assert {request.seed for request in office.requests.open.values()} == {UPDATE + 1}


async def test_another_coordinator_goes_on_with_the_update_that_a_rank_tells_it_of(
    office: Office,
) -> None:
    await ready(office)
    office.gradients.opened(0, update())
    before = list(office.requests.open)
    office.requests.open.clear()
    office.gradients = GradientWork(office)  # type: ignore[arg-type]
    office.begin()
    office.gradients.opened(0, update())
    assert list(office.requests.open) == before, "workers go on with what they have"
    office.computed(office.request(2))
    await settle()
    assert office.told() == [(UPDATE, [2])]


@pytest.mark.parametrize("store", ["s1", "elsewhere", "r0"])
async def test_a_gradient_is_believed_only_in_the_store_of_the_worker_s_own_node(
    office: Office, store: str
) -> None:
    await ready(office)
    office.gradients.opened(0, update())
    office.computed(office.request(3), worker="s0/0", store=store)
    office.computed(office.request(2), worker="nobody/0", store=store)
    await settle()
    assert office.told() == []


async def test_slices_that_nobody_could_compute_are_reported(office: Office) -> None:
    await ready(office)
    office.gradients.opened(0, update())
    lost = [office.request(3), office.request(2)]
    office.gradients.given_up(lost, "no luck")
    office.gradients.given_up([], "")
    assert office.events == [
        GradientsGivenUp(request=lost[0].id, count=2, reason="no luck"),
    ]


async def test_who_computed_is_counted_once_for_every_rank_and_part(office: Office) -> None:
    await ready(office, "r0", "r1")
    taken = TrainedIteration(ITERATION, {}, 1.0, "whole", SlicesTaken(3, 6.0, 5, 10, 1.0))
    for rank in (0, 1, 0):
        office.gradients.workers.measured(rank, taken)
    metrics = office.progress.metrics
    assert (metrics.slices, metrics.slices_by_others) == (16, 10)


# --- nonsense ---


def broken(**changes: Any) -> Any:
    """An update whose slice 2 is changed."""
    slices = list(share().slices)
    slices[2] = structs.replace(slices[2], **changes)
    return update(share=share(slices=tuple(slices)))


MANY = tuple(Slice(place, (0,), (0,), 0, 1) for place in range(SLICES + 1))


@pytest.mark.parametrize(
    "nonsense",
    [
        broken(samples=(4, SAMPLES)),
        broken(samples=(4, -1)),
        broken(draws=(4, 10**9)),
        broken(draws=()),
        broken(index=7),
        update(share=share(slices=MANY)),
        update(share=share(rank=1)),
        update(share=share(iteration=-1)),
        update(share=share(iteration=ITERATION + 1)),
        update(weights=offer("weights/lent-1-0", node_store("s0"))),
        update(reference=offer("weights/lent-reference-0", node_store("s0"))),
    ],
    ids=[
        "a sample beyond the last",
        "a negative sample",
        "noise of no sample",
        "too few draws",
        "another place",
        "too many slices",
        "another rank",
        "no iteration",
        "another iteration",
        "weights elsewhere",
        "a reference elsewhere",
    ],
)
async def test_an_update_that_cannot_be_is_refused_and_the_next_one_is_not(
    office: Office, nonsense: Any
) -> None:
    await ready(office)
    office.gradients.opened(0, nonsense)
    assert office.asked() == []
    office.gradients.opened(0, update(number=UPDATE + 1))
    assert len(office.asked()) == SLICES - 1


async def test_ranks_that_do_not_lend_alike_are_not_helped(office: Office) -> None:
    await ready(office, "r0", "r1")
    office.gradients.opened(0, update(0))
    office.gradients.opened(1, update(1, node="r1", weights=None))
    assert (office.asked(), office.directions()) == ([], {})


async def test_an_update_without_slices_asks_for_nothing(office: Office) -> None:
    await ready(office)
    office.gradients.opened(0, update(share=share(slices=())))
    assert office.asked() == []
