"""What ranks have lent, as a worker gets it from its node."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from job_kit import offer
from msgspec.structs import replace

from spotlight.actors.protocol.down import WeightsOffer
from spotlight.actors.worker.slice_work import LentWeights
from spotlight.errors import TransferFailed
from spotlight.timings import WeightsTimings
from spotlight.types import BundleOffer

pytestmark = pytest.mark.virtual_time


class Engine:
    """Notes the keys of what is fetched."""

    def __init__(self) -> None:
        self.fetched: list[str] = []

    async def fetch_weights(self, parts: tuple[BundleOffer, ...]) -> str:
        self.fetched += [part.key for part in parts]
        return f"weights {len(self.fetched)}"


@pytest.fixture
def engine() -> Engine:
    return Engine()


@pytest.fixture
def weights(engine: Engine) -> LentWeights:
    return LentWeights(engine, WeightsTimings())  # type: ignore[arg-type]


def left(checksum: int) -> BundleOffer:
    """A rank left it, in the store of its node."""
    return replace(offer("weights/lent1-rollout-0"), checksum=checksum)


def plan(*checksums: int) -> Any:
    """The node has copies of these."""
    copies = (replace(left(each), key=f"copy of {each}") for each in checksums)
    return SimpleNamespace(lent=tuple(WeightsOffer(n, (it,)) for n, it in enumerate(copies)))


async def test_the_copy_of_the_node_is_taken(weights: LentWeights, engine: Engine) -> None:
    weights.follow(plan(5, 6))
    held = await weights.have("current", (left(6),))
    assert engine.fetched == ["copy of 6"]
    assert await weights.have("current", (left(6),)) is held


async def test_several_slices_wait_for_what_the_node_has_yet_to_get(
    weights: LentWeights, engine: Engine
) -> None:
    waiting = [asyncio.create_task(weights.have("current", (left(7),))) for _ in range(3)]
    for known in ((), (5,), (5, 7)):
        await asyncio.sleep(1.0)
        weights.follow(plan(*known))
    found = await asyncio.gather(*waiting)
    assert set(engine.fetched) == {"copy of 7"}
    assert {each.checksum for each in found} == {found[0].checksum}


@pytest.mark.parametrize("known", [None, plan(), plan(5)], ids=["no job", "nothing", "others"])
async def test_what_does_not_come_is_a_failure_after_a_while(
    weights: LentWeights, known: Any
) -> None:
    weights.follow(known)
    with pytest.raises(TransferFailed, match="no copy of weights/lent1-rollout-0 after"):
        await weights.have("current", (left(7),))
