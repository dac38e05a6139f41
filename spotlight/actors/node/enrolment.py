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
from spotlight.actors.runtime.log_limiter import LimitedLog
from spotlight.errors import (
    AccessRefused,
    ActorError,
    NotAdmitted,
    OtherVersion,
)
from spotlight.timings import Timings
from spotlight.transport.control import ControlTransport

log = structlog.get_logger(__name__)


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
        self._log = LimitedLog(log)

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
            raise AccessRefused(answer.reason, soon=answer.soon, is_expected=answer.is_expected)
        assert isinstance(answer, Enrolled)
        log.info("enrolled", node=answer.node, pool=answer.pool)
        return answer

    async def insist(self) -> Enrolled:
        """The same once the coordinator answers, however long that takes. Raises `AccessRefused`
        at once if it will not take the node, or is of another build, and after a while if it might
        have: longer while the name is kept for a node that may not come any more."""
        loop, timings = asyncio.get_running_loop(), self._timings.node
        refused_at: float | None = None
        while True:
            try:
                return await self.once()
            except AccessRefused as error:
                refused_at = loop.time() if refused_at is None else refused_at
                refused_s = loop.time() - refused_at
                limit_s = timings.name_limit_s if error.is_expected else timings.refused_limit_s
                if not error.soon or refused_s >= limit_s:
                    raise
                event = "waiting_for_name" if error.is_expected else "join_refused"
                self._log.info(event, address=self._coordinator, reason=str(error))
            except OtherVersion as error:
                raise AccessRefused(str(error)) from error
            except ActorError as error:
                refused_at = None
                self._log.info(
                    "waiting_for_coordinator", address=self._coordinator, reason=str(error)
                )
            await asyncio.sleep(timings.join_pause_s)
