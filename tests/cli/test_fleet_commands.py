"""The verbs of operators with nodes."""

from __future__ import annotations

from typing import Any

import pytest

from spotlight.errors import ConsentMissing, NotAllowed, UnknownNode
from tests.cli.stand_in import StandIn


class Coordinator(StandIn):
    """See `StandIn`."""

    async def preempt(self, node: str, notice_s: float, **options: Any) -> None:
        self.answer(("preempt", node, notice_s, options), None)

    async def drain(self, node: str, **options: Any) -> None:
        self.answer(("drain", node, options), None)


@pytest.fixture
def coordinator(reached_by_join: Any) -> Coordinator:
    return reached_by_join(Coordinator())


@pytest.mark.parametrize(
    ("words", "asked", "said"),
    [
        (("drain", "a"), ("drain", "a", {"cancel": False, "yes": False}), "spotlight undrain a"),
        (("drain", "a", "--yes"), ("drain", "a", {"cancel": False, "yes": True}), "no more work"),
        (("undrain", "a"), ("drain", "a", {"cancel": True}), "a: takes work again"),
        (
            ("preempt", "a", "--notice", "90"),
            ("preempt", "a", 90.0, {"cancel": False, "yes": False}),
            "a: notice of 90 s given",
        ),
        (
            ("preempt", "a", "--cancel", "--yes"),
            ("preempt", "a", 30.0, {"cancel": True, "yes": True}),
            "a: notice withdrawn",
        ),
    ],
    ids=["drain", "drain --yes", "undrain", "preempt", "preempt --cancel"],
)
def test_a_node_is_told_what_to_do(
    coordinator: Coordinator,
    spotlight: Any,
    words: tuple[str, ...],
    asked: tuple[Any, ...],
    said: str,
) -> None:
    code, out, err = spotlight(*words)
    assert (code, err) == (0, "")
    assert said in out
    assert coordinator.asked == [asked]


@pytest.mark.parametrize("verb", ["drain", "preempt"])
def test_what_stops_a_job_is_asked_for_twice(
    coordinator: Coordinator, spotlight: Any, verb: str
) -> None:
    coordinator.error = ConsentMissing("without a `signs` cannot train; say --yes to go ahead")
    code, out, err = spotlight(verb, "a")
    assert (code, out) == (5, "")
    assert "without a `signs` cannot train; say --yes to go ahead" in err
    assert len(err.splitlines()) == 1


@pytest.mark.parametrize("verb", ["drain", "undrain", "preempt"])
@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (UnknownNode("there is no node `a`; there are: b"), 4, "there is no node `a`"),
        (NotAllowed("x"), 2, "does not allow that"),
    ],
    ids=["unknown", "role"],
)
def test_a_node_that_nobody_knows_is_named(
    coordinator: Coordinator, spotlight: Any, verb: str, error: Exception, code: int, said: str
) -> None:
    coordinator.error = error
    ended_with, out, err = spotlight(verb, "a")
    assert (ended_with, out) == (code, "")
    assert said in err and len(err.splitlines()) == 1
