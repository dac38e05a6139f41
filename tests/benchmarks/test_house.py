"""What `benchmarks.house` counts, and how."""

from __future__ import annotations

from random import Random

import pytest

from benchmarks.house import walks
from benchmarks.house.source import Source, mypy_settings, package
from benchmarks.house.turns import entered
from benchmarks.house.watching import watched
from spotlight.actors.protocol.roles import MAY_SAY
from spotlight.actors.runtime import Actor, ActorRef, ActorSystem, Message, handles
from spotlight_simulation.memory_network import MemoryNetwork

TEXT = """
from collections.abc import Callable
from dataclasses import dataclass

@dataclass
class Row:
    age_s: float
    said: Callable[[str], None]

class Part:
    def __init__(self, say: Callable[[str], None], *, ends: Callable[[], None] | None) -> None:
        self.say = say

class Plain:
    def __init__(self, size: int) -> None:
        self.size = size
"""
SOURCE = Source({"spotlight/a/one.py": TEXT, "spotlight/b.py": "x = 1\n\n\n"})


def test_all_lines_count() -> None:
    assert SOURCE.lines == len(TEXT.splitlines()) + 3


def test_parameters_of_written_constructors_are_told_from_fields() -> None:
    assert [name for name, _ in SOURCE.constructors()] == ["Part", "Plain"]
    assert list(SOURCE.callable_parameters()) == ["Part.say", "Part.ends"]
    assert list(SOURCE.callable_fields()) == ["Row.said"]


def test_the_longest_function_is_named_with_its_file() -> None:
    assert SOURCE.longest_function() == (2, "spotlight/a/one.py:__init__")


@pytest.mark.parametrize(
    ("settings", "checked"),
    [
        ({"strict": True, "files": ["spotlight"]}, 1.0),
        ({"strict": True, "files": ["spotlight/b.py"]}, 3 / SOURCE.lines),
        ({"strict": False, "files": ["spotlight"]}, 0.0),
        (
            {
                "strict": True,
                "files": ["spotlight"],
                "overrides": [{"module": ["spotlight.a.*"], "ignore_errors": True}],
            },
            3 / SOURCE.lines,
        ),
        (
            {
                "strict": True,
                "files": ["spotlight"],
                "overrides": [{"module": "torch.*", "ignore_missing_imports": True}],
            },
            1.0,
        ),
    ],
)
def test_a_line_is_typed_where_mypy_is_strict(settings: dict[str, object], checked: float) -> None:
    assert SOURCE.typed_share(settings) == pytest.approx(checked)


def test_mypy_is_strict_with_the_whole_package_but_for_what_is_linked_into_it() -> None:
    source = package()
    assert "spotlight/timings.py" in source.texts
    assert not any(path.startswith("spotlight/examples/") for path in source.texts)
    assert source.typed_share(mypy_settings()) == 1.0


class _Go(Message, frozen=True):
    """To the first."""


class _On(Message, frozen=True):
    """From the first to the second."""


class _First(Actor):
    def __init__(self, second: ActorRef) -> None:
        self._second = second

    @handles(_Go)
    async def on_go(self, message: _Go) -> Message:
        return await self.ask(self._second, _On(), timeout_s=5)


class _Second(Actor):
    @handles(_On)
    async def on_on(self, message: _On) -> None:
        pass


async def test_hops_between_actors_are_noted_with_replies_and_turns_with_files() -> None:
    transport = MemoryNetwork(Random(0)).transport("here")
    system = ActorSystem(transport, rng=Random(0), rights=MAY_SAY)
    with watched("memory://here", turns=True) as watch:
        await system.start()
        second = await system.spawn(_Second, "second")
        first = await system.spawn(lambda: _First(second), "first")
        await system.ask(first, _Go(), timeout_s=5)
        await system.aclose()
    assert [(hop.source[1], hop.target[1], type(hop.message).__name__) for hop in watch.hops] == [
        ("", "first", "_Go"),
        ("first", "second", "_On"),
        ("second", "first", "Done"),
        ("first", "", "Done"),
    ]
    assert [turn.name for turn in watch.turns] == ["_First._Go", "_Second._On"]
    assert "actors/runtime/actor.py" in watch.turns[0].files


def test_the_three_walks_are_no_longer_than_they_were() -> None:
    lengths = {name: len(walk) for name, walk in walks.measured().items()}
    assert lengths["seed_to_gradient"] <= 5
    assert lengths["notice_to_commit"] <= 6
    assert lengths["weights_to_member"] <= 5


def test_a_simulated_job_shows_which_files_a_handler_enters() -> None:
    most = entered([1])
    assert "actors/coordinator/job/job_runner.py" in most.by_message["JobRunner.NodeReport"]
    assert all(most.by_message.values())
