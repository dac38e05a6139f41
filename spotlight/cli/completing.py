"""What a shell is offered when a user presses the tabulator: the coordinator's jobs and nodes, and
the runs of this folder.

Whoever cannot be asked at once offers nothing, and no error is shown between the user's words.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

import typer

from spotlight.cli.reaching import asking
from spotlight.errors import SpotlightError

if TYPE_CHECKING:
    from spotlight.running.client import CoordinatorClient

LIMIT_S = 1.0


def job_names(context: typer.Context, incomplete: str) -> list[str]:
    """Names of jobs and sessions that begin like this."""

    async def names(client: CoordinatorClient) -> list[str]:
        return [job.name for job in (await client.jobs(timeout_s=LIMIT_S)).jobs]

    return _offered(context, incomplete, names)


def node_names(context: typer.Context, incomplete: str) -> list[str]:
    """Names of nodes that begin like this."""

    async def names(client: CoordinatorClient) -> list[str]:
        return [node.name for node in (await client.guests()).nodes]

    return _offered(context, incomplete, names)


def run_names(incomplete: str) -> list[str]:
    """Folders of runs below `runs` that begin like this, and `last`; elsewhere the shell itself
    knows what there is."""
    from spotlight.running.run_names import LAST, runs_here

    return [name for name in (*runs_here(), LAST) if name.startswith(incomplete)]


def _offered(
    context: typer.Context,
    incomplete: str,
    names: Callable[[CoordinatorClient], Coroutine[Any, Any, list[str]]],
) -> list[str]:
    async def in_time(client: CoordinatorClient) -> list[str]:
        async with asyncio.timeout(LIMIT_S):
            return await names(client)

    try:
        found = asking(context.params.get("join") or "", in_time)
    except (SpotlightError, TimeoutError):
        return []
    return [name for name in found if name.startswith(incomplete)]
