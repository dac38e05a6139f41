"""The door of the coordinator: lets nodes in by join tokens, makes tokens, and shows people out.

Messages in: Enroll (joiners, operators), NewToken, RevokeAccess, GetGuests (users).
Messages out: Enrolled, NotEnrolled, TokenMade, AccessRevoked, NameUnknown, GuestList.

What it answers is in force, and on the disk. Who may say which of these is in `protocol/roles.py`.
"""

from __future__ import annotations

import asyncio
from typing import Any

import structlog

from spotlight.actors.coordinator.coordinator import Coordinator
from spotlight.actors.coordinator.key_ring import KeyRing
from spotlight.actors.protocol.door import (
    Enroll,
    GetGuests,
    GuestList,
    NewToken,
    NotEnrolled,
    RevokeAccess,
    TokenMade,
)
from spotlight.actors.runtime import Actor, Message, handles
from spotlight.actors.runtime.log_limiter import LimitedLog
from spotlight.errors import RunFolderError

log = structlog.get_logger(__name__)


class Door(Actor):
    """See the module's docstring.

    Args:
        keys: whom it lets in.
        coordinator: of the same process; told of whom is shown out.
    """

    def __init__(self, keys: KeyRing, coordinator: Coordinator) -> None:
        self._keys = keys
        self._coordinator = coordinator
        self._log = LimitedLog(log)

    async def started(self) -> None:
        """Look at the clock from time to time."""
        self.run_task(self._watch_the_clock())

    async def _watch_the_clock(self) -> None:
        while True:
            await asyncio.sleep(self._keys.timings.check_s)
            self._keys.sweep()
            try:
                await self._keys.saved()
            except RunFolderError as error:
                self._log.error("keys_not_saved", about=str(error), reason=str(error))

    @handles(Enroll)
    async def on_enroll(self, message: Enroll) -> NotEnrolled | asyncio.Task[Any]:
        """A node wants to be let in."""
        answer = self._keys.enroll(self.sender_address, message)
        return answer if isinstance(answer, NotEnrolled) else self._once_saved(answer)

    @handles(NewToken)
    async def on_new_token(self, message: NewToken) -> NotEnrolled | asyncio.Task[Any]:
        """An operator wants others to be able to join."""
        try:
            join = self._keys.new_token(
                message.role, message.pool, message.uses, message.ttl_s, message.priority
            )
        except ValueError as error:
            return NotEnrolled(str(error))
        return self._once_saved(TokenMade(str(join)))

    @handles(RevokeAccess)
    async def on_revoke(self, message: RevokeAccess) -> asyncio.Task[Any]:
        """An operator wants somebody out."""
        answer = self._keys.revoke(message.name)
        self._coordinator.take_back_rights(message.name)
        return self._once_saved(answer)

    @handles(GetGuests)
    async def on_get_guests(self, message: GetGuests) -> GuestList:
        """Who may come in, and who is there."""
        self._keys.sweep()
        post = self.system.post
        return self._keys.guest_list(post.transport.dialect, post.other_versions)

    def _once_saved(self, answer: Message) -> asyncio.Task[Any]:
        """Others are served while it is written."""
        return self.run_task(self._save_and(answer))

    async def _save_and(self, answer: Message) -> Message:
        try:
            await self._keys.saved()
        except RunFolderError as error:
            self._log.error("keys_not_saved", about=str(error), reason=str(error))
            return NotEnrolled(str(error))
        return answer
