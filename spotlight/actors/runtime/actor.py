"""What an actor's author writes: a subclass of `Actor` with handlers.

    class Counter(Actor):
        def __init__(self) -> None:
            self.total = 0

        @handles(Add)
        async def on_add(self, message: Add) -> Total:
            self.total += message.amount
            return Total(self.total)

An actor handles one message at a time, so its state needs no lock. A handler may await; long work
belongs in a task of its own (`run_task`) that tells the actor its result, for while a handler waits
no other message is handled. A handler of an ask may return such a task, or any future: its result
is the reply.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from spotlight.transport.control import ActorRef, Lane, Message

if TYPE_CHECKING:
    from spotlight.actors.runtime.actor_context import ActorContext
    from spotlight.actors.runtime.system import ActorSystem

Reply = Message | asyncio.Future[Any] | None
Handler = Callable[[Any, Any], Awaitable[Reply]]
Guard = Callable[[Any, Any], bool]
"""Given the actor and the message: whether its sender may say this."""
AnyHandler = TypeVar("AnyHandler", bound=Callable[..., Awaitable[Reply]])

_HANDLED = "__handled_messages__"
_ONLY = "__only_from__"


def handles(
    *message_types: type[Message], only: Guard | None = None
) -> Callable[[AnyHandler], AnyHandler]:
    """Mark an `async def` method as the handler of these message types and of their subclasses.

    `only` says who may send them, of those whose keys may (`ActorSystem`): it is given the actor
    and the message. What it refuses is a counted dead letter, and an ask fails with `NotAllowed`.
    """

    def mark(method: AnyHandler) -> AnyHandler:
        is_async: bool = inspect.iscoroutinefunction(method)
        if not is_async:
            raise TypeError(f"{method.__qualname__} handles messages and must be an `async def`")
        setattr(method, _HANDLED, message_types)
        setattr(method, _ONLY, only)
        return method

    return mark


def from_this_process(actor: Actor, message: Message) -> bool:
    """A guard for `handles`: nobody outside this process says this."""
    return actor.sender_address == actor.ref.address


def from_an_actor(actor: Actor, message: Message) -> bool:
    """A guard for `handles`: whoever says this has a name, and so can be answered."""
    return actor.sender is not None


class Actor:
    """One unit of private state and the handlers that change it."""

    system: ActorSystem
    """Set before `started`."""
    ref: ActorRef
    """This actor, for others to reach it. Set before `started`."""

    _handlers: ClassVar[Mapping[type[Message], Handler]] = {}
    _guards: ClassVar[Mapping[type[Message], Guard]] = {}
    _cell: ActorContext

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        own: dict[type[Message], Handler] = {}
        guards: dict[type[Message], Guard] = {}
        inherited: dict[type[Message], Handler] = {}
        for base in reversed(cls.__bases__):
            inherited.update(getattr(base, "_handlers", {}))
            guards.update(getattr(base, "_guards", {}))
        for method in vars(cls).values():
            for message_type in getattr(method, _HANDLED, ()):
                if message_type in own:
                    raise TypeError(f"{cls.__name__} has two handlers of {message_type.__name__}")
                own[message_type] = method
                guards.pop(message_type, None)
                if getattr(method, _ONLY) is not None:
                    guards[message_type] = getattr(method, _ONLY)
        # A method that is overridden without the decorator still handles what it did.
        for message_type, method in inherited.items():
            inherited[message_type] = getattr(cls, getattr(method, "__name__", ""), method)
        cls._handlers = {**inherited, **own}
        cls._guards = guards

    # --- hooks ------------------------------------------------------------------------

    async def started(self) -> None:
        """Called before the first message. Raising is a crash, and `spawn` raises it."""

    async def stopping(self, reason: str) -> None:
        """Called once when the actor ends (`stopped` or `crashed`), after its children; cancelled
        when it takes long."""

    def aborted(self) -> None:
        """Called when the whole system is aborted, instead of `stopping` or in the middle of it:
        close what the operating system closes when a process is killed, and do nothing else.
        """

    # --- for handlers -----------------------------------------------------------------

    @property
    def sender(self) -> ActorRef | None:
        """Who sent the message that is being handled; None outside a handler, or when it was no
        actor."""
        delivery = self._cell.current
        return delivery.source if delivery is not None and delivery.source.name else None

    @property
    def sender_address(self) -> str:
        """The process that sent the message that is being handled; empty outside a handler."""
        delivery = self._cell.current
        return delivery.source.address if delivery is not None else ""

    def tell(self, ref: ActorRef, message: Message) -> None:
        """Send and forget. Raises `MailboxFull` or `PeerUnreachable`."""
        self.system.tell(ref, message, sender=self.ref)

    async def ask(self, ref: ActorRef, message: Message, *, timeout_s: float) -> Message:
        """Send and wait for the reply; see `ActorSystem.ask`."""
        return await self.system.ask(ref, message, timeout_s=timeout_s, sender=self.ref)

    def watch(self, ref: ActorRef) -> None:
        """Receive exactly one `Down` for `ref` when it ends, or now if it has. Watching twice is
        watching once. That its process is frozen is noticed only where there are heartbeats
        (`ZeroMQSettings.heartbeats`)."""
        self.system.watch(self._cell, ref)

    def run_task(self, coroutine: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run a task that belongs to this actor: it is cancelled when the actor ends, and its crash
        is the actor's."""
        return self._cell.run_task(coroutine)

    def call_in_turn(self, call: Callable[[], Awaitable[None]], *, lane: Lane = "ordinary") -> None:
        """Run `call` like the handler of a message of that lane that comes now: after those that
        wait, never in the middle of another. For what an object of the same process has to say. A
        crash of it is the actor's."""
        self._cell.mailbox.add_call(call, lane=lane)

    async def spawn(
        self,
        factory: Callable[[], Actor],
        name: str,
        *,
        mailbox: int = 1024,
        linked: bool = False,
    ) -> ActorRef:
        """Start a child, named after this actor; it ends before this actor does. See
        `ActorSystem.spawn`."""
        return await self.system.spawn(
            factory, name, mailbox=mailbox, linked=linked, parent=self._cell
        )

    def stop(self) -> None:
        """End this actor after the message that is being handled."""
        self._cell.end("stopped")
