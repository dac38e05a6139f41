import math
import random
from collections.abc import Collection, Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from spread_from_nothing import SpreadFromNothing

from spotlight.policies.fleet.weight_distribution import (
    FED_AT_ONCE,
    ORIGIN,
    Place,
    WeightDistribution,
    transfer_limit_s,
)
from spotlight.timings import WeightsTimings

TIMINGS = WeightsTimings()
PATIENCE_S = 30.0
TRAINER = Place("trainer")


def places(count: int, machines: int | None = None, zones: int = 1) -> dict[str, Place]:
    """Nodes n00, n01 ...; each a machine of its own unless `machines` says how many there are."""
    return {
        f"n{i:02}": Place(f"machine-{i % (machines or count)}", f"zone-{i % zones}")
        for i in range(count)
    }


class Told:
    """A `WeightDistribution` that is told all there is before every plan, and adds up what its
    plans change."""

    def __init__(self, origin: Place = TRAINER) -> None:
        self._spread = WeightDistribution(origin, PATIENCE_S, TIMINGS)
        self._known: set[str] = set()
        self._sources: dict[str, str] = {}
        self.failed = self._spread.failed

    def plan(
        self,
        nodes: Mapping[str, Place],
        holders: Collection[str],
        feeders: Collection[str],
        now: float,
    ) -> dict[str, str]:
        for name in sorted(self._known - nodes.keys()):
            self._spread.gone(name)
        self._known = set(nodes)
        for name, place in nodes.items():
            if name in holders:
                self._spread.holds(name, place, feeds=name in feeders)
            else:
                self._spread.needs(name, place, now)
        for name, source in self._spread.plan(now).items():
            self._sources.pop(name, None)
            if source is not None:
                self._sources[name] = source
        assert all(self._spread.source_of(name) == it for name, it in self._sources.items())
        return dict(self._sources)


def spread(origin: Place = TRAINER) -> Told:
    return Told(origin)


def over_the_network(plan: dict[str, str], nodes: dict[str, Place], origin: Place) -> list[str]:
    """The sources of those that do not share their source's machine."""
    where = {ORIGIN: origin, **nodes}
    return [s for name, s in plan.items() if nodes[name].distance(where[s]) > 0]


def rounds(nodes: dict[str, Place], origin: Place = TRAINER) -> list[dict[str, str]]:
    """Plans until all hold it, when every transfer takes one round."""
    it, held, plans = spread(origin), set(), []
    while held != nodes.keys():
        plans.append(it.plan(nodes, held, held, float(len(plans))))
        held |= plans[-1].keys()
    return plans


# --- who is fed ---


@pytest.mark.parametrize("count", [1, 2])
def test_one_or_two_nodes_pull_at_once(count):
    assert spread().plan(places(count), (), (), 0.0) == dict.fromkeys(places(count), ORIGIN)


def test_a_third_waits_until_one_of_the_others_holds_it():
    nodes, it = places(3), spread()
    assert it.plan(nodes, (), (), 0.0).keys() == {"n00", "n01"}
    assert it.plan(nodes, {"n00"}, {"n00"}, 1.0) == {"n01": ORIGIN, "n02": "n00"}


@given(st.integers(1, 300))
@settings(deadline=None)
def test_the_number_of_rounds_grows_like_a_logarithm(count):
    assert len(rounds(places(count))) == math.ceil(math.log(count + 1, FED_AT_ONCE + 1) - 1e-9)


def test_of_eight_nodes_the_origin_feeds_four_at_most():
    plans = rounds(places(8))
    assert sum(source == ORIGIN for plan in plans for source in plan.values()) <= 4


def test_nodes_of_the_origins_machine_need_not_wait_and_keep_nobody_waiting():
    beside = {f"t{i}": TRAINER for i in range(5)}
    nodes, it = places(2) | beside, spread()
    assert it.plan(beside, (), (), 0.0) == dict.fromkeys(beside, ORIGIN)
    assert it.plan(nodes, (), (), 1.0) == dict.fromkeys(nodes, ORIGIN)


def test_who_has_waited_longest_is_next():
    nodes, it = places(5), spread()
    for now, name in enumerate(("n03", "n04", "n02", "n00", "n01")):
        there = {other: nodes[other] for other in ("n03", "n04", "n02", "n00")[: now + 1]}
        it.plan(there | {name: nodes[name]}, (), (), float(now))
    it.failed("n03", ORIGIN, 10.0)  # which puts it at the end
    assert it.plan(nodes, (), (), 10.0).keys() == {"n04", "n02"}
    it.failed("n02", ORIGIN, 11.0)
    assert it.plan(nodes, (), (), 11.0).keys() == {"n04", "n00"}


def test_the_same_nodes_in_another_order_get_the_same_plan():
    nodes = places(20, zones=3)
    shuffled = dict(random.Random(0).sample(list(nodes.items()), len(nodes)))
    assert spread().plan(nodes, (), (), 0.0) == spread().plan(shuffled, (), (), 0.0)


# --- from where ---


