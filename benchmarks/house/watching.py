"""What actors of a simulated cluster say to each other, and what the coordinator's process enters
while it handles one thing.

Both are seen at the public calls of the actor runtime, which are replaced within `watched`.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from types import FrameType
from typing import Any
from unittest.mock import patch

from benchmarks.house.source import PACKAGE, ROOT
from spotlight.actors.runtime import Actor, ActorRef, ActorSystem, Message
from spotlight.actors.runtime.mailbox import Call, Delivery, Mailbox

Place = tuple[str, str]
"""The address of an actor's process, and the actor's name there."""
_OURS = f"{ROOT / PACKAGE}/"


@dataclass
class Hop:
    """One message from one actor to another; a reply is one, too."""

    source: Place
    target: Place
    message: Message
    sent: int
    """When, on a clock that ticks with everything that is sent or comes."""
    came: int
    asked: Message | None = None
    """What a reply answers."""


@dataclass
class Turn:
    """What an actor takes from its mailbox at once, until it is done with it."""

    name: str
    """The actor's class, and the type of the message or the name of the call."""
    is_call: bool
    """It was no message."""
    files: set[str] = field(default_factory=set)
    """The files of the package of which a function was entered."""
    is_over: bool = False


_turn: ContextVar[Turn | None] = ContextVar("turn", default=None)


class Watch:
    """All hops of a cluster, and all turns of the process at one address."""

    def __init__(self, address: str) -> None:
        self._address = address
        self.hops: list[Hop] = []
        self.turns: list[Turn] = []
        self._ticks = 0
        self._on_the_way = defaultdict[tuple[Place, Place], list[tuple[Message, int]]](list)

    def sends(self, source: ActorRef, target: ActorRef, message: Message) -> None:
        """It is on its way."""
        self._on_the_way[_place(source), _place(target)].append((message, self._tick()))

    def comes(
        self, source: ActorRef, target: ActorRef, message: Message, asked: Message | None = None
    ) -> None:
        """It is there. What nobody sent before, as what came twice, is left out."""
        ends = _place(source), _place(target)
        waiting = self._on_the_way[ends]
        found = next((entry for entry in waiting if entry[0] == message), None)
        if found is not None:
            waiting.remove(found)
            self.hops.append(Hop(*ends, message, found[1], self._tick(), asked))

    def begin_turn(self, kind: str, taken: Delivery | Call | None) -> None:
        """An actor of that class takes what comes next, which ends its turn before."""
        before = _turn.get()
        if before is not None:
            before.is_over = True
        if taken is None:
            _turn.set(None)
            return
        turn = Turn(f"{kind}.{_name_of(taken)}", not isinstance(taken, Delivery))
        self.turns.append(turn)
        _turn.set(turn)

    def enters(self, frame: FrameType, event: str, argument: Any) -> None:
        """For `sys.setprofile`."""
        if event != "call" or not frame.f_code.co_filename.startswith(_OURS):
            return
        turn = _turn.get()
        if turn is not None and not turn.is_over:
            turn.files.add(frame.f_code.co_filename.removeprefix(_OURS))

    def watches(self, system: ActorSystem) -> bool:
        """Whether it is the process whose turns are wanted."""
        return system.address == self._address

    def _tick(self) -> int:
        self._ticks += 1
        return self._ticks


@contextmanager
def watched(address: str, *, turns: bool) -> Iterator[Watch]:
    """Within, everything is noted of systems whose actors say something; turns cost much time, and
    are noted of the process at that address if they are wanted."""
    watch = Watch(address)
    replaced = {
        "tell": _tell(watch, ActorSystem.tell),
        "ask": _ask(watch, ActorSystem.ask),
        "answer": _answer(watch, ActorSystem.answer),
        "deliver": _deliver(watch, ActorSystem.deliver),
        **({"spawn": _spawn(watch, ActorSystem.spawn)} if turns else {}),
    }
    with ExitStack() as stack:
        for name, function in replaced.items():
            stack.enter_context(patch.object(ActorSystem, name, function))
        if turns:
            sys.setprofile(watch.enters)
            stack.callback(sys.setprofile, None)
        yield watch


def _tell(watch: Watch, tell: Callable[..., None]) -> Callable[..., None]:
    def watched_tell(
        system: ActorSystem, ref: ActorRef, message: Message, *, sender: ActorRef | None = None
    ) -> None:
        tell(system, ref, message, sender=sender)
        watch.sends(sender or system.ref, ref, message)
        if ref.address == system.address:
            watch.comes(sender or system.ref, ref, message)

    return watched_tell


def _ask(watch: Watch, ask: Callable[..., Any]) -> Callable[..., Any]:
    async def watched_ask(
        system: ActorSystem,
        ref: ActorRef,
        message: Message,
        *,
        timeout_s: float,
        sender: ActorRef | None = None,
    ) -> Message:
        source = sender or system.ref
        watch.sends(source, ref, message)
        if ref.address == system.address:
            watch.comes(source, ref, message)
        answer: Message = await ask(system, ref, message, timeout_s=timeout_s, sender=sender)
        watch.comes(ref, source, answer, asked=message)
        return answer

    return watched_ask


def _answer(watch: Watch, answer: Callable[..., None]) -> Callable[..., None]:
    def watched_answer(
        system: ActorSystem, delivery: Delivery, responder: ActorRef, reply: Message
    ) -> None:
        watch.sends(responder, delivery.source, reply)
        answer(system, delivery, responder, reply)

    return watched_answer


def _deliver(watch: Watch, deliver: Callable[..., None]) -> Callable[..., None]:
    def watched_deliver(system: ActorSystem, delivery: Delivery, destination: ActorRef) -> None:
        watch.comes(delivery.source, destination, delivery.message)
        deliver(system, delivery, destination)

    return watched_deliver


def _spawn(watch: Watch, spawn: Callable[..., Any]) -> Callable[..., Any]:
    async def watched_spawn(
        system: ActorSystem, factory: Callable[[], Actor], name: str, **options: Any
    ) -> ActorRef:
        made: list[Actor] = []

        def make() -> Actor:
            made.append(factory())
            return made[0]

        ref: ActorRef = await spawn(system, make, name, **options)
        cell = system.find(ref)
        if cell is not None and watch.watches(system):
            _note_turns(watch, cell.mailbox, type(made[0]).__name__)
        return ref

    return watched_spawn


def _note_turns(watch: Watch, mailbox: Mailbox, kind: str) -> None:
    take = mailbox.take

    def watched_take() -> Delivery | Call | None:
        taken = take()
        watch.begin_turn(kind, taken)
        return taken

    mailbox.__dict__["take"] = watched_take


def _place(ref: ActorRef) -> Place:
    return ref.address, ref.name


def _name_of(taken: Delivery | Call) -> str:
    if isinstance(taken, Delivery):
        return type(taken.message).__name__
    call: Any = taken
    while isinstance(call, partial):
        call = call.func
    return str(getattr(call, "__qualname__", type(call).__name__)).replace(".<locals>", "")
