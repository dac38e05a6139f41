"""One actor at work: `ActorContext` is one incarnation, `Supervisor` its life through restarts.

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
from spotlight.actors.runtime.supervision import RestartHistory, RestartPolicy
from spotlight.errors import ActorDied
from spotlight.transport.control import ActorRef, Kind, Message

if TYPE_CHECKING:
    from spotlight.actors.runtime.actor import Actor
    from spotlight.actors.runtime.system import ActorSystem

log = structlog.get_logger(__name__)

MESSAGES_PER_TURN = 64
"""After so many messages in a row an actor lets the loop do something else."""

_GREATEST_MESSAGE = 4_000
_GREATEST_TRACEBACK = 16_000
"""Characters of an error that travel."""

_DONE = Done()


class ActorContext:
    """One incarnation of an actor."""

    def __init__(self, system: ActorSystem, ref: ActorRef, capacity: int) -> None:
        self.system = system
        self.ref = ref
        self.mailbox = Mailbox(capacity)
        self.current: Delivery | None = None
        self.children: dict[str, Supervisor] = {}
        self.watchers: dict[tuple[ActorRef, ActorRef], None] = {}
        """Who watches this actor, and by which reference."""
        self.watching: dict[ActorRef, None] = {}
        self.pushed_back_at: dict[str, float] = {}
        """When each process was last told that this mailbox is full."""
        self.error: BaseException | None = None
        loop = asyncio.get_running_loop()
        self.ended: asyncio.Future[EndReason] = loop.create_future()
        """Done when everything is over."""
        self._loop = loop
        self._ending: asyncio.Future[EndReason] = loop.create_future()
        self._actor: Actor | None = None
        self._serving: asyncio.Task[None] | None = None
        self._tasks: dict[asyncio.Task[Any], None] = {}

    @property
    def accepts(self) -> bool:
        """Whether messages still reach this incarnation."""
        return not self._ending.done()

    def end(self, reason: EndReason, error: BaseException | None = None) -> None:
        """Begin to end. The first call decides the reason."""
        if not self._ending.done():
            self.error = error
            self._ending.set_result(reason)

    def owns(self, task: asyncio.Task[Any] | None) -> bool:
        """Whether a task is part of this actor."""
        return task is not None and (task is self._serving or task in self._tasks)

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

    async def live(self, factory: Callable[[], Actor], on_started: Callable[[], None]) -> EndReason:
        """Run one incarnation from its start to its end. Errors of the actor are kept in `error`,
        never raised."""
        grace_s = self.system.timings.stop_grace_s
        try:
            serving = self._serving = self._loop.create_task(self._serve(factory, on_started))
            await asyncio.wait((serving, self._ending), return_when=asyncio.FIRST_COMPLETED)
            if not self._ending.done():
                self.end("crashed", _error_of(serving))
            if self._ending.result() == "stopped" and self.current is not None:
                await asyncio.wait((serving,), timeout=grace_s)
            await _cancel((serving,), grace_s, self.ref)
            if serving.done() and not serving.cancelled():
                serving.exception()  # an error after the ending began changes nothing
            await asyncio.gather(*(child.stop() for child in reversed(self.children.values())))
            await self._cancel_tasks()
            await self._run_stopping_hook(grace_s)
        finally:
            # Only the abort of the whole system cancels us before this point.
            if not self._ending.done() and self._actor is not None:
                self._actor.aborted()
            for task in (self._serving, *self._tasks):
                if task is not None:
                    task.cancel()
            self.end("stopped")
        reason = self._ending.result()
        if reason == "crashed":
            error = self.error
            log.error("actor_crashed", actor=str(self.ref), error=repr(error), exc_info=error)
        return reason

    async def _serve(self, factory: Callable[[], Actor], on_started: Callable[[], None]) -> None:
        actor = factory()
        actor.system, actor.ref, actor._cell = self.system, self.ref, self
        self._actor = actor
        async with asyncio.timeout(self.system.timings.start_limit_s):
            await actor.started()
        on_started()
        mailbox, handled = self.mailbox, 0
        while not self._ending.done():
            following = mailbox.take()
            if following is None:
                await mailbox.wait()
                handled = 0
                continue
            if isinstance(following, Delivery):
                await self._handle(actor, following)
            else:
                await following()
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
            if isinstance(reply, asyncio.Task):
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
            self.system.answer(delivery, self.ref, Failure("RemoteError", text, "NotAllowed"))

    def _answer_with(self, delivery: Delivery, task: asyncio.Task[Any]) -> None:
        """Answer an ask with what a task of the actor came to."""
        if delivery.kind is not Kind.ASK:
            return
        reply: Message
        if task.cancelled():
            reply = _died(self.ref)
        elif (error := task.exception()) is not None:
            reply = _failure(error)
        else:
            reply = task.result() or _DONE
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


class Supervisor:
    """Starts an actor, starts it again after crashes as its policy says, and stops it."""

    def __init__(
        self,
        system: ActorSystem,
        parent: ActorContext | None,
        factory: Callable[[], Actor],
        name: str,
        capacity: int,
        policy: RestartPolicy,
    ) -> None:
        self.name = name
        self._system = system
        self._parent = parent
        self._factory = factory
        self._capacity = capacity
        self._policy = policy
        loop = asyncio.get_running_loop()
        self._stop: asyncio.Future[None] = loop.create_future()
        self._cell: ActorContext | None = None
        self.first_start: asyncio.Future[ActorRef] = loop.create_future()
        """The first reference, or the error that kept the actor from starting."""
        self.task = loop.create_task(self._run(), name=f"actor {name}")

    def request_stop(self) -> None:
        """Stop soon, and do not start again."""
        if not self._stop.done():
            self._stop.set_result(None)
        if self._cell is not None:
            self._cell.end("stopped")

    async def stop(self) -> None:
        """Stop, and return when everything of the actor is over, unless the actor itself is
        asking."""
        self.request_stop()
        if self._cell is None or not self._cell.owns(asyncio.current_task()):
            await asyncio.wait((self.task,))

    async def _run(self) -> None:
        history = RestartHistory(self._policy, self._system.rng)
        loop = asyncio.get_running_loop()
        try:
            while not self._stop.done():
                error = await self._live_once()
                if error is None:
                    return
                if not self.first_start.done():
                    self.first_start.set_exception(error)
                    return
                delay = history.next_delay(loop.time())
                if delay is None:
                    self._give_up(error)
                    return
                log.info("actor_restarts", actor=self.name, delay_s=round(delay, 3))
                await asyncio.wait((self._stop,), timeout=delay)
        finally:
            if not self.first_start.done():
                self.first_start.set_exception(ActorDied(f"{self.name} was stopped as it started"))
                self.first_start.exception()
            self._system.forget(self)
            if self._parent is not None:
                self._parent.children.pop(self.name, None)

    async def _live_once(self) -> BaseException | None:
        """Run one incarnation; the error of its crash, or None if it was stopped."""
        cell = self._cell = self._system.open_cell(self.name, self._capacity)
        reason: EndReason = "stopped"
        try:
            reason = await cell.live(self._factory, self._started)
        finally:
            self._cell = None
            self._system.close_cell(cell, reason)
        return (cell.error or ActorDied(str(cell.ref))) if reason == "crashed" else None

    def _started(self) -> None:
        if self._cell is not None and not self.first_start.done():
            self.first_start.set_result(self._cell.ref)

    def _give_up(self, error: BaseException) -> None:
        if self._policy.otherwise == "abandon":
            return
        if self._parent is None:
            self._system.fail(self.name, error)
        else:
            failure = ActorDied(f"child {self.name} crashed: {error!r}")
            failure.__cause__ = error
            self._parent.end("crashed", failure)


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
