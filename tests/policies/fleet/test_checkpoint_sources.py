"""Who downloads a checkpoint, and who takes it from whom."""

from __future__ import annotations

import pytest

from spotlight.policies.fleet.checkpoint_sources import FED_AT_ONCE, HUB, CheckpointSources
from spotlight.timings import CheckpointTimings

TIMINGS = CheckpointTimings(source_limit_s=100.0, unasked_s=10.0)


class Nodes:
    """Nodes that lack the checkpoint, in the order in which they came."""

    def __init__(self, *names: str, offline: str = "") -> None:
        self.sources = CheckpointSources(TIMINGS)
        self.names = list(names)
        for name in names:
            self.sources.needs(name, 0.0, offline=name in offline.split())

    def plan(self, now: float = 0.0) -> dict[str, str | None]:
        self.sources.plan(now)
        return {name: self.sources.source_of(name) for name in self.names}


def test_one_downloads_while_the_others_wait() -> None:
    nodes = Nodes("a", "b", "c")
    assert nodes.plan() == nodes.plan(1.0) == {"a": HUB, "b": None, "c": None}


def test_whoever_has_it_feeds_a_few_at_a_time_and_they_feed_others() -> None:
    nodes = Nodes("a", "b", "c", "d", "e")
    nodes.plan()
    nodes.sources.holds("a", feeds=True)
    fed = nodes.plan()
    assert [name for name in nodes.names if fed[name] == "a"] == ["b", "c"][:FED_AT_ONCE]
    assert fed["d"] is fed["e"] is None
    nodes.sources.holds("b", feeds=True)
    later = nodes.plan()
    assert (later["c"], later["d"], later["e"]) == ("a", "b", "a")


@pytest.mark.parametrize("loss", ["gone", "leaves"])
def test_who_loses_its_source_gets_another(loss: str) -> None:
    nodes = Nodes("b")
    nodes.sources.holds("a", feeds=True)
    assert nodes.plan() == {"b": "a"}
    if loss == "gone":
        nodes.sources.gone("a")
    else:
        nodes.sources.holds("a", feeds=False)
    assert nodes.plan() == {"b": HUB}


def test_who_was_failed_goes_to_another_that_has_it_and_then_to_the_hub() -> None:
    nodes = Nodes("c")
    nodes.sources.holds("a", feeds=True)
    nodes.sources.holds("b", feeds=True)
    seen = []
    while (source := nodes.plan()["c"]) is not None:
        seen.append(source)
        nodes.sources.failed("c", source)
    assert seen == ["a", "b", HUB]


def test_a_source_under_an_old_name_is_tried_again() -> None:
    nodes = Nodes("b")
    nodes.sources.holds("a", feeds=True)
    nodes.plan()
    nodes.sources.failed("b", "a")
    nodes.sources.gone("a")
    nodes.sources.holds("a", feeds=True)
    assert nodes.plan() == {"b": "a"}


def test_when_a_download_fails_the_next_node_tries() -> None:
    nodes = Nodes("a", "b")
    nodes.plan()
    nodes.sources.failed("a", HUB)
    assert nodes.plan() == {"a": None, "b": HUB}
    nodes.sources.holds("b", feeds=True)
    assert nodes.plan()["a"] == "b"


def test_a_download_that_takes_too_long_keeps_nobody_waiting() -> None:
    nodes = Nodes("a", "b")
    nodes.plan()
    assert nodes.plan(100.0)["b"] is None
    assert nodes.plan(100.1)["b"] == HUB


def test_a_node_that_may_not_ask_the_hub_waits_for_one_that_may() -> None:
    nodes = Nodes("a", offline="a")
    assert nodes.plan(5.0) == {"a": None}
    nodes.names.append("b")
    nodes.sources.needs("b", 5.0, offline=False)
    assert nodes.plan(5.0) == nodes.plan(50.0) == {"a": None, "b": HUB}


def test_a_node_that_may_not_ask_the_hub_is_sent_there_when_nobody_else_comes() -> None:
    nodes = Nodes("a", offline="a")
    assert nodes.plan(10.0) == {"a": None}
    assert nodes.plan(10.1) == {"a": HUB}


def test_a_word_about_another_source_than_the_present_one_changes_nothing() -> None:
    nodes = Nodes("a")
    nodes.plan()
    nodes.sources.failed("a", "b")
    assert nodes.plan() == {"a": HUB}
