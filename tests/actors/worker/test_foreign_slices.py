"""A trainer rank whose slices others compute, too: it adds them in their order, and waits for
none."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from job_kit import recorder
from msgspec import structs
from rank_kit import Gym, errors, open_gym, reports, settle, start, trained

from spotlight.actors.protocol.gradients import AddSlices, OpenUpdate, SliceDone
from spotlight.actors.protocol.trainer import Train
from spotlight.errors import TransferFailed
from spotlight.types import BundleOffer
from spotlight_simulation.virtual_threads import VirtualThreads, sleep

pytestmark = pytest.mark.virtual_time

SLICES = 4
A_SLICE_S = 2.0
"""How long one takes the rank, in two passes."""


@pytest.fixture
async def gym(tmp_path: Path) -> AsyncIterator[Gym]:
    """A rank whose updates have four slices."""
    async with open_gym(tmp_path, VirtualThreads) as gym:
        trainer = gym.engine.trainer
        trainer.slices, trainer.micro_batches = SLICES, 2
        trainer.while_it_computes = lambda place: sleep(A_SLICE_S / 2)
        await gym.start()
        yield gym


def order(gym: Gym, iteration: int = 0) -> Train:
    """To train, and to leave what others need in the rank's store."""
    return structs.replace(gym.batch(iteration), lend_to=gym.store.writable_by("node"))


def gradient(gym: Gym, place: int, token: str = "") -> BundleOffer:
    """One that is in a store; with the token `gone`, that was."""
    offer = gym.store.put(f"gradients/spot/0/{place}", f"gradient {place}".encode())
    store = structs.replace(offer.store, token=token or offer.store.token)
    return structs.replace(offer, store=store)


def computed(gym: Gym, *places: int, update: int = 0) -> AddSlices:
    """Others have computed these."""
    return AddSlices(update, tuple(SliceDone(place, gradient(gym, place)) for place in places))


def opened(gym: Gym) -> list[OpenUpdate]:
    """The updates that the runner was told of."""
    return [each.opened for each in reports(gym.runner) if each.opened is not None]


async def until_trained(gym: Gym, iterations: int = 1) -> None:
    while len(trained(gym.runner)) < iterations:
        await asyncio.sleep(0.5)
        assert errors(gym.runner) == []


def contents(gym: Gym) -> list[tuple[int, str]]:
    """What was added in the order in which it was: the place, and the gradient of others."""
    return [(place, data.decode()) for _, place, data in gym.engine.trainer.added]


ALL_OWN = [(0, ""), (1, ""), (2, ""), (3, "")]


# --- what it lends ---


async def test_it_tells_of_the_update_that_it_begins_and_where_its_weights_are(gym: Gym) -> None:
    await gym.tell(order(gym))
    (update,) = opened(gym)
    assert (update.number, len(update.share.slices), update.reference) == (0, SLICES, None)
    assert update.weights is not None
    assert await gym.engine.fetch(update.weights) == b"current 0"
    assert trained(gym.runner) == [], "it is told while the rank computes"


async def test_every_update_is_told_with_weights_of_its_own(gym: Gym) -> None:
    gym.engine.trainer.updates_of_a_batch = 2
    await gym.tell(order(gym))
    await until_trained(gym)
    first, second = opened(gym)
    assert (first.number, second.number) == (0, 1)
    assert first.weights is not None and second.weights is not None
    assert await gym.engine.fetch(second.weights) == b"current 1"
    assert first.weights.key != second.weights.key, "somebody may be fetching it"


async def test_weights_that_were_published_are_not_lent_once_more(gym: Gym) -> None:
    gym.engine.trainer.trains_published = True
    await gym.tell(order(gym))
    (update,) = opened(gym)
    assert (update.number, update.weights, update.reference) == (0, None, None)
    assert list((Path(gym.store.endpoint.root) / "weights").glob("lent*")) == []


async def test_the_weights_that_the_job_began_with_are_left_once(gym: Gym) -> None:
    trainer = gym.engine.trainer
    trainer.has_reference, trainer.updates_of_a_batch = True, 2
    await gym.tell(order(gym))
    await until_trained(gym)
    first, second = opened(gym)
    assert first.reference == second.reference is not None
    assert await gym.engine.fetch(first.reference) == b"reference 0"


