"""Which nodes keep samples and commits of a job, and what they are told of them."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from fleet_kit import JobNodes
from job_kit import STORE, offer
from msgspec.structs import replace

from spotlight.actors.coordinator.tenant.keepers import Keepers
from spotlight.actors.protocol.down import Keeping
from spotlight.actors.protocol.up import NodeReport
from spotlight.actors.runtime import ActorRef
from spotlight.transport.tensors.shares import SharedFolders
from spotlight.types import BundleOffer, StoreEndpoint

REF = ActorRef("memory://node", "node", 1)
NODES = [f"n{number}" for number in range(40)]


class Site:
    """A job with the coordinator's store on the machine `here`."""

    def __init__(self) -> None:
        self.nodes = JobNodes()
        self.changes = 0
        self.next_lease = 1
        self.told: list[str] = []
        self.in_turn: list[Callable[[], Any]] = []
        tenant: Any = SimpleNamespace(
            roster=self.nodes.tenant,
            store=SimpleNamespace(endpoint=replace(STORE, machine="here")),
            service=SimpleNamespace(id="job"),
            journal=SimpleNamespace(term=3),
            table=self,
            call_in_turn=self.in_turn.append,
            briefing=SimpleNamespace(
                keepers_changed=self._count, keeping_changed=lambda nodes: self.told.extend(nodes)
            ),
        )
        self.keepers = Keepers(tenant)

    def _count(self) -> None:
        self.changes += 1

    def report(self, name: str, share: str = "", job: str = "job", machine: str = "") -> None:
        """A reserved node that has the job, and shares its store if that has a name."""
        store = replace(STORE, machine=machine or name, port=len(name))
        shared = replace(store, token=share) if share else None
        word = NodeReport(1, name, "reserved", REF, (), store, job_id=job, share=shared)
        self.nodes.hear(word)
        self.keepers.note(word)

    def appoint(self, *names: str) -> None:
        self.keepers.appoint(frozenset(names))

    def spread(self) -> set[str]:
        kept = [self.keepers.of(name) for name in NODES]
        return {keeper.node for keeper in kept if keeper is not None}

    def kept(self, node: str, key: str = "samples/s/0/1-1") -> BundleOffer:
        """A bundle that a worker has left with its keeper."""
        report = self.nodes.tenant.nodes[node]
        assert report.share is not None
        read = SharedFolders(report.share.token, ("samples",)).read_token(key)
        return replace(offer(key, replace(report.share, token=read)), keeper=node)


def test_nobody_keeps_anything_before_there_are_trainers() -> None:
    site = Site()
    site.report("a", "secret")
    assert site.keepers.of("spot") is None
    assert site.changes == 0


def test_the_nodes_that_train_share_what_others_leave_and_keep_their_own() -> None:
    site = Site()
    site.report("a", "one")
    site.report("b", "two")
    site.report("c", "three")
    site.appoint("a", "b")
    assert site.spread() == {"a", "b"}
    own = site.keepers.of("b")
    assert own is not None
    assert own.node == "b"


def test_nodes_hear_of_it_once_when_all_of_them_share_something() -> None:
    site = Site()
    site.report("a", "one")
    site.appoint("a", "b")
    assert site.spread() == {"a"}  # the other is not there
    site = Site()
    site.report("a", "one")
    site.report("b", "")
    site.appoint("a", "b")
    assert site.spread() == set()
    site.report("b", "two")
    site.report("b", "two")
    assert site.spread() == {"a", "b"}
    assert site.changes == 1


def test_the_share_of_a_node_that_works_for_another_job_is_none_of_this_one() -> None:
    site = Site()
    site.report("a", "one", job="another")
    site.appoint("a")
    assert site.spread() == set()


def test_a_node_on_the_coordinators_machine_keeps_nothing() -> None:
    site = Site()
    site.report("a", "one", machine="here")
    site.report("b", "two")
    site.appoint("a")
    assert site.spread() == set()
    site.appoint("a", "b")
    assert site.spread() == {"b"}


def test_what_is_kept_is_found_as_long_as_the_node_shares_the_same() -> None:
    site = Site()
    site.report("a", "one")
    site.appoint("a")
    bundle = site.kept("a")
    assert site.keepers.has(bundle)
    site.nodes.lose("a")  # it may come back with it
    assert site.keepers.has(bundle)
    site.report("a", "two")
    assert not site.keepers.has(bundle)


def test_nobody_passes_off_as_kept_what_was_not_left_there() -> None:
    site = Site()
    site.report("a", "one")
    site.report("b", "two")
    site.appoint("a", "b")
    bundle = site.kept("a")
    assert not site.keepers.has(replace(bundle, key="samples/s/0/1-2"))
    assert not site.keepers.has(replace(bundle, keeper="b"))
    assert not site.keepers.has(replace(bundle, keeper="c"))
    elsewhere = StoreEndpoint("198.51.100.7", 80, bundle.store.token, "a", "/")
    assert not site.keepers.has(replace(bundle, store=elsewhere))


def test_another_process_of_a_node_gets_another_token() -> None:
    site = Site()
    site.report("a", "one")
    site.appoint("a")
    before = site.keepers.of("spot")
    site.keepers.another_process("spot")
    folders = SharedFolders("one", ("samples",))
    after = site.keepers.of("spot")
    assert before is not None
    assert after is not None
    assert folders.may_write(after.store.token, "samples/spot/0/1-1")
    assert not folders.may_write(before.store.token, "samples/spot/0/1-1")


def test_keepers_hear_of_a_node_that_was_shown_out() -> None:
    site = Site()
    site.report("a", "one")
    site.appoint("a")
    before = site.keepers.of("spot")
    site.keepers.shut_out("spot")
    assert site.told == ["a"]
    keeping = site.keepers.keeping("a")
    assert keeping is not None
    folders = SharedFolders("one", ("samples",), keeping.revoked)
    assert before is not None
    assert not folders.may_write(before.store.token, "samples/spot/0/1-1")
    assert site.keepers.keeping("spot") is None


def test_leases_of_two_releases_ago_are_not_needed() -> None:
    site = Site()
    site.report("a", "one")
    site.appoint("a")
    seen = []
    for lease in (10, 20, 30, 40):
        site.next_lease = lease
        site.keepers.released()
        seen.append(site.keepers.keeping("a"))
    assert seen == [Keeping(0), Keeping(0), Keeping(10), Keeping(20)]