def test_the_nearest_holder_is_the_source():
    nodes = {
        "far": Place("m0", "zone-0"),
        "near": Place("m1", "zone-1"),
        "beside": Place("m2", "zone-2"),
        "a": Place("m3", "zone-1"),
        "b": Place("m2", "zone-2"),
        "c": Place("m4"),
    }
    held = {"far", "near", "beside"}
    plan = spread(Place("m5", "zone-5")).plan(nodes, held, held, 0.0)
    assert (plan["a"], plan["b"]) == ("near", "beside")
    assert plan["c"] != ORIGIN, "others spare the origin"


def test_unknown_places_are_not_near_each_other():
    assert Place("").distance(Place("")) == 2


def test_a_node_keeps_its_source_when_a_nearer_one_turns_up():
    nodes, it = places(2, zones=1), spread(Place("trainer", "elsewhere"))
    assert it.plan(nodes, (), (), 0.0)["n01"] == ORIGIN
    assert it.plan(nodes, {"n00"}, {"n00"}, 1.0)["n01"] == ORIGIN


def test_a_holder_that_leaves_feeds_nobody_and_those_it_fed_keep_their_place_in_the_line():
    nodes, it = places(7), spread()
    plan = it.plan(nodes, {"n00"}, {"n00"}, 0.0)
    orphans = {name for name, source in plan.items() if source == "n00"}
    assert len(orphans) == FED_AT_ONCE
    it.plan({**nodes, "a": Place("a")}, {"n00"}, {"n00"}, 1.0)
    held = {"n00", *(plan.keys() - orphans)}
    again = it.plan({**nodes, "a": Place("a")}, held, {"n02"} & held, 2.0)
    assert "n00" not in again.values()
    assert orphans <= again.keys()
    assert "a" not in again


# --- what fails ---


def test_a_source_that_failed_a_node_is_left_alone_for_a_while_each_time_longer():
    nodes, it, now, waited = places(1), spread(), 0.0, []
    for _ in range(6):
        assert it.plan(nodes, (), (), now)
        it.failed("n00", ORIGIN, now)
        began = now
        while not it.plan(nodes, (), (), now):
            now += 0.5
        waited.append(now - began)
    assert waited == [1.0, 2.0, 4.0, 8.0, 8.0, 8.0]


def test_a_node_whose_source_fails_goes_to_another_and_after_two_to_the_origin():
    nodes, it = places(5), spread()
    held, sources = {"n01", "n02", "n03", "n04"}, []
    for now in range(3):
        sources.append(it.plan(nodes, held, held, float(now))["n00"])
        it.failed("n00", sources[-1], float(now))
    assert len(set(sources)) == 3
    assert sources.index(ORIGIN) == 2


def test_a_source_that_failed_somebody_is_avoided_by_the_others():
    nodes, it = places(3), spread()
    held = {"n01", "n02"}
    it.plan({name: nodes[name] for name in ("n00", "n01")}, {"n01"}, {"n01"}, 0.0)
    it.failed("n00", "n01", 0.0)
    nodes["n09"] = Place("m9")
    assert "n01" not in it.plan(nodes, held, held, 0.0).values()


def test_a_node_that_takes_too_long_goes_elsewhere_and_makes_room():
    nodes, it = places(3), spread()
    first = it.plan(nodes, (), (), 0.0)
    assert it.plan(nodes, (), (), PATIENCE_S) == first
    later = it.plan(nodes, (), (), PATIENCE_S + 1.0)
    assert later["n02"] == ORIGIN


def test_what_is_said_late_or_twice_changes_nothing():
    nodes, it = places(3), spread()
    held = {"n01", "n02"}
    assert it.plan(nodes, held, held, 0.0) == {"n00": "n01"}
    for stale in ("n02", ORIGIN, "never heard of"):
        it.failed("n00", stale, 1.0)
    it.failed("n01", ORIGIN, 1.0)
    it.failed("never heard of", ORIGIN, 1.0)
    it.failed("n00", "n01", 1.0)
    it.failed("n00", "n01", 1.0)
    assert it.plan(nodes, held, held, 1.0) == {"n00": "n02"}


def test_a_node_that_comes_back_is_as_if_it_had_never_been_there():
    nodes, it = places(1), spread()
    it.plan(nodes, (), (), 0.0)
    it.failed("n00", ORIGIN, 0.0)
    assert it.plan({}, (), (), 0.0) == {}
    assert it.plan(nodes, (), (), 0.0) == {"n00": ORIGIN}


@given(st.integers(0, 10**12), st.integers(0, 10**12))
def test_a_larger_bundle_may_take_longer(first, second):
    smaller, larger = sorted((first, second))
    assert 10.0 <= transfer_limit_s(smaller, TIMINGS) <= transfer_limit_s(larger, TIMINGS)


def test_one_that_failed_others_with_earlier_versions_is_asked_after_the_trainers_node() -> None:
    where = places(3)
    it = WeightDistribution(TRAINER, PATIENCE_S, TIMINGS, {"n00": 1})
    for name in ("n00", "n01"):
        it.holds(name, where[name], feeds=True)
    it.needs("n02", where["n02"], 0.0)
    assert it.plan(0.0) == {"n02": "n01"}
    it.holds("n01", where["n01"], feeds=False)
    assert it.plan(1.0) == {"n02": ORIGIN}


