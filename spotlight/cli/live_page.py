"""The live page beside what a command does: where it is to be, and that it is there meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from typer.core import TyperCommand

if TYPE_CHECKING:
    from spotlight.web.opening import OpenedPage, PagePlace

WEB = "--web"
ANYWHERE = "127.0.0.1:0"
"""Any free port, for this machine alone."""


class CommandWithPage(TyperCommand):
    """A command whose `--web` may stand without an address."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Called by the library."""
        return super().parse_args(ctx, with_address(args))


def with_address(arguments: Sequence[str]) -> list[str]:
    """Arguments in which an address follows each `--web`: `ANYWHERE` where none is given."""
    following = [*arguments, "--"][1:]
    return [
        f"{WEB}={ANYWHERE}" if one == WEB and not _is_address(after) else one
        for one, after in zip(arguments, following, strict=True)
    ]


def wanted_page(
    address: str, certificate: Path | None, key: Path | None, *, plain: bool
) -> PagePlace | None:
    """Where a page is to be; None if it is to be nowhere. Raises `UserError`."""
    from spotlight.errors import UserError

    if not address:
        if certificate is not None or key is not None or plain:
            raise UserError("--web-certificate, --web-key and --web-plain: give --web as well")
        return None
    from spotlight.web.opening import page_place

    return page_place(WEB, address, certificate=certificate, key=key, plain=plain)


@contextmanager
def page_of_run(
    place: PagePlace | None, run: Path, *, alone: bool, say: Callable[..., Any]
) -> Iterator[None]:
    """Serve the page of a run, and of those beside it unless it is `alone`, while the context
    lasts."""
    if place is None:
        yield
        return
    from spotlight.web.opening import open_page
    from spotlight.web.shown_runs import ShownRuns

    page = open_page(place, ShownRuns(run.parent, run.name if alone else ""))
    with page.server:
        for line in (f"page: {page.link(run.name)}", *page.notes()):
            say(line, soft_wrap=True, markup=False, highlight=False)
        yield


def page_of_coordinator(place: PagePlace | None, runs: Path) -> OpenedPage | None:
    """The page of all runs of a coordinator, for whoever has a join token of it for people."""
    if place is None:
        return None
    from spotlight.actors.coordinator.key_ring import door_file
    from spotlight.web.opening import open_page
    from spotlight.web.shown_runs import ShownRuns

    return open_page(place, ShownRuns(runs.resolve()), door_file(runs))


def _is_address(text: str) -> bool:
    """Whether it could be one, rather than another option or a job file."""
    _, separator, port = text.rpartition(":")
    return bool(separator) and port.isascii() and port.isdigit()
