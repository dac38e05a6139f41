"""The node's copies: each version is fetched once, from where the node was sent last."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest
from job_kit import STORE, settle

from spotlight.actors.node.weights_copies import WeightsCopies
from spotlight.actors.protocol import HoldWeights
from spotlight.errors import TransferFailed
from spotlight.timings import WeightsTimings
from spotlight.transport.tensors import BundleStore
from spotlight.types import BundleOffer

pytestmark = pytest.mark.virtual_time

HOLDER = msgspec.structs.replace(STORE, port=2)
SECONDS = 5.0


class SlowStore(BundleStore):
    """Copies what it is told from wherever, in a while, or fails."""

    def __init__(self, root: Path) -> None:
        super().__init__(root, token="token")
        self.begun: list[int] = []
        """Ports of the stores that copies were begun from."""
        self.done: list[str] = []
        self.fails = False

    async def copy(
        self, offer: BundleOffer, key: str, *, limit_s: float | None = None
    ) -> BundleOffer:
        self.begun.append(offer.store.port)
        await asyncio.sleep(SECONDS)
        if self.fails:
            raise TransferFailed("its holder is gone")
        self.done.append(key)
        kept = self.put(key, bytes(offer.nbytes))
        return msgspec.structs.replace(kept, checksum=offer.checksum)


class Node:
    def __init__(self, store: SlowStore) -> None:
        self.store = store
        self.copies = WeightsCopies(store, WeightsTimings())
        self.copies.begin("job")
        self.tasks: list[asyncio.Task[HoldWeights | None]] = []

    async def told(self, message: HoldWeights) -> asyncio.Task[HoldWeights | None]:
        task = asyncio.ensure_future(self.copies.hold(message))
        self.tasks.append(task)
        await settle()
        return task

    def files(self) -> set[str]:
        folder = Path(self.store.endpoint.root) / "weights"
        return {path.name for path in folder.iterdir()} if folder.exists() else set()


def offered(version: int, store=STORE, checksum: int = 5, role: str = "rollout") -> BundleOffer:
    return BundleOffer(f"weights/{version:06d}-{role}", 7, checksum, store)


def hold(version: int, *keep: int, store=STORE, checksum: int = 5, evaluation=None) -> HoldWeights:
    rollout = offered(version, store, checksum)
    return HoldWeights("job", version, rollout, evaluation, keep or (version,))


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    store = SlowStore(tmp_path)
    await store.start()
    node = Node(store)
    yield node
    for task in node.tasks:
        task.cancel()
    await asyncio.gather(*node.tasks, return_exceptions=True)
    await store.aclose()


async def test_workers_are_told_of_the_nodes_own_copies(node: Node) -> None:
    evaluation = offered(3, checksum=6, role="evaluation")
    told = await (await node.told(hold(3, 2, 3, evaluation=evaluation)))
    assert told is not None and told.evaluation is not None
    assert [told.rollout.key, told.evaluation.key] == node.store.done
    assert node.files() == {"000003-rollout.00000005", "000003-evaluation.00000006"}
    assert told.rollout.store == told.evaluation.store == node.store.endpoint
    assert (told.version, told.keep) == (3, (2, 3))


async def test_a_copy_of_a_copy_has_the_same_name(node: Node) -> None:
    message = hold(3, store=HOLDER)
    rollout = msgspec.structs.replace(message.rollout, key="weights/000003-rollout.00000005")
    await (await node.told(msgspec.structs.replace(message, rollout=rollout)))
    assert node.files() == {"000003-rollout.00000005"}


async def test_what_is_held_is_not_fetched_again_wherever_it_is_to_be_had(node: Node) -> None:
    first = await (await node.told(hold(3)))
    again = await (await node.told(hold(3, store=HOLDER)))
    assert again == first
    assert node.store.begun == [STORE.port]


async def test_what_is_being_fetched_is_not_fetched_twice(node: Node) -> None:
    first = await node.told(hold(3))
    assert await (await node.told(hold(3))) is None
    assert await first is not None
    assert node.store.begun == [STORE.port]


async def test_when_it_is_sent_elsewhere_it_begins_there_at_once(node: Node) -> None:
    first = await node.told(hold(3))
    second = await node.told(hold(3, store=HOLDER))
    assert first.cancelled()
    assert await second is not None
    assert node.store.begun == [STORE.port, HOLDER.port]
    assert await (await node.told(hold(3))) is not None


async def test_what_cannot_be_had_is_an_error_and_can_be_had_later(node: Node) -> None:
    node.store.fails = True
    with pytest.raises(TransferFailed):
        await (await node.told(hold(3)))
    node.store.fails = False
    assert await (await node.told(hold(3))) is not None


async def test_a_version_that_was_trained_again_replaces_the_old_one(node: Node) -> None:
    await (await node.told(hold(3)))
    told = await (await node.told(hold(3, checksum=6)))
    assert told is not None and told.rollout.checksum == 6
    assert node.files() == {"000003-rollout.00000006"}


async def test_what_is_not_kept_is_dropped_with_what_the_trainer_left_here(node: Node) -> None:
    for version in (2, 3):
        node.store.put(offered(version).key, b"weights")
        await (await node.told(hold(version, 2, 3)))
    await (await node.told(hold(3, 3, 4)))
    assert node.files() == {"000003-rollout", "000003-rollout.00000005"}


async def test_what_is_not_wanted_any_more_is_not_fetched_on(node: Node) -> None:
    first = await node.told(hold(3))
    await (await node.told(hold(4, 4)))
    assert first.cancelled()
    assert node.store.done == ["weights/000004-rollout.00000005"]


async def test_a_version_that_is_late_does_not_drop_a_newer_one(node: Node) -> None:
    late = await node.told(hold(3))
    await (await node.told(hold(4, 3, 4)))
    told = await late
    assert told is not None and told.keep == (3, 4)


async def test_of_another_job_nothing_is_kept_or_fetched(node: Node) -> None:
    await (await node.told(hold(3)))
    running = await node.told(hold(4, 3, 4))
    node.copies.begin("another")
    await settle()
    assert running.cancelled()
    assert node.files() == set()
    await (await node.told(hold(3)))
    assert node.files() == {"000003-rollout.00000005"}


async def test_what_the_trainer_published_before_the_node_heard_of_the_job_stays(
    node: Node,
) -> None:
    node.copies.begin("")
    node.store.put("weights/000000-rollout", b"weights")
    node.copies.begin("job")
    assert node.files() == {"000000-rollout"}
