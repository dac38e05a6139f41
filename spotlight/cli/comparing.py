"""The commands that read runs: the report of one, and several side by side."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from spotlight.cli.options import JoinOption, JsonOption
from spotlight.errors import RunFolderError, UserError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import RenderableType

    from spotlight.report.comparison import Variant

_FEWEST = 2


def report(
    run: Annotated[
        str,
        typer.Argument(
            help="A run folder, the name of a run or of a job, or `last`.", show_default=False
        ),
    ] = "last",
    join: JoinOption = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON.")] = False,
) -> None:
    """Write report.html of a run, or print its figures."""
    from spotlight.cli.run_choice import choose_run
    from spotlight.report.metrics import read_run, summarise
    from spotlight.report.rendering import write_report

    folder = choose_run(run, join)
    if as_json:
        typer.echo(json.dumps(summarise(read_run(folder))))
    else:
        typer.echo(str(write_report(folder)))


def compare(
    runs: Annotated[
        list[str], typer.Argument(help="Run folders, or names of runs or of jobs; two or more.")
    ],
    html: Annotated[
        Path | None, typer.Option("--html", help="Write a page with the curves to this file.")
    ] = None,
    join: JoinOption = "",
    as_json: JsonOption = False,
) -> None:
    """Compare runs: their rewards and validation, with intervals where only their seeds differ."""
    import msgspec
    from rich.console import Console

    from spotlight.cli.run_choice import choose_run
    from spotlight.report.comparison import compare as compared
    from spotlight.report.metrics import read_run

    folders = list(dict.fromkeys(choose_run(run, join).resolve() for run in runs))
    if len(folders) < _FEWEST:
        raise UserError("compare: name two runs or more; `spotlight report RUN` is about one")
    variants = compared([read_run(folder) for folder in folders])
    if as_json:
        typer.echo(msgspec.json.encode(variants).decode())
    else:
        Console().print(comparison_table(variants))
    if html is not None:
        _write_page(html, variants)
        typer.echo(f"the curves: {html}", err=as_json)


def comparison_table(variants: Sequence[Variant]) -> RenderableType:
    """A row for each variant, the best one first, under what the figures mean."""
    from rich.console import Group
    from rich.text import Text

    from spotlight.cli.tables import plain_table
    from spotlight.report.comparison_page import HEADINGS, by_score, cells

    note = "reward and validation after the last iteration that all runs of a row have; ± is the"
    note += " 95 % interval of the mean over seeds"
    table = plain_table(HEADINGS, map(cells, by_score(variants)))
    return Group(table, Text(f"\n{note}", style="dim"))


def _write_page(path: Path, variants: Sequence[Variant]) -> None:
    from spotlight.report.comparison_page import comparison_page

    try:
        path.write_text(comparison_page(variants), encoding="utf-8")
    except OSError as error:
        raise RunFolderError(f"--html {path}: cannot be written ({error.strerror})") from error
