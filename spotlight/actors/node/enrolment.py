"""How a node gets its key known to the coordinator: it says `Enroll` by the key of its join token.

It does so before all else; and again when the coordinator does not know the node's own key any
more, which may be since it lost its book, or since the node was revoked.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

import structlog

from spotlight.actors.protocol.door import Enroll, Enrolled, NotEnrolled
from spotlight.actors.protocol.roles import MAY_SAY
from spotlight.actors.runtime import ActorSystem
from spotlight.actors.runtime.log_limiter import LogLimiter
from spotlight.errors import AccessRefused, ActorError, NotAdmitted
from spotlight.timings import Timings
from spotlight.transport.control import ControlTransport

log = structlog.get_logger(__name__)

_LOG_INTERVAL_S = 60.0
"""Of lines that say the same of every attempt."""


class Enrolment:
    """See the module's docstring.

    Args:
        coordinator: its control address.
        request: what the node says of itself.
        joiner: makes a transport that is known by the token; one serves one attempt.
    """

    def __init__(
        self,
        coordinator: str,
        request: Enroll,
        joiner: Callable[[], ControlTransport],
        rng: random.Random,
        timings: Timings = Timings(),
    ) -> None:
        self._coordinator = coordinator
        self._request = request
        self._joiner = joiner
        self._rng = rng
        self._timings = timings

    async def once(self) -> Enrolled:
        """Enroll, if the coordinator answers. Raises `AccessRefused` with its reason if it does not
        take the node, and `ActorError` if it does not answer."""
        system = ActorSystem(
            self._joiner(), rng=self._rng, rights=MAY_SAY, timings=self._timings.runtime
        )
        await system.start()
        try:
            door = system.well_known(self._coordinator, "door")
            limit_s = self._timings.node.join_limit_s
            answer = await system.ask(door, self._request, timeout_s=limit_s)
        except NotAdmitted as error:
            raise AccessRefused(
                "--join: the coordinator does not know this join token: it is mistyped or was"
                " revoked, or the coordinator keeps another --runs folder; ask its operator for a"
                " new one (`spotlight token new`)"
            ) from error
        finally:
            await system.aclose()
        if isinstance(answer, NotEnrolled):
            raise AccessRefused(answer.reason)
        assert isinstance(answer, Enrolled)
        log.info("enrolled", node=answer.node, pool=answer.pool)
        return answer

    async def insist(self) -> Enrolled:
        """The same once the coordinator answers, however long that takes."""
        limiter, loop = LogLimiter(_LOG_INTERVAL_S), asyncio.get_running_loop()
        while True:
            try:
                return await self.once()
            except ActorError as error:
                unlogged = limiter.admit("", loop.time())
                if unlogged is not None:
                    log.info(
                        "waiting_for_coordinator",
                        address=self._coordinator,
                        reason=str(error),
                        unlogged=unlogged,
                    )
            await asyncio.sleep(self._timings.node.join_pause_s)
