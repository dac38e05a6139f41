"""The part of nodes' and workers' messages that the table of the fleet reads; the messages fit
these types. Addresses are whatever the network takes them for: here they are only compared.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Protocol

from spotlight.types import Pool, WorkerState


class WorkerWord(Protocol):
    """A worker process, as its node names it."""

    @property
    def worker(self) -> str:
        """Its name, which the next process in its place bears, too."""

    @property
    def epoch(self) -> int:
        """Differs for every process that ever bears the name."""

    @property
    def leader(self) -> Hashable:
        """Who speaks for it."""


class NoticeWord(Protocol):
    """The node will be taken."""

    @property
    def source(self) -> str:
        """Who gave notice."""

    @property
    def lead_s(self) -> float | None:
        """From the notice until the node is taken; None if the source does not say."""


class TroubleWord(Protocol):
    """What is wrong with a worker."""

    @property
    def worker(self) -> str:
        """Its name."""

    @property
    def reason(self) -> str:
        """What went wrong last; empty if nothing did."""

    @property
    def tries(self) -> int:
        """Processes in a row that ended badly; 0 for one that is still there."""

    @property
    def given_up(self) -> bool:
        """Whether no other process is started."""


class NodeWord(Protocol):
    """All that a node says of itself; the latest word counts."""

    @property
    def number(self) -> int:
        """Grows with every word of a process."""

    @property
    def node(self) -> str:
        """Its name."""

    @property
    def pool(self) -> Pool:
        """Whether it may be taken away."""

    @property
    def scheduler(self) -> Hashable:
        """The address of its process."""

    @property
    def workers(self) -> Sequence[WorkerWord]:
        """Those that are up."""

    @property
    def notice(self) -> NoticeWord | None:
        """None while the node may stay."""

    @property
    def left(self) -> bool:
        """Whether it had notice, and nothing is left there that could be lost."""

    @property
    def coordinator(self) -> Hashable | None:
        """Whose plan it follows; None before the first."""

    @property
    def plan(self) -> int:
        """The number of that plan."""

    @property
    def job_id(self) -> str:
        """The job whose spec it has; empty for none."""

    @property
    def size(self) -> int:
        """Workers that it should have."""

    @property
    def troubles(self) -> Sequence[TroubleWord]:
        """Workers whose processes end badly."""


class WorkerSays(Protocol):
    """What a worker says that it does."""

    @property
    def worker(self) -> str:
        """Its name."""

    @property
    def state(self) -> WorkerState:
        """What it does, in one word."""

    @property
    def detail(self) -> str:
        """The same in more words."""

    @property
    def cannot_serve(self) -> str:
        """Why it can do nothing for its tenant; empty if nothing is known against it."""

    @property
    def ends(self) -> bool:
        """Whether the process ends for that reason, so that its node may start another."""


class Task(Protocol):
    """What a tenant has a node do; two that are equal are the same."""

    @property
    def job_id(self) -> str:
        """The job whose spec the node must have for it; empty if it needs none."""
