"""`spotlight doctor` and `spotlight version`: what this machine is, and what is wrong with it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from spotlight.cli.options import JoinOption, JsonOption

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import RenderableType

    from spotlight.preflight.machine import Finding

_STYLES = {"ok": "green", "warn": "yellow", "fail": "bold red"}


def doctor(join: JoinOption = "", as_json: JsonOption = False) -> None:
    """Look for what is wrong with this machine and with the way to its coordinator."""
    import asyncio
    from pathlib import Path

    import msgspec
    from rich.console import Console

    from spotlight.preflight.machine import machine_findings
    from spotlight.running.coordinator_check import coordinator_findings

    runs = Path("runs")
    found = [*machine_findings(runs), *asyncio.run(coordinator_findings(join, runs))]
    if as_json:
        typer.echo(msgspec.json.encode(found).decode())
    else:
        Console().print(findings_table(found))
    raise typer.Exit(int(any(finding.state == "fail" for finding in found)))


def version(as_json: JsonOption = False) -> None:
    """Print the version and the build, which all processes of a cluster share."""
    import platform

    import msgspec

    from spotlight import __version__
    from spotlight.actors.protocol.dialect import own_dialect

    build = str(own_dialect())
    if as_json:
        said = {"version": __version__, "build": build, "python": platform.python_version()}
        typer.echo(msgspec.json.encode(said).decode())
    else:
        typer.echo(f"spotlight {build}, Python {platform.python_version()}")


def findings_table(found: Sequence[Finding]) -> RenderableType:
    """A line for each finding, and below it what to do."""
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for finding in found:
        said = Text(finding.said)
        if finding.advice:
            said.append(f"\n{finding.advice}", style="dim")
        table.add_row(Text(finding.state, style=_STYLES[finding.state]), finding.what, said)
    return table
