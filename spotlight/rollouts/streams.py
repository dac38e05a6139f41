"""The groups of one call of `rollout`, as they are done."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING, Self

from spotlight.errors import SpotlightError
from spotlight.rollouts.groups import Group

if TYPE_CHECKING:
    from spotlight.rollouts.rollouts import Rollouts


class GroupStream(AsyncIterator[Group]):
    """Iterate over it, once; finished groups wait meanwhile. The work starts when this is made, so
    a loop may train before it takes the first group. `aclose`, or leaving it as a context, drops
    the rest.

    Args:
        submit: has the groups denoised; returns their numbers.
        owner: hears what is not wanted any more.
    """

    def __init__(
        self,
        submit: Callable[[GroupStream], Awaitable[None]],
        owner: Rollouts,
    ) -> None:
        self._owner = owner
        self._done: asyncio.Queue[Group | SpotlightError | None] = asyncio.Queue()
        self._open: set[int] = set()
        self._all_submitted = False
        self._over = False
        self._submitting = asyncio.create_task(self._submit(submit))

    async def _submit(self, submit: Callable[[GroupStream], Awaitable[None]]) -> None:
        try:
            await submit(self)
        except SpotlightError as error:
            self.fail(error)
        self._all_submitted = True
        self._end_if_complete()

    # --- for whoever serves it ---

    def expect(self, number: int) -> None:
        """A group of this number is going to be submitted."""
        self._open.add(number)

    def put(self, number: int, group: Group) -> None:
        """A group is done."""
        if number in self._open:
            self._open.discard(number)
            self._done.put_nowait(group)
            self._end_if_complete()

    def fail(self, error: SpotlightError) -> None:
        """Nothing more comes."""
        self._open.clear()
        self._done.put_nowait(error)

    async def abandon(self) -> None:
        """Submit nothing more."""
        self._submitting.cancel()
        await asyncio.wait((self._submitting,))

    def _end_if_complete(self) -> None:
        if self._all_submitted and not self._open:
            self._owner.forget(self)
            self._done.put_nowait(None)

    # --- for the user ---

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Group:
        """The next group that is done; raises what keeps the rest from being so."""
        if self._over:
            raise StopAsyncIteration
        found = await self._done.get()
        if isinstance(found, Group):
            return found
        self._over = True
        if found is None:
            raise StopAsyncIteration
        raise found

    async def aclose(self) -> None:
        """Drop what is not done, and what was not taken."""
        self._over = True
        self._owner.forget(self)
        await self.abandon()
        numbers, self._open = self._open, set()
        if numbers:
            await self._owner.withdraw(numbers)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.aclose()
