"""An attack: what a stranger without any key, or the job file of one, tries."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from benchmarks.strangers.site import Site

Attempt = Callable[[Site], Awaitable[None]]


class Succeeded(Exception):
    """The attack had an effect, or was not refused; the message says what was seen."""


@dataclass(frozen=True)
class Attack:
    """One attempt against the daemons of a site."""

    kind: str
    """The module that it is in."""
    name: str
    """What is tried, in words."""
    attempt: Attempt
    """Raises `Succeeded`."""
    quick: bool
    """Whether `--quick` tries it, too."""


ATTACKS: list[Attack] = []


def attack(name: str, *, quick: bool = True) -> Callable[[Attempt], Attempt]:
    """Add the decorated function to the attacks; its module is its kind."""

    def add(attempt: Attempt) -> Attempt:
        ATTACKS.append(Attack(attempt.__module__.rpartition(".")[2], name, attempt, quick))
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
