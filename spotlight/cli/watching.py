"""Looking on at a job from any terminal, and reading what it and its workers have said."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from spotlight.cli.options import JobArgument, JoinOption, JsonOption, RunArgument
from spotlight.cli.reaching import asking

if TYPE_CHECKING:
    from spotlight.actors.protocol.users import JobStatus
    from spotlight.running.client import CoordinatorClient

_EXIT_CODES = {"finished": 0, "failed": 1, "cancelled": 3}
_LEFT = 130


def watch(job: JobArgument = "", join: JoinOption = "", as_json: JsonOption = False) -> None:
    """Show a job until it has ended; Ctrl-C leaves it running."""
    raise typer.Exit(look_on(join, job, shown=True, as_json=as_json))


def logs(
    job: RunArgument = "last",
    go_on: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on until the job has ended.")
    ] = False,
    worker: Annotated[
        str,
        typer.Option(
            help="Print the log of this worker instead, such as spot-0/1, or of a node or the"
            " coordinator of `spotlight run`."
        ),
    ] = "",
    join: JoinOption = "",
    as_json: JsonOption = False,
) -> None:
    """Tell what has happened to a job, or print what one of its workers has logged."""
    from spotlight.cli.log_lines import print_log, print_story
    from spotlight.cli.run_choice import choose_run

    try:
        if worker:
            print_log(worker, job, join, go_on=go_on)
        else:
            print_story(choose_run(job, join), go_on=go_on, as_json=as_json)
    except KeyboardInterrupt:
        raise typer.Exit(_LEFT) from None


def look_on(join: str, job: str, *, shown: bool, as_json: bool) -> int:
    """Look on at a job until it has ended, showing it or not; returns the exit code, which says how
    it ended. Ctrl-C leaves it running, and says so."""
    try:
        last = asking(join, lambda client: _followed(client, job, shown=shown, as_json=as_json))
    except KeyboardInterrupt:
        again = f" {job}" if job else ""
        sys.stderr.write(f"the job goes on; see it with: spotlight watch{again}\n")
        return _LEFT
    if not shown and not as_json:
        reason = f": {last.reason}" if last.reason else ""
        typer.echo(f"{last.job}: {last.outcome}{reason}")
    return _EXIT_CODES[last.outcome]


async def _followed(
    client: CoordinatorClient, job: str, *, shown: bool, as_json: bool
) -> JobStatus:
    from rich.console import Console
    from rich.live import Live

    from spotlight.cli.live import render
    from spotlight.cli.terminal_view import JsonView, QuietView, TerminalView
    from spotlight.running.following import follow

    if as_json:
        return await follow(client, job, JsonView())
    if not shown:
        return await follow(client, job, QuietView())
    console = Console()
    with Live(console=console, auto_refresh=False, transient=True) as live:
        last = await follow(client, job, TerminalView(console, live))
    if console.is_terminal:
        console.print(render(last))
    return last
