"""Death watch: who is told when an actor ends, in this process and across processes.

Invariant: a watch ends with its `Down`, and a `Down` is made in one place only, so there is exactly
one for each watch.

Watches of actors in other processes are repeated while they last: if the frame that places a watch
or the one that reports an end is lost, the next repetition brings the answer after all.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from typing import TYPE_CHECKING

import structlog

from spotlight.actors.runtime.envelopes import Down, Ended, EndReason, Unwatch, Watch
from spotlight.actors.runtime.mailbox import Delivery
from spotlight.errors import MailboxFull, PeerUnreachable
from spotlight.transport.control import ActorRef, Kind

if TYPE_CHECKING:
    from spotlight.actors.runtime.actor_context import ActorContext
    from spotlight.actors.runtime.system import ActorSystem

log = structlog.get_logger(__name__)

_REMEMBERED_ENDINGS = 4096


class Watches:
    """The watches that actors of one system placed, and those placed on its actors.

    Both are kept in the cells (`watching`, `watchers`), so they go with them.
    """

    def __init__(self, system: ActorSystem, renewal_s: float) -> None:
        self._system = system
        self._renewal_s = renewal_s
        self._renewal: asyncio.TimerHandle | None = None
        self._endings: OrderedDict[int, EndReason] = OrderedDict()

    def close(self) -> None:
        """Stop repeating watches."""
        if self._renewal is not None:
            self._renewal.cancel()

    # --- watches that actors here place -----------------------------------------------

    def place(self, cell: ActorContext, ref: ActorRef) -> None:
        """Have exactly one `Down` for `ref` delivered to an actor. Placing twice is placing
        once."""
        if ref in cell.watching:
            return
        cell.watching[ref] = None
        if ref.address != self._system.address:
            self._send(cell, ref.address, (ref,))
            self._renew_later()
            return
        target = self._system.find_open(ref)
        if target is None:
            self._deliver(cell, ref, self.reason_of(ref))
        else:
            target.watchers[(cell.ref, ref)] = None

    def lift(self, cell: ActorContext, ref: ActorRef) -> None:
        """Undo a watch."""
        if not _remove(cell, ref):
            return
        if ref.address == self._system.address:
            self.drop(cell.ref, ref)
        else:
            self._system.post.tell_runtime_quietly(ref.address, Unwatch(cell.ref, (ref,)))

    def report(self, watcher: ActorRef, watched_as: ActorRef, reason: EndReason) -> None:
        """Tell a watcher, wherever it is, that what it watched is gone."""
        if watcher.address != self._system.address:
            self._system.post.tell_runtime_quietly(
                watcher.address, Ended(watcher, watched_as, reason)
            )
            return
        cell = self._system.find(watcher)
        if cell is not None:
            self._deliver(cell, watched_as, reason)

    def _deliver(self, cell: ActorContext, ref: ActorRef, reason: EndReason) -> None:
        if _remove(cell, ref) and cell.accepts:
            cell.mailbox.force(Delivery(Down(ref, reason), ref, Kind.TELL, 0, None))

    def _send(self, cell: ActorContext, address: str, refs: tuple[ActorRef, ...]) -> None:
        try:
            self._system.post.tell_runtime(address, Watch(cell.ref, refs))
        except PeerUnreachable:
            for ref in refs:
                self._deliver(cell, ref, "unreachable")
        except MailboxFull:
            log.debug("watch_is_renewed_later", peer=address)

    def _renew_later(self) -> None:
        if self._renewal is None:
            loop = asyncio.get_running_loop()
            self._renewal = loop.call_later(self._renewal_s, self._renew)

    def _renew(self) -> None:
        self._renewal = None
        for cell in list(self._system.cells.values()):
            by_address: dict[str, list[ActorRef]] = {}
            for ref in cell.watching:
                if ref.address != self._system.address:
                    by_address.setdefault(ref.address, []).append(ref)
            for address, refs in by_address.items():
                self._send(cell, address, tuple(refs))
                self._renew_later()

    # --- watches on actors here -------------------------------------------------------

    def accept(self, watcher: ActorRef, ref: ActorRef) -> None:
        """An actor of another process watches one of ours; it may be gone already."""
        target = self._system.find_open(ref)
        if target is not None:
            target.watchers[(watcher, ref)] = None
        elif ref.process in (0, self._system.ref.process):
            self.report(watcher, ref, self.reason_of(ref))
        else:
            self.report(watcher, ref, "unreachable")

    def drop(self, watcher: ActorRef, ref: ActorRef) -> None:
        """A watcher no longer wants to know."""
        target = self._system.find_open(ref)
        if target is not None:
            target.watchers.pop((watcher, ref), None)

    def end(self, cell: ActorContext, reason: EndReason) -> None:
        """An actor is over: tell its watchers, and lift its own watches."""
        for watcher, watched_as in cell.watchers:
            self.report(watcher, watched_as, reason)
        for ref in list(cell.watching):
            self.lift(cell, ref)

    def remember(self, ref: ActorRef, reason: EndReason) -> None:
        """Keep why an incarnation ended, for those who watch it too late."""
        self._endings[ref.incarnation] = reason
        if len(self._endings) > _REMEMBERED_ENDINGS:
            self._endings.popitem(last=False)

    def reason_of(self, ref: ActorRef) -> EndReason:
        """Why an actor of this process ended; `stopped` when that is long ago."""
        return self._endings.get(ref.incarnation, "stopped")

    # --- lost processes ---------------------------------------------------------------

    def lose_process(self, address: str, incarnation: int) -> None:
        """Report the actors of a lost process, and forget the watches that it placed here."""
        for cell in list(self._system.cells.values()):
            for ref in [r for r in cell.watching if lives_in(r, address, incarnation)]:
                self._deliver(cell, ref, "unreachable")
            for key in [k for k in cell.watchers if lives_in(k[0], address, incarnation)]:
                del cell.watchers[key]


def lives_in(ref: ActorRef, address: str, process: int) -> bool:
    """Whether a reference may mean an actor of a process; either may not know the incarnation."""
    return ref.address == address and (not process or not ref.process or ref.process == process)


def _remove(cell: ActorContext, ref: ActorRef) -> bool:
    """Take a watch out of its cell; False if it was not there."""
    if ref not in cell.watching:
        return False
    del cell.watching[ref]
    return True