async def test_a_rank_without_helpers_lends_nothing(gym: Gym) -> None:
    await gym.tell(gym.batch(0))
    await until_trained(gym)
    assert opened(gym) == []
    with pytest.raises(TransferFailed):
        await gym.store.offer("weights/lent1-rollout-0")


async def test_an_update_of_a_single_slice_is_not_lent(gym: Gym) -> None:
    gym.engine.trainer.slices = 1
    await gym.tell(order(gym))
    await until_trained(gym)
    assert opened(gym) == []


async def test_a_rank_with_a_single_slice_lends_its_part_of_the_weights_for_those_of_others(
    gym: Gym,
) -> None:
    gym.engine.trainer.slices = 1
    await gym.tell(start(term=2, ranks=2))
    await gym.tell(order(gym))
    await until_trained(gym)
    (update,) = opened(gym)
    assert update.weights is not None


async def test_helpers_that_come_while_it_trains_are_told_of_the_next_update(gym: Gym) -> None:
    gym.engine.trainer.updates_of_a_batch = 2
    await gym.tell(gym.batch(0))
    await asyncio.sleep(1.0)
    await gym.tell(order(gym))
    await until_trained(gym)
    assert [update.number for update in opened(gym)] == [1]


async def test_what_cannot_be_lent_the_rank_computes_alone(gym: Gym) -> None:
    gym.engine.uploads_to_fail = 1
    await gym.tell(order(gym))
    await until_trained(gym)
    assert (opened(gym), contents(gym)) == ([], ALL_OWN)


async def test_who_asks_again_is_told_again_of_the_update_that_is_taken(gym: Gym) -> None:
    await gym.tell(order(gym))
    successor = await recorder(gym.system, "successor")
    await gym.prepare(successor)
    successor.tell(gym.rank, order(gym))
    await settle()
    assert [each.opened for each in reports(successor)] == opened(gym)


async def test_nothing_is_told_of_an_update_that_is_taken(gym: Gym) -> None:
    await gym.tell(order(gym))
    await until_trained(gym)
    await gym.tell(order(gym))
    assert len(opened(gym)) == 1


# --- what it adds ---


async def test_it_computes_everything_itself_where_nothing_comes(gym: Gym) -> None:
    await gym.tell(order(gym))
    await until_trained(gym)
    assert contents(gym) == ALL_OWN
    taken = trained(gym.runner)[-1].slices
    assert (taken.own, taken.others) == (SLICES, 0)


@pytest.mark.parametrize("arrivals", [(3, 2, 1), (1, 2, 3), (2, 3, 1)])
async def test_it_adds_what_others_computed_in_the_order_of_the_slices(
    gym: Gym, arrivals: tuple[int, ...]
) -> None:
    await gym.tell(order(gym))
    for place in arrivals:
        await gym.tell(computed(gym, place))
    await until_trained(gym)
    assert contents(gym) == [(0, ""), *((n, f"gradient {n}") for n in (1, 2, 3))]
    taken = trained(gym.runner)[-1].slices
    assert (taken.own, taken.others) == (1, 3)
    assert taken.fetched_bytes == 3 * len(b"gradient 1")


async def test_it_computes_the_slices_between_those_of_others(gym: Gym) -> None:
    await gym.tell(order(gym))
    await gym.tell(computed(gym, 2))
    await until_trained(gym)
    assert contents(gym) == [(0, ""), (1, ""), (2, "gradient 2"), (3, "")]


async def test_it_stops_computing_a_slice_that_has_come(gym: Gym) -> None:
    await gym.tell(order(gym))
    await asyncio.sleep(A_SLICE_S + 0.5)
    await gym.tell(computed(gym, 1))
    await until_trained(gym)
    assert gym.engine.trainer.unfinished == [1]
    assert contents(gym) == [(0, ""), (1, "gradient 1"), (2, ""), (3, "")]


async def test_a_slice_that_it_has_computed_by_then_is_added_once(gym: Gym) -> None:
    await gym.tell(order(gym))
    await asyncio.sleep(A_SLICE_S + 0.5)
    await gym.tell(computed(gym, 0))
    await until_trained(gym)
    assert contents(gym) == ALL_OWN


async def test_it_computes_itself_what_cannot_be_fetched(gym: Gym) -> None:
    await gym.tell(order(gym))
    away = tuple(SliceDone(place, gradient(gym, place, "gone")) for place in (2, 3))
    await gym.tell(AddSlices(0, away))
    await until_trained(gym)
    assert contents(gym) == ALL_OWN


