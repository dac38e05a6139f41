"""What the table of the fleet is told."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

from spotlight.policies.fleet.node_words import NodeWord, Task, WorkerSays

WordT = TypeVar("WordT", bound=NodeWord)
TaskT = TypeVar("TaskT", bound=Task)


# --- of nodes, as the coordinator hears of them ---


@dataclass(frozen=True)
class Reported(Generic[WordT]):
    """A node reports."""

    word: WordT


@dataclass(frozen=True)
class OutOfReach:
    """Whoever is at this address is gone, or cannot be reached."""

    address: Hashable
    reason: str


@dataclass(frozen=True)
class NoticeGiven:
    """A user says that a node will be taken at a time on this table's clock, or (`cancel`) that it
    will not."""

    node: str
    deadline: float
    cancel: bool


@dataclass(frozen=True)
class Drained:
    """A user wants a node to give its work back and have none, or (`cancel`) that it works on."""

    node: str
    cancel: bool


@dataclass(frozen=True)
class PlansDue:
    """There is time to send some of the plans that have changed."""


# --- of tenants ---


class Terms(NamedTuple):
    """On which nodes are lent to a job or session."""

    weight: float = 1.0
    """Its share of the nodes is in proportion to it."""
    priority: int = 0
    """Those of a higher one get reserved nodes first."""
    ranks: int = 0
    """This number of its workers must train; 0 for a session."""


@dataclass(frozen=True)
class TenantBegan:
    """A job or session begins; where one of that id is there already it begins anew, with the nodes
    that it had."""

    tenant: str
    terms: Terms


@dataclass(frozen=True)
class TenantOver:
    """A tenant wants nothing more of its nodes. What is still heard of them is written down."""

    tenant: str


@dataclass(frozen=True)
class TenantGone:
    """Nothing of a tenant is wanted any more."""

    tenant: str


@dataclass(frozen=True)
class Assigned(Generic[TaskT]):
    """What a node is to do for a tenant from now on. `again`: it is told even if that is what it
    does already."""

    tenant: str
    node: str
    task: TaskT
    again: bool = False


@dataclass(frozen=True)
class FoundSick:
    """The process of a worker fails what others can do: its node is to end it."""

    node: str
    worker: str
    epoch: int
    reason: str


@dataclass(frozen=True)
class Barred:
    """These workers of a tenant are given no requests until the next time: they train."""

    tenant: str
    workers: frozenset[str]


@dataclass(frozen=True)
class Trains:
    """These workers of a tenant are its trainers until the next time, whatever they do."""

    tenant: str
    workers: frozenset[str]


@dataclass(frozen=True)
class Heard(Generic[WordT]):
    """A tenant hears, in its turn, what a node has reported, and takes in who is there."""

    tenant: str
    word: WordT


@dataclass(frozen=True)
class HeardOfNotice:
    """Then it hears whether the node may stay, and what is wrong with its workers. `has_news`: what
    it took in before was new."""

    tenant: str
    node: str
    has_news: bool


@dataclass(frozen=True)
class HeardOfLoss:
    """A tenant hears, in its turn, that a node is gone. `announced`: it had notice, and left."""

    tenant: str
    node: str
    reason: str
    announced: bool


@dataclass(frozen=True)
class WorkerSaid:
    """A tenant hears what a worker does."""

    tenant: str
    word: WorkerSays


Event = (
    Reported[WordT]
    | OutOfReach
    | NoticeGiven
    | Drained
    | PlansDue
    | TenantBegan
    | TenantOver
    | TenantGone
    | Assigned[TaskT]
    | FoundSick
    | Barred
    | Trains
    | Heard[WordT]
    | HeardOfNotice
    | HeardOfLoss
    | WorkerSaid
)
