"""Talking to a coordinator from outside: what the commands, and systems that embed Spotlight,
use.
"""

from __future__ import annotations

import random
import secrets
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from spotlight.actors.protocol.door import (
    AccessRevoked,
    Enroll,
    GetGuests,
    GuestList,
    NameUnknown,
    NewToken,
    NotEnrolled,
    RevokeAccess,
    TokenMade,
)
from spotlight.actors.protocol.roles import MAY_SAY
from spotlight.actors.protocol.users import (
    Acknowledged,
    CancelJob,
    CancelRefused,
    ConsentNeeded,
    DrainNode,
    DrainRefused,
    GetStatus,
    JobAccepted,
    JobList,
    JobRefused,
    JobStatus,
    JobUnknown,
    ListJobs,
    NodeUnknown,
    PreemptNode,
    SubmitJob,
)
from spotlight.actors.runtime import ActorRef, ActorSystem, Message
from spotlight.errors import (
    ConsentMissing,
    NotAllowed,
    RequestRefused,
    UnknownJob,
    UnknownNode,
)
from spotlight.jobs import JobSpec
from spotlight.join_token import JoinToken
from spotlight.running.join_option import transport_of
from spotlight.timings import Timings
from spotlight.types import Pool, TokenRole

_LIMIT_S = 10.0


class CoordinatorClient:
    """A connection to a coordinator. Every call has a deadline and raises `ActorError` when it is
    missed.
    """

    def __init__(
        self, system: ActorSystem, coordinator: ActorRef, timings: Timings = Timings()
    ) -> None:
        self._system = system
        self._submit_limit_s = timings.coordinator.submit_answer_s
        self._coordinator = coordinator
        self._door = system.well_known(coordinator.address, "door")

    async def submit(
        self,
        job: JobSpec,
        run_folder: str,
        *,
        resume: bool,
        changes: Sequence[str] = (),
        weight: float = 1.0,
        priority: int = 0,
    ) -> JobAccepted:
        """Put a job into the queue, or a run that goes on, whose job has `changes` then; raises
        `RequestRefused` with the coordinator's reason."""
        message = SubmitJob(job, run_folder, resume, weight, priority, tuple(changes))
        answer = await self._system.ask(self._coordinator, message, timeout_s=self._submit_limit_s)
        if isinstance(answer, JobRefused):
            raise RequestRefused(answer.reason)
        assert isinstance(answer, JobAccepted)
        return answer

    async def jobs(self, *, timeout_s: float = _LIMIT_S) -> JobList:
        """All jobs and sessions that have not ended, and the latest of the others."""
        answer = await self._system.ask(self._coordinator, ListJobs(), timeout_s=timeout_s)
        assert isinstance(answer, JobList)
        return answer

    async def status(self, job: str = "", *, timeout_s: float = _LIMIT_S) -> JobStatus:
        """How a job is now, by its id or name; without one, that which runs for the longest, or
        else that which ended last. Raises `UnknownJob`."""
        return await self._ask_of_job(GetStatus(job), timeout_s)

    async def cancel(
        self,
        job: str = "",
        *,
        reason: str = "cancelled by the user",
        timeout_s: float = _LIMIT_S,
    ) -> JobStatus:
        """End a job, by its id or name; without one, the only one that has not ended. Returns the
        status before. Raises `UnknownJob`, and `RequestRefused` for that of somebody else."""
        return await self._ask_of_job(CancelJob(job, reason), timeout_s)

    async def preempt(self, node: str, notice_s: float, *, cancel: bool, yes: bool = False) -> None:
        """Give a node notice. Raises `UnknownNode`, and `ConsentMissing` if a job could not train
        then and `yes` does not say that this is meant."""
        await self._ask_of_node(PreemptNode(node, notice_s, cancel, yes))

    async def drain(self, node: str, *, cancel: bool, yes: bool = False) -> None:
        """Have a node give back its work and stay with nothing to do, or take that back. Raises as
        `preempt` does."""
        await self._ask_of_node(DrainNode(node, cancel, yes))

    async def new_token(
        self, role: TokenRole, pool: Pool | None, uses: int, ttl_s: float, priority: int = 0
    ) -> str:
        """Make a join token. Raises `RequestRefused`."""
        answer = await self._ask_door(NewToken(role, pool, uses, ttl_s, priority))
        assert isinstance(answer, TokenMade)
        return answer.token

    async def revoke(self, name: str) -> AccessRevoked:
        """Show a node, or whoever has a token, out. Raises `RequestRefused` if there is none, or
        if that holds only for as long as the coordinator runs."""
        answer = await self._ask_door(RevokeAccess(name))
        if isinstance(answer, NameUnknown):
            nodes, tokens = (", ".join(names) or "none" for names in (answer.nodes, answer.tokens))
            raise RequestRefused(
                f"there is no node and no token `{name}`; nodes: {nodes}; tokens: {tokens}"
            )
        assert isinstance(answer, AccessRevoked)
        return answer

    async def guests(self) -> GuestList:
        """Who may come in, and who is there."""
        answer = await self._ask_door(GetGuests())
        assert isinstance(answer, GuestList)
        return answer

    async def end_of(self, join: JoinToken) -> str:
        """How the token has ended by which this client came; empty if it allows something."""
        try:  # nothing can be enrolled by it with its own key
            answer = await self._system.ask(
                self._door, Enroll("anybody", join.keys.public), timeout_s=_LIMIT_S
            )
        except NotAllowed:
            return ""
        assert isinstance(answer, NotEnrolled)
        return answer.reason if answer.token_ended else ""

    async def _ask_of_job(self, message: GetStatus | CancelJob, timeout_s: float) -> JobStatus:
        answer = await self._system.ask(self._coordinator, message, timeout_s=timeout_s)
        if isinstance(answer, JobUnknown):
            raise UnknownJob(answer.reason)
        if isinstance(answer, CancelRefused):
            raise RequestRefused(answer.reason)
        assert isinstance(answer, JobStatus)
        return answer

    async def _ask_of_node(self, message: PreemptNode | DrainNode) -> None:
        answer = await self._system.ask(self._coordinator, message, timeout_s=_LIMIT_S)
        if isinstance(answer, NodeUnknown):
            there = ", ".join(answer.nodes) or "none"
            problem = f"there is no node `{message.node}`"
            if answer.gone:
                problem = f"the node `{message.node}` is not there any more: {answer.gone}"
            raise UnknownNode(f"{problem}; there are: {there}")
        if isinstance(answer, ConsentNeeded):
            raise ConsentMissing(answer.reason)
        if isinstance(answer, DrainRefused):
            raise RequestRefused(answer.reason)
        assert isinstance(answer, Acknowledged)

    async def _ask_door(self, message: Message) -> Message:
        answer = await self._system.ask(self._door, message, timeout_s=_LIMIT_S)
        if isinstance(answer, NotEnrolled):
            raise RequestRefused(answer.reason)
        return answer


@asynccontextmanager
async def connect(join: JoinToken) -> AsyncIterator[CoordinatorClient]:
    """Connect to the coordinator that a join token names, as its submitter or operator: see
    `join_option.resolve`."""
    system = ActorSystem(
        transport_of(join), rng=random.Random(secrets.randbits(64)), rights=MAY_SAY
    )
    await system.start()
    try:
        yield CoordinatorClient(system, system.well_known(join.coordinator, "coordinator"))
    finally:
        await system.aclose()


async def end_of_token(join: JoinToken) -> str:
    """How a token has ended, in a line that says what to do; empty if it has not."""
    async with connect(join) as client:
        return await client.end_of(join)