async def test_what_can_be_had_elsewhere_since_is_fetched_from_there(gym: Gym) -> None:
    await gym.tell(order(gym))
    await gym.tell(AddSlices(0, (SliceDone(3, gradient(gym, 3, "gone")),)))
    await gym.tell(computed(gym, 3))
    await until_trained(gym)
    assert contents(gym)[3] == (3, "gradient 3")


async def test_it_computes_itself_what_does_not_fit(gym: Gym) -> None:
    gym.engine.trainer.refuses = {b"gradient 2"}
    await gym.tell(order(gym))
    await gym.tell(computed(gym, 2, 3))
    await until_trained(gym)
    assert contents(gym) == [(0, ""), (1, ""), (2, ""), (3, "gradient 3")]
    assert errors(gym.runner) == []


@pytest.mark.parametrize("update", [1, 7])
async def test_what_is_of_another_update_is_not_even_fetched(gym: Gym, update: int) -> None:
    await gym.tell(order(gym))
    await gym.tell(computed(gym, 1, 2, 3, update=update))
    await until_trained(gym)
    assert contents(gym) == ALL_OWN
    assert not [key for key in gym.engine.fetched if key.startswith("gradients")]


async def test_what_is_left_of_an_update_is_not_added_to_the_next_one(gym: Gym) -> None:
    gym.engine.trainer.updates_of_a_batch = 2
    await gym.tell(order(gym))
    await asyncio.sleep(SLICES * A_SLICE_S - 0.5)
    await gym.tell(computed(gym, 1, 3))  # the last of which it is computing
    await asyncio.sleep(0.6)
    await gym.tell(computed(gym, 1))
    await until_trained(gym)
    assert contents(gym) == [*ALL_OWN[:3], (3, "gradient 3"), *ALL_OWN]


async def test_a_few_are_fetched_at_the_same_time_and_the_time_counts_once(gym: Gym) -> None:
    fetch, most, under_way = gym.engine.fetch, 0, 0

    async def slowly(offer: BundleOffer) -> bytes:
        nonlocal most, under_way
        most, under_way = max(most, under_way + 1), under_way + 1
        await asyncio.sleep(0.5)
        under_way -= 1
        return await fetch(offer)

    await gym.tell(order(gym))
    gym.engine.fetch = slowly  # type: ignore[method-assign]
    await gym.tell(computed(gym, 1, 2, 3))
    await until_trained(gym)
    assert most == 3
    assert trained(gym.runner)[-1].slices.fetch_s == pytest.approx(0.5)


async def test_what_is_told_again_is_fetched_once(gym: Gym) -> None:
    await gym.tell(order(gym))
    for _ in range(3):
        await gym.tell(computed(gym, 3))
    await until_trained(gym)
    assert gym.engine.fetched.count("gradients/spot/0/3") == 1


async def test_a_place_that_no_slice_has_changes_nothing(gym: Gym) -> None:
    await gym.tell(order(gym))
    await gym.tell(computed(gym, SLICES, 63))
    await until_trained(gym)
    assert contents(gym) == ALL_OWN


async def test_slices_from_anybody_but_its_runner_are_not_taken(gym: Gym) -> None:
    await gym.tell(order(gym))
    other = await recorder(gym.system, "other")
    other.tell(gym.rank, computed(gym, 1, 2, 3))
    await until_trained(gym)
    assert contents(gym) == ALL_OWN


# --- given up ---


@pytest.mark.parametrize("how", ["another term", "no job any more"])
async def test_a_rank_that_is_given_up_in_the_middle_of_an_update_takes_no_step(
    gym: Gym, how: str
) -> None:
    await gym.tell(order(gym))
    await asyncio.sleep(A_SLICE_S + 0.5)
    if how == "another term":
        await gym.replace_trainers(2)
    else:
        await gym.end()
    await asyncio.sleep(10 * A_SLICE_S)
    trainer = gym.engine.trainer
    assert (trainer.updates, trainer.closed) == (0, True)
    assert len(trainer.added) <= 2, "the slice in work is the last"
    assert trained(gym.runner) == []


async def test_the_update_of_ranks_that_were_given_up_is_told_of_no_more(gym: Gym) -> None:
    await gym.tell(order(gym))
    told = len(opened(gym))
    await gym.replace_trainers(2)
    await gym.start(term=2)
    assert len(opened(gym)) == told
