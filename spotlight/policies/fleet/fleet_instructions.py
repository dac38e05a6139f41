"""The instructions of the table of the fleet, in the order in which to carry them out.

Those that follow from what the coordinator hears are carried out by the coordinator; those that
follow from what a tenant hears, by that tenant.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

from spotlight.record.run_events import RunEvent
from spotlight.types import WorkerState

# --- for the coordinator ---


@dataclass(frozen=True)
class NameTaken:
    """Refuse the node: another process, at this address, bears its name."""

    node: str
    address: Hashable


@dataclass(frozen=True)
class Watch:
    """Say so when this process is out of reach."""

    address: Hashable


@dataclass(frozen=True)
class NodeCame:
    """A node is there, for the first time or after it had left."""

    node: str


@dataclass(frozen=True)
class NodeLeft:
    """A node has left after a notice; its process may yet be there. The tenant has lost it for
    which it worked; empty if there is none. `reason` says why it left."""

    node: str
    tenant: str
    reason: str


@dataclass(frozen=True)
class NodeGone:
    """The process of a node is gone, or out of reach. The tenant has lost it for which it worked,
    unless it `had_left` before. `announced`: it had notice."""

    node: str
    tenant: str
    address: Hashable
    reason: str
    had_left: bool
    announced: bool


@dataclass(frozen=True)
class PassOn:
    """The tenant for which a node works is to hear of the node's latest word."""

    node: str
    tenant: str


@dataclass(frozen=True)
class Acknowledge:
    """Answer a report that agrees with the node's plan."""

    node: str


@dataclass(frozen=True)
class AnswerWithPlan:
    """Answer a report with the node's plan."""

    node: str


@dataclass(frozen=True)
class SendPlan:
    """Send a node its plan."""

    node: str


# --- for a tenant ---


@dataclass(frozen=True)
class RevokeToken:
    """Whatever had the token of this node for the tenant's store may write there no more."""

    node: str


@dataclass(frozen=True)
class AddWorkers:
    """Processes of a node that may be given requests from now on."""

    node: str
    epochs: tuple[int, ...]


@dataclass(frozen=True)
class RemoveWorkers:
    """These are gone. `announced`: after a notice. `ended`: their node says that their processes
    ended; else they are out of reach."""

    workers: tuple[str, ...]
    reason: str
    announced: bool = False
    ended: bool = False


@dataclass(frozen=True)
class SetLeaving:
    """Nothing more for these workers, since they will be gone; or they stay after all."""

    workers: tuple[str, ...]
    leaving: bool


@dataclass(frozen=True)
class StateBegan:
    """A worker is in this state from now on."""

    worker: str
    node: str
    pool: str
    state: WorkerState


@dataclass(frozen=True)
class RecordEvent:
    """Something happened that a user may want to read about."""

    event: RunEvent


@dataclass(frozen=True)
class NodeHeard:
    """The tenant has taken in what its node says. `has_news`: the node is there for the first time
    or as another process, or with others of its workers; or its notice is new."""

    node: str
    has_news: bool


Instruction = (
    NameTaken
    | Watch
    | NodeCame
    | NodeLeft
    | NodeGone
    | PassOn
    | Acknowledge
    | AnswerWithPlan
    | SendPlan
    | RevokeToken
    | AddWorkers
    | RemoveWorkers
    | SetLeaving
    | StateBegan
    | RecordEvent
    | NodeHeard
)
