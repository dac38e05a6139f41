"""An attack: what is tried, and against what of the site."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Literal

from benchmarks.security.site import Site

Attempt = Callable[[Site], Awaitable[None]]
Stage = Literal["alone", "beside", "jobs"]
"""What is there while it is tried: the coordinator alone; nodes on which an honest user's jobs run,
which must all come to the same; or nodes that are free for jobs of the attack's own."""
STAGES: tuple[Stage, ...] = ("alone", "beside", "jobs")


class Succeeded(Exception):
    """The attack had an effect, or was not refused; the message says what was seen."""


class NotPossible(Exception):
    """The attack cannot be tried on this machine; the message says why."""


@dataclass(frozen=True)
class Attack:
    """One attempt against the daemons of a site."""

    kind: str
    """The module that it is in."""
    name: str
    """What is tried, in words."""
    attempt: Attempt
    """The attempt, which raises `Succeeded`."""
    stage: Stage
    """`--quick` leaves out the last one."""


ATTACKS: list[Attack] = []


def attack(name: str, stage: Stage = "beside") -> Callable[[Attempt], Attempt]:
    """Add the decorated function to the attacks; its module is its kind."""

    def add(attempt: Attempt) -> Attempt:
        ATTACKS.append(Attack(attempt.__module__.rpartition(".")[2], name, attempt, stage))
        return attempt

    return add


def require(refused: bool, seen: object) -> None:
    """Raise `Succeeded` with what was seen, cut short."""
    if not refused:
        raise Succeeded(repr(seen)[:600])


def require_words(said: str, *words: str) -> None:
    """Require that a refusal says all these."""
    missing = [word for word in words if word not in said]
    require(not missing, f"does not say {missing}: {said}")
