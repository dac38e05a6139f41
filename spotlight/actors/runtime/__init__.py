"""The actor runtime, as its users import it: `from spotlight.actors.runtime import Actor,
ActorSystem, handles`.

docs/actors.md states what it promises. The parts: `actor` (what an author writes), `system`
(routing, asks, watches), `actor_context` (one actor at work), `mailbox`, `remote` (delivery between
processes), `dead_letters`, `envelopes`.
"""

from spotlight.actors.runtime.actor import Actor, from_an_actor, from_this_process, handles
from spotlight.actors.runtime.dead_letters import DeadLetter, DeadLetters
from spotlight.actors.runtime.envelopes import Done, Down, EndReason, runtime_rights
from spotlight.actors.runtime.system import ActorSystem
from spotlight.transport.control import ActorRef, Message

__all__ = [
    "Actor",
    "ActorRef",
    "ActorSystem",
    "DeadLetter",
    "DeadLetters",
    "Done",
    "Down",
    "EndReason",
    "Message",
    "from_an_actor",
    "from_this_process",
    "handles",
    "runtime_rights",
]
