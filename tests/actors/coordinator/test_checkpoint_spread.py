"""Where nodes are sent for a checkpoint, whatever they say or do not say."""

from __future__ import annotations

from typing import Any

from fleet_kit import JobNodes
from job_kit import STORE
from msgspec import structs

from spotlight.actors.coordinator.tenant.checkpoint_spread import CheckpointSpread
from spotlight.actors.protocol.down import CheckpointSource
from spotlight.actors.protocol.up import NodeCheckpoint, NodeNotice, NodeReport
from spotlight.actors.runtime import ActorRef
from spotlight.jobs.hub_names import HubFile
from spotlight.timings import CheckpointTimings
from spotlight.types import BundleOffer

NAME = f"hf:painters/tiny@{'0' * 40}"
FROM_HUB = CheckpointSource(None)
FILES = (HubFile("model_index.json", 2, "0" * 40),)
"""As the hub says them."""


def listing(node: str) -> BundleOffer:
    return BundleOffer("checkpoint/files.json", 1, 1, structs.replace(STORE, token=node))


class Site:
    def __init__(self) -> None:
        self.nodes = JobNodes()
        self.notices: dict[str, NodeNotice] = {}
        self.spread = CheckpointSpread(NAME, self.nodes.tenant, CheckpointTimings(), FILES)

    def says(self, node: str, *, whole: bool = False, name: str = NAME, **fields: Any) -> bool:
        offer = listing(node) if whole else None
        state = NodeCheckpoint(name, whole, offer, **fields)
        ref = ActorRef("memory://node", "node", 1)
        report = NodeReport(
            1, node, "spot", ref, (), STORE, notice=self.notices.get(node), checkpoint=state
        )
        self.nodes.hear(report)
        return self.spread.note(report, 0.0, has_tried=True)

    def told(self) -> dict[str, CheckpointSource | None]:
        return dict(self.spread.directions(0.0))


def test_nodes_are_sent_to_the_hub_one_by_one_and_then_to_each_other() -> None:
    site = Site()
    site.says("a")
    site.says("b")
    assert site.told() == {"a": FROM_HUB, "b": None}
    site.says("a", whole=True)
    assert site.told() == {"a": None, "b": CheckpointSource(listing("a"), FILES)}


def test_what_a_node_says_again_is_nothing_new() -> None:
    site = Site()
    assert site.says("a")
    assert not site.says("a")
    assert site.says("a", whole=True)
    assert not site.says("a", whole=True)


def test_a_node_that_could_not_have_it_is_sent_elsewhere_once() -> None:
    site = Site()
    site.says("a", whole=True)
    site.says("b")
    source = site.told()["b"]
    assert site.says("b", missed=source)
    assert site.told()["b"] == FROM_HUB
    site.says("b", missed=source)  # it has not yet heard of the new plan
    assert site.told()["b"] == FROM_HUB


def test_a_node_with_notice_feeds_nobody() -> None:
    site = Site()
    site.says("a", whole=True)
    site.says("b")
    assert site.told()["b"] == CheckpointSource(listing("a"), FILES)
    site.notices["a"] = NodeNotice("user", None)
    site.says("a", whole=True)
    assert site.told()["b"] == FROM_HUB


def test_a_node_that_is_gone_feeds_nobody() -> None:
    site = Site()
    site.says("a", whole=True)
    site.says("b")
    site.spread.gone("a")
    assert site.told() == {"b": FROM_HUB}


def test_a_node_whose_cache_was_cleared_feeds_nobody() -> None:
    site = Site()
    site.says("a", whole=True)
    site.says("b")
    site.says("a")
    assert site.told() == {"a": None, "b": FROM_HUB}


def test_a_word_about_the_checkpoint_of_another_job_does_not_count() -> None:
    site = Site()
    assert not site.says("a", whole=True, name=NAME.replace("tiny", "other"))
    assert site.told() == {}
