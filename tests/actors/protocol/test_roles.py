"""Who may say what, for all messages of the package."""

from __future__ import annotations

import ast
import importlib
from pathlib import Path
from typing import get_args

import pytest

import spotlight
from spotlight.actors.protocol.door import Role
from spotlight.actors.protocol.roles import MAY_SAY
from spotlight.transport.control import Message

PACKAGE = Path(spotlight.__file__).parent
PAGE = (PACKAGE.parent / "docs" / "security.md").read_text(encoding="utf-8")
ROLES: tuple[Role, ...] = get_args(Role)


def messages_of_the_package() -> set[type[Message]]:
    """All subclasses of `Message` that any of its modules defines."""
    bases: dict[tuple[str, str], set[str]] = {}
    for path in PACKAGE.rglob("*.py"):
        module = ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts)
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                names = {base.id for base in node.bases if isinstance(base, ast.Name)}
                bases[(module, node.name)] = names
    known = {"Message"}
    while more := {name for (_, name), of in bases.items() if of & known} - known:
        known |= more
    found = [(module, name) for (module, name), of in bases.items() if of & known]
    return {getattr(importlib.import_module(module), name) for module, name in found}


def said_by(role: Role) -> set[str]:
    return {kind.__name__ for kind, roles in MAY_SAY.items() if role in roles}


def test_every_message_of_the_package_has_a_row_and_no_row_is_of_anything_else() -> None:
    assert set(MAY_SAY) == messages_of_the_package()


def test_a_row_names_roles_that_there_are() -> None:
    assert set().union(*MAY_SAY.values()) == set(ROLES)


def test_nobody_says_down_and_somebody_says_everything_else() -> None:
    assert {kind.__name__ for kind, roles in MAY_SAY.items() if not roles} == {"Down"}


def test_a_joiner_says_enroll_and_nothing_else() -> None:
    assert said_by("joiner") == {"Enroll"}


def test_an_observer_asks_what_changes_nothing() -> None:
    assert said_by("observer") == {"GetStatus", "GetGuests", "ListJobs"}


def test_a_trainer_says_what_a_worker_says_and_reports_on_training() -> None:
    assert said_by("trainer") - said_by("worker") == {"TrainerReport"}
    assert said_by("worker") < said_by("trainer")


@pytest.mark.parametrize(
    ("message", "roles"),
    [
        ("Train", {"coordinator"}),
        ("StartTrainer", {"coordinator"}),
        ("Publish", {"coordinator"}),
        ("SaveState", {"coordinator"}),
        ("ExportModel", {"coordinator"}),
        ("NodePlan", {"coordinator"}),
        ("Grant", {"coordinator"}),
        ("Receipt", {"coordinator"}),
        ("Enrolled", {"coordinator"}),
        ("NodeReport", {"node"}),
        ("WorkerPlan", {"node"}),
        ("TrainerReport", {"trainer"}),
        ("Completed", {"worker", "trainer"}),
        ("CommitSteps", {"worker", "trainer"}),
        ("PreemptNode", {"operator"}),
        ("NewToken", {"operator"}),
        ("RevokeAccess", {"operator"}),
        ("SubmitJob", {"operator", "submitter"}),
        ("CancelJob", {"operator", "submitter"}),
        ("BeginSession", {"operator", "submitter"}),
        ("OfferWeights", {"operator", "submitter"}),
        ("Enroll", {"joiner", "operator"}),
        ("Watch", {"coordinator", "node"}),
    ],
)
def test_what_can_do_harm_is_said_by_these_alone(message: str, roles: set[str]) -> None:
    (row,) = [of for kind, of in MAY_SAY.items() if kind.__name__ == message]
    assert row == roles


def test_the_page_on_security_says_the_same() -> None:
    for role in ROLES:
        said = ", ".join(f"`{name}`" for name in sorted(said_by(role)))
        assert f"| `{role}` | {said} |\n" in PAGE
