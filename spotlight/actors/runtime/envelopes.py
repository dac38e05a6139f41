"""The messages between the runtimes of two processes, and those that the runtime itself puts into
mailboxes."""

from __future__ import annotations

from typing import Literal

from spotlight.transport.control import ActorRef, Message

EndReason = Literal["stopped", "crashed", "unreachable"]


class Down(Message, frozen=True):
    """A watched actor is gone. `ref` is the reference that was watched."""

    lane = "system"

    ref: ActorRef
    reason: EndReason


class Done(Message, frozen=True):
    """The reply to an ask whose handler returned nothing."""


class Failure(Message, frozen=True):
    """The answer to an ask that has no reply."""

    error: Literal["RemoteError", "ActorDied", "MailboxFull", "NotAllowed"]
    message: str
    type_name: str = ""
    remote_traceback: str = ""


class Watch(Message, frozen=True):
    """Tell `watcher` when any of `refs` ends. Repeated while the watch lasts, so that a lost frame
    only delays it."""

    watcher: ActorRef
    refs: tuple[ActorRef, ...]


class Unwatch(Message, frozen=True):
    """The watcher no longer wants to know."""

    watcher: ActorRef
    refs: tuple[ActorRef, ...]


class Ended(Message, frozen=True):
    """A watched actor ended, or had already."""

    watcher: ActorRef
    ref: ActorRef
    reason: EndReason


class PushedBack(Message, frozen=True):
    """The mailbox of `ref` is full and a tell to it was refused: slow down."""

    ref: ActorRef


def runtime_rights(*roles: str) -> dict[type[Message], frozenset[str]]:
    """Who may say what runtimes say to each other, in a program whose processes have these roles:
    all of them. The rights to what their actors say come on top (`ActorSystem`)."""
    of_runtimes = (Done, Failure, Watch, Unwatch, Ended, PushedBack)
    return dict.fromkeys(of_runtimes, frozenset(roles))