# --- what it costs ---


class CountedPlace(Place):
    """Counts how often anyone asks how far it is from elsewhere."""

    asked = 0

    def distance(self, other: Place) -> int:
        CountedPlace.asked += 1
        return super().distance(other)


def asked_per_node(count: int) -> float:
    """How many distances are looked at until `count` nodes hold the version, one by one."""
    rng, it = random.Random(0), WeightDistribution(TRAINER, PATIENCE_S, TIMINGS)
    where = {f"n{i:04}": CountedPlace(f"machine-{i}", f"zone-{i % 7}") for i in range(count)}
    for name, place in where.items():
        it.needs(name, place, 0.0)
    CountedPlace.asked, pulling, now = 0, list(it.plan(0.0)), 0.0
    while pulling:
        done, now = pulling.pop(rng.randrange(len(pulling))), now + 0.001
        it.holds(done, where[done], feeds=True)
        pulling += [name for name, source in it.plan(now).items() if source is not None]
    assert CountedPlace.asked >= count
    return CountedPlace.asked / count


def test_what_a_copy_costs_does_not_grow_with_the_number_of_nodes():
    assert asked_per_node(800) <= 1.2 * asked_per_node(50)


# --- whatever fails ---


class World:
    """Nodes come, go, hang and lie; transfers fail, stall and end after a while."""

    def __init__(self, seed: int, count: int, machines: int, failing: float) -> None:
        self.rng = random.Random(seed)
        self.all = places(count, machines, zones=3)
        self.origin = Place("machine-0", "zone-0")
        self.present = dict(self.all)
        self.spread = Told(self.origin)
        self.from_nothing = SpreadFromNothing(self.origin, PATIENCE_S)
        self.held: set[str] = set()
        self.barren = {name for name in self.all if self.rng.random() < failing}
        """These feed nobody, whatever they say."""
        self.failing = failing
        self.began: dict[str, tuple[str, float]] = {}
        self.now = 0.0

    def step(self, *, calm: bool) -> None:
        self.now += 0.5
        if not calm:
            self._come_and_go()
        holders = self.held & self.present.keys()
        leaving = {h for h in sorted(holders) if not calm and self.rng.random() < 0.1}
        plan = self.spread.plan(self.present, holders, holders - leaving, self.now)
        same = self.from_nothing.plan(self.present, holders, holders - leaving, self.now)
        assert plan == same
        self._check(plan, holders, leaving)
        self.began = {
            name: before
            if (before := self.began.get(name)) and before[0] == source
            else (source, self.now)
            for name, source in plan.items()
        }
        for name, (source, began) in self.began.items():
            fails = source in self.barren or (not calm and self.rng.random() < self.failing)
            if self.now - began < 2.0:
                continue
            if not fails:
                self.held.add(name)
            elif self.rng.random() < 0.5:  # else the word is lost, and it takes all the time it may
                self.spread.failed(name, source, self.now)
                self.from_nothing.failed(name, source, self.now)

    def _come_and_go(self) -> None:
        for name in self.all:
            if self.rng.random() < 0.03:
                self.held.discard(name)
                if self.present.pop(name, None) is None:
                    self.present[name] = self.all[name]

    def _check(self, plan: dict[str, str], holders: set[str], leaving: set[str]) -> None:
        assert plan.keys() <= self.present.keys() - holders
        assert set(plan.values()) <= holders - leaving | {ORIGIN}
        fed = over_the_network(plan, self.present, self.origin)
        assert all(fed.count(source) <= FED_AT_ONCE for source in set(fed))


@given(
    seed=st.integers(0, 2**32),
    count=st.integers(1, 25),
    machines=st.integers(1, 25),
    failing=st.sampled_from([0.0, 0.2, 0.6, 1.0]),
)
@settings(max_examples=60, deadline=None)
def test_everyone_is_served_in_the_end_and_no_holder_feeds_too_many(seed, count, machines, failing):
    world = World(seed, count, machines, failing)
    for _ in range(100):
        world.step(calm=False)
    limit = 100 + count * 4 * int(PATIENCE_S / 0.5)
    for _ in range(limit):
        world.step(calm=True)
        if world.held >= world.present.keys():
            return
    raise AssertionError(f"not served: {sorted(world.present.keys() - world.held)}")


@given(seed=st.integers(0, 2**32), count=st.integers(1, 25), machines=st.integers(1, 25))
@settings(max_examples=60, deadline=None)
def test_nobody_waits_while_a_fresh_source_is_free(seed, count, machines):
    world = World(seed, count, machines, failing=0.0)
    while not world.held >= world.present.keys():
        world.step(calm=True)
        waiting = world.present.keys() - world.held - world.began.keys()
        fed = over_the_network(
            {name: source for name, (source, _) in world.began.items()}, world.present, world.origin
        )
        assert not waiting or fed.count(ORIGIN) == FED_AT_ONCE
