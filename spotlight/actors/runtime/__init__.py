"""The actor runtime, as its users import it: `from spotlight.actors.runtime import Actor,
ActorSystem, handles`.

docs/actors.md states what it promises. The parts: `actor` (what an author writes), `system`
(routing, asks, watches), `cell` (one running incarnation and its restarts), `mailbox`,
`supervision`, `dead_letters`, `protocol`.
"""

from spotlight.actors.runtime.actor import Actor, from_an_actor, from_this_process, handles
from spotlight.actors.runtime.dead_letters import DeadLetter, DeadLetters
from spotlight.actors.runtime.envelopes import Done, Down, EndReason
from spotlight.actors.runtime.supervision import ESCALATE, NEVER, RestartPolicy
from spotlight.actors.runtime.system import ActorSystem
from spotlight.actors.runtime.system_counters import MailboxStatistics, Statistics
from spotlight.transport.control import ActorRef, Message

__all__ = [
    "ESCALATE",
    "NEVER",
    "Actor",
    "ActorRef",
    "ActorSystem",
    "DeadLetter",
    "DeadLetters",
    "Done",
    "Down",
    "EndReason",
    "MailboxStatistics",
    "Message",
    "RestartPolicy",
    "Statistics",
    "from_an_actor",
    "from_this_process",
    "handles",
]
