"""`spotlight dashboard`: the page of runs that have ended, or that somebody else works on."""

from __future__ import annotations

import signal
import webbrowser
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from spotlight.cli.completing import run_names
from spotlight.cli.options import WebCertificateOption, WebKeyOption, WebPlainOption
from spotlight.errors import RunFolderError, UserError

if TYPE_CHECKING:
    from spotlight.web.shown_runs import ShownRuns

DEMO = Path(__file__).parents[1] / "web" / "demo"
"""The folder of the run that ships with the package."""
_ENDS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_LOOK_S = 0.5


def dashboard(
    runs: Annotated[
        str,
        typer.Argument(
            metavar="RUN|RUNS",
            help="A run folder, the name of a run, `last`, or a folder of runs; default `runs`.",
            autocompletion=run_names,
            show_default=False,
        ),
    ] = "",
    demo: Annotated[
        bool, typer.Option("--demo", help="Show a run that ships with Spotlight.")
    ] = False,
    host: Annotated[str, typer.Option(help="Address to bind.")] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port to bind; 0 picks a free one.")
    ] = 0,
    web_certificate: WebCertificateOption = None,
    web_key: WebKeyOption = None,
    web_plain: WebPlainOption = False,
    opens: Annotated[bool, typer.Option("--open", help="Open it in a browser.")] = False,
) -> None:
    """Serve the page of runs that have ended, or that go on, until Ctrl-C."""
    from spotlight.transport.addresses import tcp_address
    from spotlight.web.opening import open_page, page_place

    if demo and runs:
        raise UserError("give either a run or --demo")
    address = tcp_address(host, port)
    place = page_place("--host", address, certificate=web_certificate, key=web_key, plain=web_plain)
    shown, run = _demo() if demo else _shown(runs)
    page = open_page(place, shown)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _ENDS)  # before there are other threads
    try:
        with page.server:
            link = page.link(run)
            for line in (link, *page.notes(), "end it with Ctrl-C"):
                typer.echo(line)
            if opens and not webbrowser.open(link):
                typer.echo("no browser could be opened; open the link yourself")
            while signal.sigtimedwait(_ENDS, _LOOK_S) is None:
                if not page.server.is_alive:
                    raise UserError("the page's server has ended; the log above says why")
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _shown(named: str) -> tuple[ShownRuns, str]:
    """The runs to show, and which of them first. Raises `UserError`."""
    from spotlight.running.run_names import find_run
    from spotlight.store.run_folder import is_run
    from spotlight.web.shown_runs import ShownRuns

    folder = Path(named or "runs")
    if folder.is_dir() and not is_run(folder):
        return ShownRuns.at(folder), ""
    found = find_run(named) if named else None
    if found is None:
        raise RunFolderError(
            f"{folder} is neither a run, nor a folder of runs; name one, or see what it looks like"
            " with --demo"
        )
    shown = ShownRuns.at(found)
    return shown, shown.only


def _demo() -> tuple[ShownRuns, str]:
    from spotlight.web.shown_runs import ShownRuns

    demo = ShownRuns.at(DEMO)
    names = demo.names()
    if not names:
        raise RunFolderError(f"--demo: there is no run in {DEMO}; install Spotlight again")
    return demo, names[0]
