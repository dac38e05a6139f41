"""Where nodes are sent for the weights, whatever they say or do not say."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from fleet_kit import JobNodes
from job_kit import STORE

from spotlight.actors.coordinator.tenant.publications import Publications, _neighbourhood
from spotlight.actors.protocol.down import WeightsOffer
from spotlight.actors.protocol.up import MissedWeights, NodeNotice, NodeReport
from spotlight.actors.runtime import ActorRef
from spotlight.policies.fleet.weight_distribution import FED_AT_ONCE
from spotlight.timings import WeightsTimings
from spotlight.types import BundleOffer, StoreEndpoint

REF = ActorRef("memory://node", "node", 1)


def store(name: str, host: str = "127.0.0.1", machine: str = "") -> StoreEndpoint:
    return StoreEndpoint(host, 1, f"token of {name}", machine or name, f"/{name}")


def bundle(version: int, where: StoreEndpoint, role: str = "rollout") -> BundleOffer:
    return BundleOffer(f"weights/{version:06d}-{role}", 100, version, where)


def report(name: str, where: StoreEndpoint, **fields: Any) -> NodeReport:
    return NodeReport(1, name, "spot", REF, (), where, **fields)


class Site:
    """A job's nodes, and its versions that lie at the node `trainer`."""

    def __init__(self, *names: str) -> None:
        self.now = 0.0
        self.nodes = JobNodes()
        self.told_of: list[tuple[str, str]] = []
        """Who could not get a version, and from which machine."""
        self.publications = Publications(
            {},
            self.nodes.tenant,
            WeightsTimings(),
        )
        self.origin = store("trainer")
        for name in names:
            self.join(name)

    def join(self, name: str, **where: Any) -> None:
        node = report(name, store(name, **where))
        self.nodes.hear(node)
        self.publications.node_changed(name)

    def leave(self, name: str) -> None:
        self.nodes.lose(name)
        self.publications.node_changed(name)

    def notice(self, name: str) -> None:
        known = self.nodes.tenant.nodes[name]
        self.nodes.hear(msgspec.structs.replace(known, notice=NodeNotice("user", None)))
        self.publications.node_changed(name)

    def publish(self, version: int, *keep: int, evaluation: bool = False) -> None:
        validated = (bundle(version, self.origin, "evaluation"),) if evaluation else ()
        offer = WeightsOffer(version, (bundle(version, self.origin),), validated)
        self.publications.add(offer, keep)

    def told(self, *again: str) -> dict[tuple[str, int], str]:
        """Who is told to get which version where (the machine)."""
        directions = self.publications.directions(self.now, again)
        return {(name, offer.version): offer.store.machine for name, offer in directions}

    def copied(self, name: str, version: int = 0, **changes: Any) -> bool:
        name = changes.pop("node", name)
        where = (
            self.nodes.tenant.nodes[name].store if name in self.nodes.tenant.nodes else store(name)
        )
        copy = WeightsOffer(version, (bundle(version, where),))
        copies = (msgspec.structs.replace(copy, **changes),)
        return self._note(report(name, where, weights=copies))

    def missed(self, name: str, source: str, version: int = 0, *, has_tried: bool = True) -> bool:
        where = (
            self.nodes.tenant.nodes[source].store
            if source in self.nodes.tenant.nodes
            else self.origin
        )
        missed = (MissedWeights(version, where),)
        return self._note(report(name, store(name), missed=missed), has_tried=has_tried)

    def _note(self, said: NodeReport, *, has_tried: bool = True) -> bool:
        news = self.publications.note_copies(said.node, said.weights)
        tried = said.missed if has_tried else ()
        missed = self.publications.note_missed(said.node, tried, self.now)
        self.told_of += [(said.node, each.store.machine) for each in missed]
        return news or bool(missed)


def test_the_first_nodes_pull_from_the_trainers_and_the_next_from_them() -> None:
    site = Site("a", "b", "c", "d")
    site.publish(0)
    assert site.told() == {("a", 0): "trainer", ("b", 0): "trainer"}
    assert site.copied("a")
    assert site.told() == {("c", 0): "a", ("d", 0): "a"}


def test_a_node_is_told_once_unless_it_is_to_be_told_again() -> None:
    site = Site("a", "b", "c")
    site.publish(0)
    first = site.told()
    assert site.told() == {}
    assert site.told("a", "c") == {("a", 0): "trainer"}
    assert site.told("a", "b") == first


def test_one_that_holds_a_version_is_told_again_so_that_its_new_workers_hear_of_it() -> None:
    site = Site("a")
    site.publish(0)
    site.told()
    site.copied("a")
    assert site.told() == {}
    assert site.told("a") == {("a", 0): "trainer"}


