"""What happened in a simulated cluster, in order; two runs are the same if and only if their
histories are."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from spotlight_simulation.faults import ANSWERS, MESSAGES

Value: TypeAlias = "int | float | str | bool | tuple[Value, ...] | None"


@dataclass(frozen=True)
class Happening:
    """One thing that happened."""

    time_s: float
    kind: str
    facts: tuple[tuple[str, Value], ...]
    job: str = field(default="", repr=False)
    """The id of the job or session whose doing it is; empty if it is nobody's."""

    def __getitem__(self, name: str) -> Any:
        return next(value for key, value in self.facts if key == name)

    def __str__(self) -> str:
        facts = " ".join(f"{name}={value}" for name, value in self.facts)
        return f"{self.time_s:9.3f} {self.kind:<18} {facts}"


SITUATIONS = (
    "a message came twice",
    "an ask came twice",
    "a message was overtaken",
    "an old plan arrives",
    "weights are trained again while a worker has a lease",
    "trainers were replaced that are still there",
    "a node goes over to another job",
    "a slice is added that another worker computed",
    "samples were lost with the node that kept them",
    "lost samples were made again with the weights that they had",
    "lost samples were made again with the weights of their iteration",
    *(f"a message was lost: {name}" for name in MESSAGES),
    *(f"an answer came late: {name}" for name in sorted(set(ANSWERS))),
)
"""What promises are about, and a run counts: how well its faults cover what may go wrong."""


class History:
    """Everything that the invariants are about. `clock` gives the time in seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.happenings: list[Happening] = []
        self.effective: Counter[str] = Counter()
        """Faults that changed something, by kind."""
        self.situations: Counter[str] = Counter()
        """How often each of `SITUATIONS` came about."""
        self.violations: list[str] = []

    def add(self, kind: str, /, **facts: Value) -> None:
        """Something happened."""
        self.add_of("", kind, **facts)

    def add_of(self, job: str, kind: str, /, **facts: Value) -> None:
        """It is the doing of a job or a session, given by its id."""
        self.happenings.append(Happening(self._clock(), kind, tuple(facts.items()), job))

    def of(self, *jobs: str) -> History:
        """What happened of these of several jobs and sessions, and to all of them. Violations are
        common."""
        its = History(self._clock)
        its.happenings = [each for each in self.happenings if each.job in ("", *jobs)]
        its.effective, its.situations = self.effective, self.situations
        its.violations = self.violations
        return its

    def took_effect(self, fault: str, **facts: Value) -> None:
        """A fault changed something."""
        self.effective[fault] += 1
        self.add("effect", fault=fault, **facts)

    def came_about(self, situation: str) -> None:
        """One of `SITUATIONS`."""
        assert situation in SITUATIONS, situation
        self.situations[situation] += 1

    def violation(self, what: str) -> None:
        """Something happened that must not."""
        if what not in self.violations:
            self.violations.append(what)
        self.add("VIOLATION", what=what)

    def all(self, kind: str) -> list[Happening]:
        """Happenings of one kind."""
        return [happening for happening in self.happenings if happening.kind == kind]

    def digest(self) -> str:
        """Of everything, in order."""
        digest = hashlib.sha256()
        for happening in self.happenings:
            digest.update(repr(happening).encode())
        return digest.hexdigest()
