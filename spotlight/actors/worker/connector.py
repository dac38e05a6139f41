"""How a member comes together with others, and parts from them: what an SP membership asks of the
layer below.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

from spotlight.actors.protocol import GroupPlan
from spotlight.actors.worker.joining import Entries

StepGroupT = TypeVar("StepGroupT")
"""With whom steps are taken: as the connector makes it."""
CompanyT_co = TypeVar("CompanyT_co", covariant=True)


class Arrival(Entries, Protocol[CompanyT_co]):
    """One end of a group that forms."""

    async def company(self) -> CompanyT_co:
        """The group, once all have come; raises `TransportError` when they do not in time."""
        ...


class Connector(Protocol[StepGroupT]):
    """How a member comes together with others, and parts from them."""

    alone: StepGroupT

    def fingerprint(self) -> str | None:
        """The same in all members that have this job and this model; None without a job."""
        ...

    def meet(
        self, order: GroupPlan, rank: int, send: Callable[[str, bytes], None]
    ) -> Arrival[StepGroupT]:
        """Begin to form a group; `send` hands an entry to all others."""
        ...

    def leave(self, company: StepGroupT) -> None:
        """Part from a group in which nobody waits."""

    def leave_behind(self, company: StepGroupT) -> None:
        """Part from one in which steps may be stuck: they are nothing to us any more."""