def test_one_that_holds_what_another_gave_it_is_not_told_anew() -> None:
    site = Site("a", "b", "c")
    site.publish(0)
    site.told()
    site.copied("a")
    assert site.told() == {("c", 0): "a"}
    site.copied("c")
    assert site.told() == {}


def test_what_is_not_kept_is_not_spread_any_more() -> None:
    site = Site("a")
    site.publish(0)
    site.told()
    site.publish(1, 0)
    assert (site.publications.versions, site.told()) == ({0, 1}, {("a", 1): "trainer"})
    site.publish(2, 1)
    assert (site.publications.versions, site.told()) == ({1, 2}, {("a", 2): "trainer"})


def test_a_miss_counts_only_of_what_the_latest_plan_says() -> None:
    site = Site("a")
    site.publish(0)
    site.told()
    assert not site.missed("a", "trainer", has_tried=False)
    assert site.told("a") == {("a", 0): "trainer"}
    assert site.missed("a", "trainer")
    assert site.told("a") == {}


def test_a_copy_that_is_said_twice_is_not_new() -> None:
    site = Site("a")
    site.publish(0)
    site.told()
    assert [site.copied("a"), site.copied("a")] == [True, False]


@pytest.mark.parametrize(
    "changes",
    [
        {"version": 7},
        {"rollout": (bundle(1, store("a")),)},
        {"rollout": (msgspec.structs.replace(bundle(0, store("a")), nbytes=99),)},
        {"evaluation": (bundle(0, store("a"), "evaluation"),)},
        {"rollout": (bundle(0, store("a process before")),)},
        {"node": "long gone"},
    ],
    ids=["version", "trained again", "size", "evaluation", "process", "node"],
)
def test_a_copy_that_is_stale_changes_nothing(changes: dict[str, Any]) -> None:
    site = Site("a", "b", "c")
    site.publish(0)
    site.told()
    site.copied("a", **changes)
    assert site.told() == {}


def test_a_version_with_evaluation_weights_is_held_when_both_are() -> None:
    site = Site("a", "b", "c")
    site.publish(0, evaluation=True)
    site.told()
    site.copied("a")
    assert site.told() == {}
    site.copied("a", evaluation=(bundle(0, store("a"), "evaluation"),))
    assert site.told() == {("c", 0): "a"}


def test_those_that_pull_from_a_copy_that_is_another_one_now_are_sent_there() -> None:
    site = Site("a", "b", "c")
    site.publish(0)
    site.told()
    site.copied("a")
    assert site.told() == {("c", 0): "a"}
    moved = msgspec.structs.replace(bundle(0, store("a")), key="weights/elsewhere")
    assert site.copied("a", rollout=(moved,))
    assert site.told() == {("c", 0): "a"}


def test_a_node_that_is_gone_or_leaves_feeds_nobody() -> None:
    site = Site(*"abcdef")
    site.publish(0)
    site.told()
    site.copied("a")
    assert site.told() == {("c", 0): "a", ("d", 0): "a", ("e", 0): "trainer"}
    site.copied("b")
    assert site.told() == {("f", 0): "b"}
    site.leave("a")
    site.notice("b")
    assert site.told() == {("c", 0): "trainer"}


def test_a_node_that_came_back_with_an_empty_store_pulls_again() -> None:
    site = Site("a")
    site.publish(0)
    site.told()
    site.copied("a")
    assert site.told() == {}
    site.join("a", machine="rebooted")
    assert site.told("a") == {("a", 0): "trainer"}
    site.copied("a", rollout=(bundle(0, store("a")),))
    assert site.nodes.tenant.nodes["a"].store != store("a")
    site.join("b")
    assert site.told() == {("b", 0): "trainer"}


def test_one_that_could_not_get_it_is_sent_elsewhere_or_there_again_later() -> None:
    site = Site("a", "b")
    site.publish(0)
    site.told()
    site.missed("a", "trainer")
    assert site.told("a") == {}
    site.copied("b")
    assert site.told() == {("a", 0): "b"}
    site.missed("a", "trainer")  # a word that is late
    assert site.told("a") == {("a", 0): "b"}
    site.missed("a", "b")
    site.leave("b")
    site.now += 2.0
    assert site.told() == {("a", 0): "trainer"}


def held_by_two(site: Site, version: int) -> None:
    """Of the nodes, `a` and `b` hold the version, and nobody else is there."""
    site.publish(version)
    site.told()
    for name in ("a", "b"):
        site.copied(name, version)
    site.told()


def test_one_that_nobody_can_reach_is_asked_last_with_later_versions_too() -> None:
    site = Site("a", "b")
    held_by_two(site, 0)
    site.join("c")
    assert site.told() == {("c", 0): "a"}
    assert site.missed("c", "a")
    assert not site.missed("c", "a"), "it repeats itself"
    assert site.told_of == [("c", "a")]
    site.leave("c")
    held_by_two(site, 1)
    site.join("c")
    assert site.told() == {("c", 1): "b"}


