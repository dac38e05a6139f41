"""The node's copies: each version is fetched once, from where the node was sent last."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest
from job_kit import STORE, Recorder, recorder, settle
from runtime_kit import Cluster

from spotlight.actors.node.weights_copies import WeightsCopies
from spotlight.actors.protocol.down import WeightsOffer
from spotlight.actors.protocol.up import MissedWeights
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
        self.bases: list[str] = []
        """Keys of what is here and like what is copied; empty where nothing is."""
        self.fails = False

    async def copy(
        self,
        offer: BundleOffer,
        key: str,
        *,
        limit_s: float | None = None,
        base: BundleOffer | None = None,
    ) -> BundleOffer:
        self.bases.append(base.key if base is not None else "")
        self.begun.append(offer.store.port)
        await asyncio.sleep(SECONDS * (2 if "evaluation" in key else 1))
        if self.fails:
            raise TransferFailed("its holder is gone")
        self.done.append(key)
        kept = self.put(key, bytes(offer.nbytes))
        return msgspec.structs.replace(kept, checksum=offer.checksum)


class Node:
    def __init__(self, actor: Recorder, store: SlowStore) -> None:
        self.actor, self.store = actor, store
        self.changes = 0
        self.copies = WeightsCopies(
            SimpleNamespace(run_task=actor.run_task, files_changed=self._change),
            store,
            WeightsTimings(),
        )
        self.copies.begin("job")

    def _change(self) -> None:
        self.changes += 1

    async def told(self, *offers: WeightsOffer, keep: tuple[int, ...] = ()) -> None:
        """The plan says so."""
        versions = {offer.version for offer in offers} | set(keep)
        self.copies.follow(offers, sorted(versions))
        await settle()

    async def has_told(self, *offers: WeightsOffer, keep: tuple[int, ...] = ()) -> None:
        """The same, and all the time passes that it takes."""
        await self.told(*offers, keep=keep)
        await asyncio.sleep(3 * SECONDS)

    def files(self) -> set[str]:
        folder = Path(self.store.endpoint.root) / "weights"
        return {path.name for path in folder.iterdir()} if folder.exists() else set()


def offered(version: int, store=STORE, checksum: int = 5, role: str = "rollout") -> BundleOffer:
    return BundleOffer(f"weights/{version:06d}-{role}", 7, checksum, store)


def hold(version: int, store=STORE, checksum: int = 5, evaluation=None) -> WeightsOffer:
    rollout = (offered(version, store, checksum),)
    return WeightsOffer(version, rollout, (evaluation,) if evaluation else ())


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    store = SlowStore(tmp_path)
    await store.start()
    async with Cluster() as cluster:
        yield Node(await recorder(await cluster.system("n"), "node"), store)
    await store.aclose()


async def test_workers_read_the_nodes_own_copies(node: Node) -> None:
    evaluation = offered(3, checksum=6, role="evaluation")
    await node.has_told(hold(3, evaluation=evaluation), keep=(2,))
    (held,) = node.copies.held
    assert [part.key for part in held.parts] == node.store.done
    assert node.files() == {"000003-rollout.00000005", "000003-evaluation.00000006"}
    assert all(part.store == node.store.readable(part.key) for part in held.parts)
    assert node.changes == 1


async def test_a_version_is_there_when_both_of_its_roles_are(node: Node) -> None:
    await node.told(hold(3, evaluation=offered(3, checksum=6, role="evaluation")))
    await asyncio.sleep(1.5 * SECONDS)
    assert (node.copies.held, len(node.store.done)) == ((), 1)
    await asyncio.sleep(SECONDS)
    assert len(node.copies.held) == 1


async def test_all_parts_of_a_version_are_fetched_at_the_same_time(node: Node) -> None:
    parts = tuple(offered(3, checksum=rank, role=f"rollout-{rank}") for rank in range(4))
    await node.told(WeightsOffer(3, parts))
    await asyncio.sleep(1.5 * SECONDS)
    (held,) = node.copies.held
    assert [part.checksum for part in held.rollout] == [0, 1, 2, 3]


async def test_a_copy_of_a_copy_has_the_same_name(node: Node) -> None:
    rollout = msgspec.structs.replace(offered(3, HOLDER), key="weights/000003-rollout.00000005")
    await node.has_told(WeightsOffer(3, (rollout,)))
    assert node.files() == {"000003-rollout.00000005"}


async def test_what_is_held_is_not_fetched_again_wherever_it_is_to_be_had(node: Node) -> None:
    await node.has_told(hold(3))
    first = node.copies.held
    await node.told(hold(3, store=HOLDER))
    assert node.copies.held == first
    assert node.store.begun == [STORE.port]


async def test_a_job_runner_that_has_published_nothing_yet_has_nothing_dropped(node: Node) -> None:
    """Its trainer may have published that version again, under the same name."""
    await node.has_told(hold(3))
    published = node.store.put("weights/000003-rollout", b"again")
    node.copies.follow((), ())
    assert node.files() == {"000003-rollout.00000005", "000003-rollout"}
    assert published.key == "weights/000003-rollout"


async def test_what_is_being_fetched_is_not_fetched_twice(node: Node) -> None:
    await node.told(hold(3))
    await node.has_told(hold(3))
    assert len(node.copies.held) == 1
    assert node.store.begun == [STORE.port]


async def test_when_it_is_sent_elsewhere_it_begins_there_at_once(node: Node) -> None:
    await node.told(hold(3))
    await node.has_told(hold(3, store=HOLDER))
    assert len(node.copies.held) == len(node.store.done) == 1
    assert node.store.begun == [STORE.port, HOLDER.port]


async def test_what_cannot_be_had_is_reported_and_tried_again_with_the_next_plan(
    node: Node,
) -> None:
    node.store.fails = True
    await node.has_told(hold(3))
    assert node.copies.missed == (MissedWeights(3, STORE),)
    assert (node.copies.held, node.changes) == ((), 1)
    node.store.fails = False
    await node.has_told(hold(3))
    assert node.copies.missed == ()
    assert [held.version for held in node.copies.held] == [3]


async def test_a_version_that_was_trained_again_replaces_the_old_one(node: Node) -> None:
    await node.has_told(hold(3))
    await node.told(hold(3, checksum=6))
    assert node.copies.held == (), "it is another by now"
    await asyncio.sleep(2 * SECONDS)
    assert [held.rollout[0].checksum for held in node.copies.held] == [6]
    assert node.files() == {"000003-rollout.00000006"}


async def test_what_is_not_kept_is_dropped_with_what_the_trainer_left_here(node: Node) -> None:
    for version in (2, 3):
        node.store.put(offered(version).key, b"weights")
    await node.has_told(hold(2), hold(3))
    await node.told(hold(3), keep=(4,))
    assert node.files() == {"000003-rollout", "000003-rollout.00000005"}


async def test_what_is_not_wanted_any_more_is_not_fetched_on(node: Node) -> None:
    await node.told(hold(3))
    await node.has_told(hold(4))
    assert node.store.done == ["weights/000004-rollout.00000005"]


async def test_a_version_of_which_no_source_is_known_now_is_kept_and_not_offered(
    node: Node,
) -> None:
    """The runner may be another one, that has yet to say which weights it means."""
    await node.has_told(hold(3))
    await node.told(keep=(3,))
    assert node.copies.held == ()
    assert node.files() == {"000003-rollout.00000005"}
    await node.told(hold(3))
    assert [held.version for held in node.copies.held] == [3]
    assert node.store.begun == [STORE.port]


async def test_of_another_job_nothing_is_kept_or_fetched(node: Node) -> None:
    await node.has_told(hold(3))
    await node.told(hold(3), hold(4))
    node.copies.begin("another")
    await asyncio.sleep(2 * SECONDS)
    assert node.files() == set()
    await node.has_told(hold(3))
    assert node.files() == {"000003-rollout.00000005"}


async def test_what_the_trainer_published_before_the_node_heard_of_the_job_stays(
    node: Node,
) -> None:
    node.copies.begin("")
    node.store.put("weights/000000-rollout", b"weights")
    node.copies.begin("job")
    assert node.files() == {"000000-rollout"}


async def test_the_state_of_training_is_dropped_with_its_job(node: Node) -> None:
    state = Path(node.store.endpoint.root) / "state"
    node.store.put("state/1", b"state")
    node.copies.begin("job")
    assert (state / "1").exists(), "it is of the job that goes on"
    node.copies.begin("another")
    assert not state.exists()


async def test_a_state_that_is_left_before_the_node_heard_of_the_job_stays(node: Node) -> None:
    node.copies.begin("")
    node.store.put("state/1", b"state")
    node.copies.begin("job")
    assert (Path(node.store.endpoint.root) / "state" / "1").exists()


async def test_a_part_is_copied_as_a_change_of_the_same_part_of_the_version_before(
    node: Node,
) -> None:
    def parts(version: int) -> WeightsOffer:
        roles = ("rollout-0", "rollout-1")
        return WeightsOffer(
            version, tuple(offered(version, checksum=version, role=r) for r in roles)
        )

    for version in (1, 2, 4):
        await node.has_told(parts(version), keep=(1, 2))
    assert node.store.bases == [
        *("", ""),
        *("weights/000001-rollout-0.00000001", "weights/000001-rollout-1.00000001"),
        *("weights/000002-rollout-0.00000002", "weights/000002-rollout-1.00000002"),
    ]


async def test_what_could_not_be_copied_as_a_change_is_copied_whole_next(node: Node) -> None:
    await node.has_told(hold(3))
    node.store.fails = True
    await node.has_told(hold(4), keep=(3,))
    node.store.fails = False
    await node.has_told(hold(4), keep=(3,))
    await node.has_told(hold(5), keep=(3, 4))
    assert node.store.bases == [
        "",
        "weights/000003-rollout.00000005",
        "",
        "weights/000004-rollout.00000005",
    ]


# --- what trainer ranks lend ---


def lent(update: int) -> WeightsOffer:
    return WeightsOffer(
        update, (BundleOffer(f"weights/lent{update % 2}-rollout", 7, update, STORE),)
    )


@pytest.fixture
def borrowed(node: Node) -> WeightsCopies:
    around = SimpleNamespace(run_task=node.actor.run_task, files_changed=lambda: None)
    return WeightsCopies(around, node.store, WeightsTimings(), node.copies)  # type: ignore[arg-type]


async def test_lent_weights_are_copied_as_a_change_of_the_newest_that_were_published(
    node: Node, borrowed: WeightsCopies
) -> None:
    await node.has_told(hold(3), hold(4, checksum=6))
    borrowed.follow([lent(9)], [9])
    await asyncio.sleep(2 * SECONDS)
    assert node.store.bases[-1] == "weights/000004-rollout.00000006"
    assert [copy.version for copy in borrowed.held] == [9]


async def test_what_a_rank_has_left_for_the_update_after_stays_when_an_older_copy_goes(
    node: Node, borrowed: WeightsCopies
) -> None:
    for update in (7, 8):
        borrowed.follow([lent(update)], [update])
        await asyncio.sleep(2 * SECONDS)
        node.store.put(f"weights/lent{update % 2}-rollout", b"of the update after")
    assert node.files() == {"lent0-rollout", "lent0-rollout.00000008", "lent1-rollout"}
