"""Groups that a session cannot have."""

from __future__ import annotations

from typing import Any

from job_kit import job

from spotlight.actors.coordinator.session.session_groups import problem_with_orders
from spotlight.actors.protocol.sessions import GroupOrder


def problem(*seeds: int, **changes: Any) -> str:
    order = GroupOrder(1, "rollout", "a cat", seeds, 0)
    return problem_with_orders([order], [0], 1, job(**changes).work)


def test_a_group_of_one_cannot_be_compared() -> None:
    compares = {"kind": "python", "python": "own:compare", "groupwise": True}
    changes = {"rewards": [compares], "validation": {"seeds": 2}}
    assert problem(1, **changes) == (
        "group 1 has one seed, but the reward `python` compares the images of a prompt"
    )
    assert problem(1, 2, **changes) == ""
    assert problem(1) == ""