def test_one_that_could_be_reached_again_is_asked_as_before() -> None:
    site = Site("a", "b")
    held_by_two(site, 0)
    site.join("c")
    site.told()
    site.missed("c", "a")
    site.leave("b")
    site.now += 2.0
    site.told()
    site.missed("c", "trainer")
    site.now += 4.0
    assert site.told() == {("c", 0): "a"}
    site.copied("c")
    site.join("b")
    held_by_two(site, 1)
    site.leave("c")
    site.join("d")
    assert site.told()["d", 1] == "a"


def test_one_that_says_nothing_for_long_makes_room() -> None:
    site = Site("a", "b", "c")
    site.publish(0)
    site.told()
    site.now += 1000.0
    assert ("c", 0) in site.told()


def test_the_trainers_node_counts_as_one_source_when_it_has_its_copy() -> None:
    site = Site("trainer", *"abcdefgh")
    site.publish(0)
    assert site.told() == {(n, 0): "trainer" for n in ("trainer", "a", "b")}
    site.copied("trainer")
    assert site.told() == {}
    site.copied("a")
    fed = [*site.told().values()]
    assert fed.count("trainer") == 1 and fed.count("a") == FED_AT_ONCE


def test_nodes_of_one_machine_or_subnet_pull_from_each_other() -> None:
    site = Site()
    for name, host in (("a", "10.1.1.1"), ("b", "10.1.2.1")):
        site.join(name, host=host)
    site.publish(0)
    site.told()
    assert site.copied("a") and site.copied("b")
    site.join("near-b", host="10.1.2.9")
    site.join("near-a", host="10.1.1.9")
    site.join("beside-b", machine="b", host="10.9.9.9")
    told = site.told()
    assert told == {("near-a", 0): "a", ("near-b", 0): "b", ("beside-b", 0): "b"}


def test_what_an_earlier_coordinator_published_can_be_pulled() -> None:
    site = Site("a")
    known = {v: WeightsOffer(v, (bundle(v, STORE),)) for v in (4, 3)}
    site.publications = Publications(known, site.nodes.tenant, WeightsTimings())
    assert site.told() == {("a", 3): "machine", ("a", 4): "machine"}
    assert (site.publications.newest, site.publications.versions) == (4, {3, 4})


@pytest.mark.parametrize(
    ("host", "near"),
    [
        ("10.1.2.3", "10.1.2.0/24"),
        ("fd00:1:2:3::4", "fd00:1:2:3::/64"),
        ("node-7.rack-2.example", "rack-2.example"),
        ("127.0.0.1", ""),
        ("0.0.0.0", ""),
        ("localhost", ""),
    ],
)
def test_a_neighbourhood_is_a_subnet_or_a_domain(host: str, near: str) -> None:
    assert _neighbourhood(host) == near


def test_a_version_is_held_while_a_node_that_is_there_has_it() -> None:
    site = Site("trainer", "a", "b")
    site.publish(3)
    assert site.publications.held == frozenset(), "its store may have dropped it since"
    site.copied("trainer", 3)
    assert site.publications.held == {3}
    site.leave("trainer")
    assert site.publications.held == frozenset()
    site.told()
    site.copied("a", 3)
    assert site.publications.held == {3}
    site.leave("a")
    assert site.publications.held == frozenset()


def test_a_node_that_came_back_as_another_process_holds_nothing() -> None:
    site = Site("trainer")
    site.publish(3)
    site.copied("trainer", 3)
    site.join("trainer", host="10.0.0.1")
    assert site.publications.held == frozenset()


def test_what_is_trained_again_is_published_no_more() -> None:
    site = Site("trainer", "a")
    site.publish(3)
    site.publish(4, 3)
    site.copied("trainer", 3)
    site.publications.keep([3])
    assert site.publications.versions == site.publications.held == {3}
    assert 4 not in site.publications
    assert set(site.told()) <= {("a", 3), ("trainer", 3)}


def test_a_version_is_lost_when_nobody_holds_it_and_its_trainers_store_does_not_have_it() -> None:
    site = Site("trainer", "a")
    site.publish(3)
    assert not site.publications.is_lost(3), "it was not asked for yet"
    site.told()
    assert site.missed("a", "trainer", 3)
    assert site.publications.is_lost(3)
    site.copied("trainer", 3)
    assert not site.publications.is_lost(3)
    assert not site.publications.is_lost(4), "nobody knows it"


def test_whether_a_version_has_weights_for_evaluations_is_known() -> None:
    site = Site("trainer", "a")
    site.publish(3)
    site.publish(4, 3, evaluation=True)
    assert [site.publications.is_validated(version) for version in (3, 4)] == [False, True]
