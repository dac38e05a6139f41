"""One actor at work, from its start to its end.

Order of an ending: the ref is dead at once (later messages are dead letters, asks fail with
`ActorDied`); the handler that runs may finish within the grace time, or is cancelled at once after
a crash; children end; own tasks are cancelled; `stopping` runs; queued asks are answered
`ActorDied`; watchers are told.

Invariant: each of these waits is bounded, so nothing an actor does keeps the system from closing.
"""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Callable, Coroutine
from functools import partial
from typing import TYPE_CHECKING, Any

import structlog

from spotlight.actors.runtime.envelopes import Done, EndReason, Failure
from spotlight.actors.runtime.mailbox import Delivery, Mailbox
from spotlight.errors import ActorDied
from spotlight.transport.control import ActorRef, Kind, Message

if TYPE_CHECKING:
    from spotlight.actors.runtime.actor import Actor
    from spotlight.actors.runtime.system import ActorSystem

log = structlog.get_logger(__name__)

MESSAGES_PER_TURN = 64
"""How many messages in a row an actor handles before it lets the loop do something else."""

_GREATEST_MESSAGE = 4_000
_GREATEST_TRACEBACK = 16_000
"""Characters of an error that travel."""

_DONE = Done()


class ActorContext:
    """One incarnation of an actor.

    Args:
        factory: makes the actor.
        capacity: of each lane of its mailbox.
        parent: the actor that it is a child of, if it is one.
        linked: its crash is its parent's, or the whole system's if it has none.
    """

    def __init__(
        self,
        system: ActorSystem,
        ref: ActorRef,
        factory: Callable[[], Actor],
        *,
        capacity: int,
        parent: ActorContext | None,
        linked: bool,
    ) -> None:
        self.system = system
        self.ref = ref
        self.parent = parent
        self.mailbox = Mailbox(capacity)
        self.current: Delivery | None = None
        self.children: dict[str, ActorContext] = {}
        self.watchers: dict[tuple[ActorRef, ActorRef], None] = {}
        """Who watches this actor, and by which reference."""
        self.watching: dict[ActorRef, None] = {}
        self.pushed_back_at: dict[str, float] = {}
        """When each process was last told that this mailbox is full."""
        loop = asyncio.get_running_loop()
        self.started: asyncio.Future[ActorRef] = loop.create_future()
        """The reference once the actor has started, or the error that kept it from starting."""
        self.ended: asyncio.Future[EndReason] = loop.create_future()
        """Done when everything is over."""
        self._loop = loop
        self._linked = linked
        self._error: BaseException | None = None
        self._ending: asyncio.Future[EndReason] = loop.create_future()
        self._actor: Actor | None = None
        self._serving: asyncio.Task[None] | None = None
        self._is_busy = False
        """Whether it handles a message, or a call."""
        self._tasks: dict[asyncio.Task[Any], None] = {}
        self.task = loop.create_task(self._live(factory), name=f"actor {ref.name}")

    @property
    def accepts(self) -> bool:
        """Whether messages still reach this incarnation."""
        return not self._ending.done()

    def end(self, reason: EndReason, error: BaseException | None = None) -> None:
        """Begin to end. The first call decides the reason."""
        if not self._ending.done():
            self._error = error
            self._ending.set_result(reason)

    async def stop(self) -> None:
        """Stop, and return when everything of the actor is over, unless the actor itself is
        asking."""
        self.end("stopped")
        caller = asyncio.current_task()
        if caller is not self._serving and caller not in self._tasks:
            await asyncio.wait((self.task,))

    def run_task(self, coroutine: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Start a task whose crash is this actor's and that ends with it."""
        task = self._loop.create_task(coroutine)
        self._tasks[task] = None
        task.add_done_callback(self._task_done)
        return task

    def _task_done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.pop(task, None)
        if not task.cancelled() and task.exception() is not None:
            self.end("crashed", task.exception())

    # --- life -------------------------------------------------------------------------

    async def _live(self, factory: Callable[[], Actor]) -> None:
        """Run from the start to the end. Errors of the actor are reported, never raised."""
        reason: EndReason = "stopped"
        try:
            if self.accepts:
                reason = await self._serve_until_ending(factory)
        finally:
            self.system.close_cell(self, reason)
            if self.parent is not None:
                self.parent.children.pop(self.ref.name, None)
            if reason == "crashed":
                self._report_crash(self._error or ActorDied(str(self.ref)))
            elif not self.started.done():
                text = f"{self.ref.name} was stopped as it started"
                self._fail_to_start(ActorDied(text))

    async def _serve_until_ending(self, factory: Callable[[], Actor]) -> EndReason:
        grace_s = self.system.timings.stop_grace_s
        try:
            serving = self._serving = self._loop.create_task(self._serve(factory))
            await asyncio.wait((serving, self._ending), return_when=asyncio.FIRST_COMPLETED)
            if not self._ending.done():
                self.end("crashed", _error_of(serving))
            if self._ending.result() == "stopped" and self._is_busy:
                await asyncio.wait((serving,), timeout=grace_s)
            await _cancel((serving,), grace_s, self.ref)
            if serving.done() and not serving.cancelled():
                serving.exception()  # an error after the ending began changes nothing
            await asyncio.gather(*(child.stop() for child in reversed(self.children.values())))
            await self._cancel_tasks()
            await self._run_stopping_hook(grace_s)
        finally:
            if self.system.aborted and self._actor is not None:
                self._actor.aborted()
            for task in (self._serving, *self._tasks):
                if task is not None:
                    task.cancel()
            self.end("stopped")
        return self._ending.result()

    def _report_crash(self, error: BaseException) -> None:
        """Whoever starts the actor hears of its crash; later, whoever is linked to it."""
        log.error("actor_crashed", actor=str(self.ref), error=repr(error), exc_info=error)
        if not self.started.done():
            self._fail_to_start(error)
        elif self._linked and self.parent is None:
            self.system.fail(self.ref.name, error)
        elif self._linked and self.parent is not None:
            failure = ActorDied(f"child {self.ref.name} crashed: {error!r}")
            failure.__cause__ = error
            self.parent.end("crashed", failure)

    def _fail_to_start(self, error: BaseException) -> None:
        self.started.set_exception(error)
        self.started.exception()  # whoever waited for it may have been cancelled

    async def _serve(self, factory: Callable[[], Actor]) -> None:
        actor = factory()
        actor.system, actor.ref, actor._cell = self.system, self.ref, self
        self._actor = actor
        async with asyncio.timeout(self.system.timings.start_limit_s):
            await actor.started()
        self.started.set_result(self.ref)
        mailbox, handled = self.mailbox, 0
        while not self._ending.done():
            following = mailbox.take()
            if following is None:
                await mailbox.wait()
                handled = 0
                continue
            self._is_busy = True
            if isinstance(following, Delivery):
                await self._handle(actor, following)
            else:
                await following()
            self._is_busy = False
            handled += 1
            if handled >= MESSAGES_PER_TURN:
                handled = 0
                await asyncio.sleep(0)

    async def _handle(self, actor: Actor, delivery: Delivery) -> None:
        system = self.system
        if delivery.deadline is not None and self._loop.time() >= delivery.deadline:
            system.dead_letter("expired", self.ref, delivery.source, delivery.message)
            return
        kind = _handled_as(actor, delivery.message)
        is_ask = delivery.kind is Kind.ASK
        if kind is None:
            system.dead_letter("unhandled", self.ref, delivery.source, delivery.message)
            if is_ask:
                name = type(delivery.message).__name__
                text = f"{type(actor).__name__} has no handler of {name}"
                system.answer(delivery, self.ref, Failure("RemoteError", text, "UnhandledMessage"))
            return
        guard = actor._guards.get(kind)
        self.current = delivery
        try:
            if guard is not None and not guard(actor, delivery.message):
                self._refuse(delivery)
                return
            reply = await actor._handlers[kind](actor, delivery.message)
        except asyncio.CancelledError:
            if is_ask:
                system.answer(delivery, self.ref, _died(self.ref))
            raise
        except Exception as error:
            if not is_ask:
                raise
            system.answer(delivery, self.ref, _failure(error))
        else:
            if isinstance(reply, asyncio.Future):
                reply.add_done_callback(partial(self._answer_with, delivery))
            elif is_ask:
                system.answer(delivery, self.ref, reply if reply is not None else _DONE)
        finally:
            self.current = None

    def _refuse(self, delivery: Delivery) -> None:
        """Its sender may not say this."""
        self.system.dead_letter("not_allowed", self.ref, delivery.source, delivery.message)
        if delivery.kind is Kind.ASK:
            name = type(delivery.message).__name__
            text = f"{delivery.source} may not send {name} to {self.ref}"
            self.system.answer(delivery, self.ref, Failure("NotAllowed", text))

    def _answer_with(self, delivery: Delivery, future: asyncio.Future[Any]) -> None:
        """Answer an ask with what a future came to."""
        if delivery.kind is not Kind.ASK:
            return
        reply: Message
        if future.cancelled():
            reply = _died(self.ref)
        elif (error := future.exception()) is not None:
            reply = _failure(error)
        else:
            reply = future.result() or _DONE
        self.system.answer(delivery, self.ref, reply)

    async def _cancel_tasks(self) -> None:
        await _cancel(tuple(self._tasks), self.system.timings.stop_grace_s, self.ref)

    async def _run_stopping_hook(self, grace_s: float) -> None:
        if self._actor is None:
            return
        try:
            async with asyncio.timeout(grace_s):
                await self._actor.stopping(self._ending.result())
        except Exception as error:
            log.error(
                "stopping_hook_failed", actor=str(self.ref), error=repr(error), exc_info=error
            )
        await self._cancel_tasks()


def _handled_as(actor: Actor, message: Message) -> type[Message] | None:
    """The nearest type of a message that the actor handles: its own, or one of its bases."""
    if type(message) in actor._handlers:
        return type(message)
    return next((base for base in type(message).__mro__ if base in actor._handlers), None)


def _failure(error: BaseException) -> Failure:
    text = "".join(traceback.format_exception(error))
    message = str(error)[:_GREATEST_MESSAGE]
    return Failure("RemoteError", message, type(error).__name__, text[-_GREATEST_TRACEBACK:])


def _died(ref: ActorRef) -> Failure:
    return Failure("ActorDied", f"{ref} ended before it answered")


def _error_of(task: asyncio.Task[None]) -> BaseException:
    if task.cancelled():
        return RuntimeError("a handler let a cancellation through that was not its own")
    return task.exception() or RuntimeError("an actor ended without a reason")


async def _cancel(tasks: tuple[asyncio.Task[Any], ...], grace_s: float, ref: ActorRef) -> None:
    """Cancel tasks and wait for them; one that does not end in time is reported and left behind."""
    unfinished = [task for task in tasks if not task.done()]
    for task in unfinished:
        task.cancel()
    if unfinished:
        _, stubborn = await asyncio.wait(unfinished, timeout=grace_s)
        for task in stubborn:
            log.error("task_ignores_cancellation", actor=str(ref), task=repr(task))
