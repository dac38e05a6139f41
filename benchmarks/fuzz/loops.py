"""An event loop that is run piece by piece, and lets no error in a callback pass."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class WatchedLoop:
    """See the module's docstring."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._errors: list[dict[str, Any]] = []
        self._loop.set_exception_handler(lambda _, context: self._errors.append(context))

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Do that. Raises what was raised on the loop meanwhile, by whomever."""
        try:
            return self._loop.run_until_complete(work)
        finally:
            self._raise()

    def close(self) -> None:
        """End it."""
        self._loop.run_until_complete(asyncio.sleep(0))
        self._loop.close()

    def _raise(self) -> None:
        errors, self._errors = self._errors, []
        for context in errors:
            raise AssertionError(f"on the loop: {context['message']}") from context.get("exception")
