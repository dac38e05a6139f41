"""Whole lives of a book of keys, held against a model that looks everything up in one list.

All histories of three events are tried, and many long ones drawn at random.
"""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass, field
from typing import Any

import pytest

from spotlight.policies.door.key_book import KeyBook, Refusal, Token
from spotlight.timings import DoorTimings

TIMES = DoorTimings()
NODES, KEYS, WORKERS = ("a", "b"), ("1", "2", "3"), ("w", "1")
TOKENS = {"spot": 2, "rsrv": 1}
POOLS = {"spot": "spot", "rsrv": "reserved"}
JUMPS = (-300.0, 400.0, TIMES.node_key_s)
TTL = 600.0

EVENTS: tuple[tuple[Any, ...], ...] = (
    *(("enroll", t, n, k) for t in (*TOKENS, "oper") for n in NODES for k in KEYS[:2]),
    *(("report", key, worker) for key in KEYS[:2] for worker in WORKERS),
    *(("gone", key) for key in KEYS[:2]),
    *(("revoke", name) for name in ("a", "spot", "user")),
    *(("pass", seconds) for seconds in JUMPS),
    ("restart",),
)


@dataclass
class ModelNode:
    name: str
    key: str
    pool: str
    expected_until: float
    last: float
    there: bool = False
    revoked: bool = False
    workers: list[str] = field(default_factory=list)


@dataclass
class Model:
    """What the rules say, without anything that makes it fast."""

    now: float = 1e9
    uses: dict[str, int] = field(default_factory=lambda: dict(TOKENS))
    revoked_tokens: set[str] = field(default_factory=set)
    expiry: float = 1e9 + TTL
    nodes: list[ModelNode] = field(default_factory=list)

    def owned(self, key: str) -> bool:
        in_nodes = any(key == node.key or key in node.workers for node in self.nodes)
        return in_nodes or key in ("own", "kspot", "krsrv", "koper", "kuser")

    def named(self, name: str) -> ModelNode | None:
        return next((node for node in self.nodes if node.name == name), None)

    def role(self, key: str) -> str | None:
        if key in ("kspot", "krsrv"):
            return "joiner"
        if key == "koper":
            return "operator"
        if key == "kuser":
            has_ended = "user" in self.revoked_tokens or self.now >= self.expiry
            return "joiner" if has_ended else "submitter"
        for node in self.nodes:
            if not node.revoked and key == node.key:
                return "node"
            if not node.revoked and key in node.workers:
                return "trainer" if node.pool == "reserved" else "worker"
        return None

    def enroll(self, token: str, name: str, key: str) -> str | None:
        known, pool = self.named(name), POOLS.get(token, "spot")
        if known is not None and known.key == key and not known.revoked:
            is_asked_for_another = token == "oper" and known.pool != pool
            return None if is_asked_for_another else known.pool
        if token in TOKENS and (token in self.revoked_tokens or not self.uses[token]):
            return None
        if (token == "spot" and self.now >= self.expiry) or self.owned(key):
            return None
        if known is not None:
            is_held = known.there or self.now < known.expected_until
            if known.revoked or known.pool != pool or is_held:
                return None
            self.nodes.remove(known)
        if token in TOKENS:
            self.uses[token] -= 1
        self.nodes.append(ModelNode(name, key, pool, self.now + TIMES.name_held_s, self.now))
        return pool

    def report(self, key: str, worker: str) -> bool:
        node = next((it for it in self.nodes if it.key == key and not it.revoked), None)
        if node is None:
            return False
        if worker != key and worker not in node.workers:
            if self.owned(worker):
                return False
            node.workers.append(worker)
        node.there, node.expected_until, node.last = True, 0.0, self.now
        return True

    def gone(self, key: str) -> None:
        for node in self.nodes:
            if node.key == key and node.there:
                node.there, node.last = False, self.now

    def revoke(self, name: str) -> bool:
        node = self.named(name)
        if node is not None:
            node.revoked, node.there = True, False
        elif name in ("spot", "user"):
            self.revoked_tokens.add(name)
        return node is not None or name in ("spot", "user")

    def move(self, seconds: float) -> None:
        self.now += seconds
        for node in list(self.nodes):
            node.last = min(node.last, self.now)
            node.expected_until = min(node.expected_until, self.now + TIMES.name_held_s)
            if self.now >= node.expected_until:
                node.expected_until = float("-inf")  # and no clock that jumps back revives that
            is_ended = self.now - node.last >= TIMES.node_key_s
            if is_ended and not node.there and not node.revoked:
                self.nodes.remove(node)

    def restart(self) -> None:
        for node in self.nodes:
            if node.there:
                node.last = self.now
            node.there, node.expected_until = False, self.now + TIMES.name_held_s


class Both:
    """The book and the model, which must say the same."""

    def __init__(self) -> None:
        self.model = Model()
        self.book = KeyBook("own", TIMES, now=self.model.now)
        for name, uses in TOKENS.items():
            expiry = self.model.expiry if name == "spot" else None
            pool: Any = POOLS[name]
            self.book.add_token(Token(name, f"k{name}", "node", pool, uses, expiry))
        self.book.add_token(Token("oper", "koper", "operator", None, 1, None))
        self.book.add_token(Token("user", "kuser", "submitter", None, 1, self.model.expiry))
        self.guests: dict[str, str] = {}
        """As the transport has them, which is told of changes alone."""
        self.barred: set[str] = set()
        """Keys of nodes that were revoked."""
        self.admitted: dict[str, set[tuple[str, str]]] = {name: set() for name in TOKENS}
        self.follow()

    def follow(self) -> None:
        for key in self.book.take_changed():
            passport = self.book.passport(key, self.model.now)
            self.guests.pop(key, None)
            if passport is not None:
                self.guests[key] = passport.role

    def do(self, event: tuple[Any, ...]) -> None:
        kind, *args = event
        book, model = self.book, self.model
        if kind == "enroll":
            token, name, key = args
            pool: Any = "spot" if token == "oper" else None
            before = {node.key for node in book.nodes}
            answer = book.enroll(f"k{token}", name, key, pool, model.now)
            assert (None if isinstance(answer, Refusal) else answer) == model.enroll(*args)
            if token in TOKENS and key not in before and not isinstance(answer, Refusal):
                self.admitted[token].add((name, f"{key} {len(self.admitted[token])}"))
        elif kind == "report":
            refusal = book.report(args[0], (args[1],), model.now)
            assert (refusal is None) == model.report(*args)
        elif kind == "gone":
            book.gone(args[0], model.now)
            model.gone(args[0])
        elif kind == "revoke":
            self.barred |= {node.key for node in book.nodes if node.name == args[0]}
            assert (book.revoke(args[0], model.now) is not None) == model.revoke(args[0])
        elif kind == "pass":
            model.move(args[0])
            book.sweep(model.now)
        else:
            self.book = KeyBook("own", TIMES, saved=book.saved(model.now), now=model.now)
            model.restart()
        self.follow()

    def check(self) -> None:
        book, model = self.book, self.model
        for key in (*KEYS, *WORKERS, "own", "kspot", "krsrv", "koper", "kuser", "nobody"):
            passport = book.passport(key, model.now)
            role = None if passport is None else passport.role
            assert role == model.role(key), key
            assert self.guests.get(key) == role, key
            assert not (key in self.barred and role is not None), key
        assert {t.id: t.uses - t.used for t in book.tokens if t.id in TOKENS} == model.uses
        assert [n.name for n in book.nodes] == sorted(n.name for n in model.nodes)
        assert all(book.is_there(node.name) == node.there for node in model.nodes)
        for name, uses in TOKENS.items():
            assert len(self.admitted[name]) <= uses


def play(events: tuple[tuple[Any, ...], ...]) -> None:
    both = Both()
    for event in events:
        both.do(event)
        both.check()


def test_every_history_of_three_events_follows_the_rules() -> None:
    for events in itertools.product(EVENTS, repeat=3):
        try:
            play(events)
        except AssertionError as error:
            raise AssertionError(f"{events}") from error


@pytest.mark.parametrize("seed", range(20))
def test_long_histories_follow_the_rules(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(50):
        events = tuple(rng.choice(EVENTS) for _ in range(rng.randrange(4, 40)))
        try:
            play(events)
        except AssertionError as error:
            raise AssertionError(f"{events}") from error
